//! A hold ends with its connection: detection, and what is left at the server.

use std::time::Duration;

use lockkeeper::{BreakOrder, Broken, Locks, LossCause, ReleaseError, Wait};

use crate::session::world::{World, for_session, until, until_lost, until_waiting};

#[tokio::test]
async fn terminated_server_process_costs_one_hold_only() {
    let world = World::start();
    let (locks, other) = (world.client("holder").await, world.client("other").await);
    let lost = locks.mutex("lost").acquire().await.unwrap();
    world.terminate_holders();
    until_lost(&lost).await;
    let kept = locks.mutex("kept").acquire().await.unwrap();
    assert_eq!(lost.loss(), Some(LossCause::Disconnected));
    assert!(lost.verify().await.is_err(), "it is not taken anew");
    let next = other.mutex("lost").acquire().await.unwrap();
    assert!(next.token_hint() > lost.token_hint());
    let released = lost.release().await;
    assert!(matches!(
        released,
        Err(ReleaseError::AlreadyLost(lockkeeper::Lost { cause: LossCause::Disconnected, .. }))
    ));
    kept.verify().await.unwrap();
    next.verify().await.unwrap();
}

#[tokio::test]
async fn loss_of_one_hold_does_not_affect_another() {
    let world = World::start();
    let locks = world.client("holder").await;
    let first = locks.mutex("first").acquire().await.unwrap();
    let pid = "select pid from pg_locks where locktype = 'advisory' and granted";
    let pid = world.server.psql(pid);
    let second = locks.mutex("second").acquire().await.unwrap();
    world.server.psql(&format!("select pg_terminate_backend({})", pid.trim()));
    until_lost(&first).await;
    second.verify().await.unwrap();
    assert_eq!(second.loss(), None);
}

#[tokio::test]
async fn restart_and_crash_end_every_hold_and_no_token_is_reused() {
    let world = World::start();
    let locks = world.client("holder").await;
    let mut last = None;
    for crash in [false, true, false, true] {
        let held = locks.mutex("a").acquire().await.unwrap();
        assert!(held.token_hint() > last);
        last = held.token_hint();
        if crash {
            world.server.kill();
            world.server.start_again();
        } else {
            world.server.restart();
        }
        until_lost(&held).await;
        assert_eq!(held.loss(), Some(LossCause::Disconnected));
    }
}

#[tokio::test]
async fn waiters_requeue_after_a_restart() {
    let world = World::start();
    let (holds, waits) = (world.client("holds").await, world.client("waits").await);
    let held = holds.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("a").acquire().await });
    until_waiting(&holds, "a", 1).await;
    world.server.restart();
    let next = waiting.await.unwrap().unwrap();
    until_lost(&held).await;
    next.verify().await.unwrap();
}

/// The client detects the loss by the missing answer to its probe, and terminates the server process that
/// still holds the lock once the server responds again.
#[tokio::test]
async fn unresponsive_server_counts_as_lost() {
    let world = World::start();
    let locks = world.client("holder").await;
    let held = locks.mutex("a").acquire().await.unwrap();
    world.server.stop();
    until_lost(&held).await;
    world.server.cont();
    assert_eq!(held.loss(), Some(LossCause::Disconnected));
    world.until_nothing_is_left().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn break_reaches_its_holder_and_is_shown_to_others() {
    let world = World::start();
    let (locks, operator) = (world.client("holder").await, world.client("operator").await);
    let held = locks.mutex("a").grace(Duration::from_secs(5)).acquire().await.unwrap();
    let order = |token| BreakOrder {
        name: "a".parse().unwrap(),
        token,
        reason: "it's /* in */ the way; drop table x".into(),
        by: "o'brien".into(),
        now: false,
    };
    let token = held.token_hint().unwrap();
    let other = lockkeeper::Token::new(token.get() + 1).unwrap();
    let answer = operator.break_hold(order(other)).await.unwrap();
    assert_eq!(answer, Broken::NotCurrent { live: vec![token] });
    assert_eq!(held.loss(), None);

    // Any database user can notify the holder's channel. A notification without the secret key, which only
    // users with the right to read the holder's statements can see, is ignored. The answer to `inspect`
    // arrives on the same connection after the notifications, so they have been received by then.
    world.server.psql("create role stranger login");
    let monitors = "select string_agg(split_part(application_name, ' ', 3), ' ') from pg_stat_activity \
                    where application_name like 'lockkeeper monitor %'";
    for client in world.server.psql(monitors).split_whitespace() {
        let forged = format!(r#"{{"token":{token},"reason":"r","by":"b","key":"000000000000"}}"#);
        world.server.psql(&format!("set role stranger; notify lockkeeper_{client}, '{forged}'"));
    }
    locks.inspect("a").await.unwrap();
    let stranger = Locks::connect(&for_session(&world.server.url_as("stranger"))).await.unwrap();
    assert!(stranger.break_hold(order(token)).await.is_err(), "it does not see what the holder says");
    held.verify().await.unwrap();
    assert_eq!(held.loss(), None);

    operator.break_hold(order(token)).await.unwrap();
    until_lost(&held).await;
    assert_eq!(held.loss(), Some(LossCause::Broken));
    let revoked = lockkeeper::HolderState::Revoked {
        reason: "it's /* in */ the way; drop table x".into(),
        by: "o'brien".into(),
    };
    until("the break is shown", async || {
        (operator.inspect("a").await.unwrap().holds.first()?.state == revoked).then_some(())
    })
    .await;
    drop(held);
    operator
        .mutex("a")
        .wait(Wait::For(Duration::from_secs(20)))
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn timeouts_of_the_role_do_not_end_a_hold_or_a_wait() {
    let world = World::start();
    world.server.psql(
            "alter role postgres set statement_timeout = '300ms'; alter role postgres set lock_timeout = '300ms'; \
             alter role postgres set idle_in_transaction_session_timeout = '300ms'; \
             alter role postgres set idle_session_timeout = '300ms'",
        );
    let slow = |label: &'static str| {
        let url = world.url().replace("probe=200ms", "probe=10s");
        async move { lockkeeper::Locks::connect_as(&url, label).await.unwrap() }
    };
    let (holds, waits) = (slow("holds").await, slow("waits").await);
    let held = holds.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("a").acquire().await });
    until_waiting(&holds, "a", 1).await;
    // Longer than each of the timeouts.
    tokio::time::sleep(Duration::from_secs(1)).await;
    held.verify().await.unwrap();
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
