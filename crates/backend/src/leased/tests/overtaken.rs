//! These tests send a keep-alive, or break the hold, while the grant of an entry is on its way. The
//! keep-alive must not extend the session's deadline beyond the time at which the new hold expires at the
//! service (P5).

use super::*;

fn granted() -> Tried {
    Tried::Granted(Granted::default())
}

/// A pending request, and the sender of its attempt's answer.
async fn asked(
    session: &Session,
    seq: u64,
) -> (BoxFuture<'static, Result<Answer, CallError>>, oneshot::Sender<Tried>) {
    let answer = session.store.will_later();
    let mut acquire = session.acquire(seq);
    start(&mut acquire).await;
    session.store.asked();
    (acquire, answer)
}

#[tokio::test]
async fn a_grant_that_a_keep_alive_missed_is_renewed_before_it_is_returned() {
    let session = Session::open().await;
    session.held(1).await;
    let (acquire, answer) = asked(&session, 2).await;
    session.store.renewals.lock().unwrap().extend([Renewed::Kept, Renewed::Gone]);
    // The renewal does not find entry 2. No hold is lost by that, since the grant of entry 2 was not returned
    // yet, so the keep-alive is acknowledged.
    assert!(matches!(session.call(Call::KeepAlive).await, Ok(Answer::KeptAlive)));
    assert_eq!(session.store.asked(), ["renew 1", "renew 2"]);
    answer.send(granted()).unwrap();
    assert!(matches!(acquire.await, Ok(Answer::Granted(_))));
    assert_eq!(session.store.asked(), ["renew 2"]);
}

#[tokio::test]
async fn a_waiter_that_a_keep_alive_missed_is_renewed_before_its_grant_is_returned() {
    let session = Session::open().await;
    // Late enough that the second attempt is not made at once.
    session.store.will(waits(Duration::from_millis(1)));
    let mut acquire = session.acquire(1);
    start(&mut acquire).await;
    let answer = session.store.will_later();
    session.store.asked();
    // Polls until the second attempt was sent.
    while session.store.asked().is_empty() {
        start(&mut acquire).await;
        tokio::task::yield_now().await;
    }
    session.store.will_renew(Renewed::Gone);
    assert!(matches!(session.call(Call::KeepAlive).await, Ok(Answer::KeptAlive)));
    session.store.asked();
    answer.send(granted()).unwrap();
    assert!(matches!(acquire.await, Ok(Answer::Granted(_))));
    assert_eq!(session.store.asked(), ["renew 1"]);
}

#[tokio::test]
async fn a_keep_alive_answered_after_a_grant_that_it_missed_renews_it_before_its_acknowledgement() {
    let mut session = Session::open().await;
    let (acquire, answer) = asked(&session, 1).await;
    let keep_alive = session.submit(Call::KeepAlive);
    answer.send(granted()).unwrap();
    assert!(matches!(acquire.await, Ok(Answer::Granted(_))));
    session.store.will_renew(Renewed::Gone);
    assert!(matches!(keep_alive.await, Ok(Answer::KeptAlive)));
    assert!(session.pushes.try_recv().is_err(), "it says nothing of its grant");
    assert_eq!(session.store.asked(), ["renew 1", "renew 1"]);
}

#[tokio::test]
async fn a_hold_that_the_second_renewal_does_not_find_is_lost_and_the_keep_alive_not_acknowledged() {
    let mut session = Session::open().await;
    let (acquire, answer) = asked(&session, 1).await;
    let keep_alive = session.submit(Call::KeepAlive);
    answer.send(granted()).unwrap();
    assert!(matches!(acquire.await, Ok(Answer::Granted(_))));
    session.store.renewals.lock().unwrap().extend([Renewed::Gone, Renewed::Gone]);
    assert!(matches!(keep_alive.await, Err(CallError { sent: true, .. })));
    assert!(matches!(session.pushes.recv().await, Some(Push::Ended { seq: Seq(1), end: End::Gone })));
}

#[tokio::test]
async fn a_grant_that_can_not_be_renewed_is_not_returned() {
    let session = Session::open().await;
    let (acquire, answer) = asked(&session, 1).await;
    session.store.will_renew(Renewed::Gone);
    session.call(Call::KeepAlive).await.unwrap();
    session.store.unanswered_renewals.store(1, Ordering::SeqCst);
    answer.send(granted()).unwrap();
    assert!(matches!(acquire.await, Err(CallError { sent: true, .. })));
    // The next attempt returns the first grant again, and does not extend its expiry.
    session.store.will(Ok(granted()));
    session.store.will_renew(Renewed::Gone);
    assert!(matches!(session.acquire(1).await, Ok(Answer::Finished(End::Gone))));
    session.store.asked();
    session.finish(1).await;
    assert_eq!(session.store.asked(), ["finish 1"]);
}

#[tokio::test]
async fn a_hold_that_is_broken_while_its_grant_is_on_its_way_is_not_returned() {
    for by_wake in [false, true] {
        let session = Session::open().await;
        let (acquire, answer) = asked(&session, 1).await;
        if by_wake {
            session.wakes.deliver(&session.id(1), Wake::Revoked);
        } else {
            session.store.will_renew(Renewed::Revoked);
            assert!(matches!(session.call(Call::KeepAlive).await, Ok(Answer::KeptAlive)));
        }
        session.store.will_renew(Renewed::Revoked);
        answer.send(granted()).unwrap();
        assert!(matches!(acquire.await, Ok(Answer::Revoked)), "by wake: {by_wake}");
        assert!(matches!(session.finish(1).await, Answer::Finished(End::Broken)));
    }
}

#[tokio::test]
async fn an_acquire_of_a_hold_that_was_found_lost_makes_no_new_request() {
    let session = Session::open().await;
    session.held(1).await;
    session.held(2).await;
    session.store.will_renew(Renewed::Gone);
    assert!(session.call(Call::KeepAlive).await.is_err());
    session.finish(2).await;
    session.store.asked();
    // Hold 1 is lost, which the machine does not know yet, and hold 2 is finished. An acquire with either
    // seq, as `Guard::verify` sends it, must not take the lock again.
    for seq in [1, 2] {
        session.store.will(Ok(granted()));
        assert!(matches!(session.acquire(seq).await, Ok(Answer::Finished(End::Gone))), "{seq}");
        assert!(session.store.asked().is_empty(), "{seq}");
    }
}
