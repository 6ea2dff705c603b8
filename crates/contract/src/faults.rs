//! Faults between a client and the lock service of others, and refusals of the service in its own words: a
//! hold is kept while its ttl allows, a waiter is granted the lock afterwards, and errors carry what the
//! service said last.

use std::time::Duration;

use lockkeeper::{AcquireError, BackendErrorKind, Guard, Locks, ReleaseError, Unfenced, VerifyError, Wait};
use lockkeeper_rig::ServiceRefusal;

use crate::subject::{Subject, start_waiting, until};

const SECOND: Duration = Duration::from_secs(1);

/// The faults that a subject survives, beside its refusals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Idle connections are closed.
    IdleCut,
    /// Keep-alives are refused until the hold is lost.
    RefusedUntilLost,
    /// One of several addresses swallows packets from the start.
    Swallowed,
    /// The address in use swallows packets from then on.
    SwallowedInUse,
}
use Fault::{IdleCut, RefusedUntilLost, Swallowed, SwallowedInUse};

pub async fn survives(subject: &impl Subject, faults: &[Fault]) {
    let clients =
        [subject.client("holds").await, subject.client("waits").await, subject.client("late").await];
    for (kind, refusal) in subject.refusals() {
        refused_for_a_while(subject, &clients, *refusal, *kind).await;
    }
    if faults.contains(&RefusedUntilLost) {
        refused_until_lost(subject, subject.refusals()[0].1).await;
    }
    if faults.contains(&IdleCut) {
        idle_connections_are_cut(subject).await;
    }
    if faults.contains(&Swallowed) {
        an_address_swallows_packets(subject, faults.contains(&SwallowedInUse)).await;
    }
}

/// Asks the service; the hold must not be lost.
async fn is_confirmed(held: &Guard<Unfenced>) -> bool {
    match held.verify().await {
        Ok(()) => true,
        Err(VerifyError::Lost(lost)) => panic!("{lost}"),
        Err(_) => false,
    }
}

/// The answer may be missing: on a busy machine it may take longer than the limit, and a connection may still
/// lead to an address that swallows packets.
async fn release(held: Guard<Unfenced>) {
    let released = held.release().await;
    assert!(matches!(released, Ok(()) | Err(ReleaseError::Ambiguous { .. })), "{released:?}");
}

async fn refused_for_a_while(
    subject: &impl Subject,
    [holds, waits, late]: &[Locks; 3],
    refusal: ServiceRefusal,
    kind: BackendErrorKind,
) {
    let name = format!("faults/{}", refusal.code.to_ascii_lowercase());
    let held = holds.mutex(&name).ttl(60 * SECOND).acquire().await.unwrap();
    // Only a request that was told its place stays in the queue when it is refused.
    let waiting = start_waiting(waits.mutex(&name).ttl(60 * SECOND)).await;
    late.list(None).await.unwrap();
    subject.refuse(refusal);
    let mut patience = SECOND / 5;
    until(&format!("the refusal in an error: {refusal:?}"), async || {
        // The client itself may repeat the request for longer.
        let _ = tokio::time::timeout(SECOND / 5, is_confirmed(&held)).await;
        let error = late.mutex(&name).wait(Wait::For(patience)).acquire().await.unwrap_err();
        // On a busy machine the refusal of a first attempt may come too late.
        patience = (2 * patience).min(5 * SECOND);
        let found = match &error {
            AcquireError::Backend(error) => error.kind,
            // No connection was open in time, or the request that gave up waiting was refused: the reason is
            // that refusal.
            AcquireError::TimedOut { .. } | AcquireError::Ambiguous { .. } => kind,
            _ => BackendErrorKind::Unreachable,
        };
        let is_told = error.to_string().contains(refusal.text);
        is_told.then(|| assert_eq!(found, kind, "{error}"))
    })
    .await;
    assert!(subject.refused() > 0, "{refusal:?}");
    subject.stop_refusing();
    until(&format!("confirmed after {refusal:?}"), async || is_confirmed(&held).await.then_some(())).await;
    release(held).await;
    // Long before an entry could expire that it has left behind.
    until(&format!("granted after {refusal:?}"), async || waiting.is_finished().then_some(())).await;
    match waiting.await.unwrap() {
        Ok(next) => release(next).await,
        Err(error) => assert!(!kind.may_pass(), "{error}"),
    }
}

async fn refused_until_lost(subject: &impl Subject, refusal: ServiceRefusal) {
    let locks = subject.client("loses").await;
    let held = locks.mutex("faults/lost").ttl(2 * SECOND).acquire().await.unwrap();
    subject.refuse(refusal);
    let lost = until("the loss", async || held.valid_until().err()).await;
    subject.stop_refusing();
    assert!(lost.to_string().contains(refusal.text), "{lost}");
}

async fn idle_connections_are_cut(subject: &impl Subject) {
    let faults = subject.faults().expect("a network");
    let (holds, waits) = (subject.client("rests").await, subject.client("queues").await);
    let held = holds.mutex("faults/idle").ttl(6 * SECOND).acquire().await.unwrap();
    let waiting = start_waiting(waits.mutex("faults/idle").ttl(6 * SECOND)).await;
    let before = held.valid_until().unwrap();
    faults.cut_idle(SECOND / 4);
    until("idle connections are cut, and the hold is renewed", async || {
        (faults.idle_cuts() >= 3 && held.valid_until().expect("it is held") > before).then_some(())
    })
    .await;
    release(held).await;
    let next = waiting.await.unwrap().unwrap();
    faults.spare_idle();
    until("the next hold is confirmed", async || is_confirmed(&next).await.then_some(())).await;
    release(next).await;
}

async fn an_address_swallows_packets(subject: &impl Subject, then_the_other: bool) {
    let faults = subject.faults().expect("a network");
    faults.silence("swallows");
    // ZooKeeper's client tries the addresses in any order.
    let locks: Locks = until("the address that swallows packets is tried", async || {
        let locks = subject.client_through(&["swallows", "answers"]).await;
        (!faults.traffic("swallows").is_empty()).then_some(locks)
    })
    .await;
    let held = locks.mutex("faults/swallowed").ttl(15 * SECOND).acquire().await.unwrap();
    if then_the_other {
        faults.end_silence("swallows");
        faults.silence("answers");
        until("confirmed by another address", async || is_confirmed(&held).await.then_some(())).await;
    }
    release(held).await;
}
