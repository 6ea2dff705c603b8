//! Servers that crash, hang, lose data or have their clocks set, with a healthy majority and without one.

use std::time::Duration;

use lockkeeper::{AcquireError, LossCause, ReleaseError, Wait};
use lockkeeper_rig::Redis;

use crate::support::{NAME, SECOND, Servers, address, hold, try_to_hold, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_two_of_five_dead_everything_works() {
    let servers = Servers::start(5);
    let (before, holder) = (servers.client("before").await, servers.client("holder").await);
    let held = hold(&holder, 2 * SECOND).await.unwrap();
    servers.0[0].kill();
    servers.0[4].kill();
    // The hold is renewed on the three servers that are left.
    let first = held.valid_until().unwrap().unwrap();
    until("it is kept alive beyond its first ttl", async || {
        let valid = held.valid_until().expect("it is not lost").expect("it has a ttl");
        (valid > first + 2 * SECOND).then_some(())
    })
    .await;
    assert!(try_to_hold(&before).await.is_none());
    let late = servers.client("made while two are dead").await;
    assert!(try_to_hold(&late).await.is_none());
    held.release().await.unwrap();
    let held = try_to_hold(&late).await.expect("three of five are enough to hold");
    assert!(try_to_hold(&before).await.is_none());
    held.verify().await.unwrap();
    held.release().await.unwrap();
    servers.until_nothing_is_left(NAME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_back_takes_part_again() {
    let servers = Servers::start(3);
    servers.0[0].kill();
    // `without` has never connected to the first server; `with`, opened below, loses its connection to it.
    let without = servers.client("without").await;
    servers.0[0].start_again();
    let with = servers.client("with").await;
    servers.0[0].restart();
    for locks in [without, with] {
        until("it is asked again", async || {
            let held = try_to_hold(&locks).await?;
            // The first server may grant after the majority.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let at_all = servers.keys(NAME) == 3;
            held.release().await.unwrap();
            servers.until_nothing_is_left(NAME).await;
            at_all.then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_three_of_five_dead_acquires_fail_and_report_every_servers_answer() {
    let servers = Servers::start(5);
    let locks = servers.client("a").await;
    drop(hold(&locks, SECOND).await.unwrap());
    servers.until_nothing_is_left(NAME).await;
    servers.0[1..4].iter().for_each(Redis::kill);
    let Err(failed) = hold(&locks, SECOND).await else { panic!("two of five are no majority") };
    assert!(
        matches!(failed, AcquireError::Unreachable { .. } | AcquireError::Ambiguous { .. }),
        "{failed:?}"
    );
    let says = failed.to_string();
    assert!(says.contains("3 of 5 nodes must grant it"), "{says}");
    for server in &servers.0[1..4] {
        assert!(says.contains(&format!("{}: ", address(server))), "{says}");
    }
    assert!(says.contains("refused"), "{says}");
    for server in [&servers.0[0], &servers.0[4]] {
        assert!(says.contains(&format!("{}: granted, and taken back", address(server))), "{says}");
    }
    servers.until_nothing_is_left(NAME).await;
    // After the restart of the three servers, no old entry is in the way.
    servers.0[1..4].iter().for_each(Redis::start_again);
    hold(&locks, 10 * SECOND).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_without_a_majority_is_lost_at_its_deadline() {
    let servers = Servers::start(5);
    let locks = servers.client("a").await;
    let held = hold(&locks, 2 * SECOND).await.unwrap();
    servers.0[..3].iter().for_each(Redis::kill);
    let lost = held.lost();
    let mut last = held.valid_until().unwrap().unwrap();
    until("the loss is told", async || {
        match held.valid_until() {
            // A keep-alive sent before the crash may still have been acknowledged.
            Ok(Some(valid)) => last = last.max(valid),
            _ => return Some(()),
        }
        None
    })
    .await;
    assert!(lost.is_cancelled());
    assert_eq!(held.loss(), Some(LossCause::Expired));
    assert!(
        lockkeeper::BootInstant::now() >= last,
        "not before its deadline, since the two may be a majority's rest"
    );
    assert!(matches!(
        held.release().await,
        Err(ReleaseError::AlreadyLost(lockkeeper::Lost { cause: LossCause::Expired, .. }))
    ));
    servers.until_nothing_is_left(NAME).await;
}

/// If a majority answers that it has lost the hold, the loss is certain before the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_a_majority_lost_is_lost_with_the_next_keep_alive() {
    let servers = Servers::start(3);
    let locks = servers.client("a").await;
    let held = hold(&locks, 6 * SECOND).await.unwrap();
    until("all three have it", async || (servers.keys(NAME) == 3).then_some(())).await;
    servers.0[0].cli(&["FLUSHALL"]);
    held.verify().await.expect("two of three still have it");
    assert_eq!(servers.keys(NAME), 2, "a renewal never recreates a lost key");
    servers.0[1].cli(&["FLUSHALL"]);
    let lost = held.lost();
    tokio::time::timeout(20 * SECOND, lost.cancelled()).await.expect("it is told");
    assert_eq!(held.loss(), Some(LossCause::Forgotten));
    servers.until_nothing_is_left(NAME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_clock_that_is_set_forward_breaks_nothing() {
    let servers = Servers::of((0..5).map(|at| if at == 2 { Redis::with_clock() } else { Redis::start() }));
    let (one, two) = (servers.client("one").await, servers.client("two").await);
    let held = servers.held_by_all(&one, 3 * SECOND).await;
    let first = held.valid_until().unwrap().unwrap();
    servers.0[2].clock().step(3600);
    until("it has expired there", async || (servers.keys(NAME) == 4).then_some(())).await;
    while held.valid_until().expect("it is not lost").unwrap() <= first + 3 * SECOND {
        assert!(try_to_hold(&two).await.is_none(), "four of five still say who holds it");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    held.release().await.unwrap();
    assert!(try_to_hold(&two).await.is_some());
}

/// With this ttl the time limit of an attempt at one server is 1 s. Fifty acquires would take 50 s if each
/// waited for the hung server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hung_server_does_not_slow_acquires_to_its_time_limit() {
    let servers = Servers::start(5);
    let locks = servers.client("a").await;
    hold(&locks, 30 * SECOND).await.unwrap().release().await.unwrap();
    servers.0[3].stop();
    let pairs = async {
        for _ in 0..50 {
            hold(&locks, 30 * SECOND).await.unwrap().release().await.unwrap();
        }
    };
    tokio::time::timeout(25 * SECOND, pairs).await.expect("nobody waits for it");
    // Calls that the stopped server executes only now leave no entries.
    servers.0[3].cont();
    servers.until_nothing_is_left(NAME).await;
}

/// Without the three hung servers there is no majority. They may execute the calls after they resume, so the
/// entries are removed again then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_three_of_five_hung_acquires_are_in_doubt_and_leave_no_entries() {
    let servers = Servers::start(5);
    let locks = servers.client("a").await;
    hold(&locks, SECOND).await.unwrap().release().await.unwrap();
    servers.until_nothing_is_left(NAME).await;
    servers.0[..3].iter().for_each(Redis::stop);
    let Err(failed) = hold(&locks, SECOND).await else { panic!("two of five are no majority") };
    assert!(
        matches!(failed, AcquireError::Ambiguous { .. } | AcquireError::Unreachable { .. }),
        "{failed:?}"
    );
    servers.0[..3].iter().for_each(Redis::cont);
    servers.until_nothing_is_left(NAME).await;
    hold(&locks, 10 * SECOND).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_and_releases_need_only_a_majority_of_the_servers() {
    let servers = Servers::start(5);
    let (one, two) = (servers.client("one").await, servers.client("two").await);
    let held = servers.held_by_all(&one, 2 * SECOND).await;
    let waiting = tokio::spawn({
        let lock = two.mutex(NAME).ttl(2 * SECOND).wait(Wait::For(20 * SECOND));
        async move { lock.acquire().await }
    });
    until("it waits", async || (one.inspect(NAME).await.unwrap().waiter_count == 1).then_some(())).await;
    servers.0[..2].iter().for_each(Redis::kill);
    held.release().await.expect("three of five say that it is released");
    let held = waiting.await.unwrap().expect("it is granted by the three that are left");
    servers.0[2].kill();
    let released = held.release().await;
    let error = released.expect_err("two of five can't say").to_string();
    assert!(error.contains("no majority of the servers confirms the release: 127.0.0.1:"), "{error}");
    servers.until_nothing_is_left(NAME).await;
}
