//! Runtimes of callers that stall or end: every loss is reported, and no lock is left at the server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use lockkeeper::{BreakOrder, Guard, LossCause, Unfenced};
use tokio::runtime::{Builder, Runtime};

use crate::session::world::World;

const DEADLINE: Duration = Duration::from_secs(30);
/// The interval of probes (`World::url`), and the limit for their answers.
const PROBE_AND_LIMIT: Duration = Duration::from_millis(200 + 1000);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Like `until`, but blocks the thread, so that no task is driven meanwhile.
fn until_without_runtime(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < DEADLINE, "waited for {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A hold on this runtime.
fn hold(world: &World, runtime: &Runtime) -> Guard<Unfenced> {
    runtime.block_on(async { world.client("holder").await.mutex("a").acquire().await.unwrap() })
}

/// Waits until the holder's client has sent two probes and the server has answered them.
fn until_probed_twice(world: &World) {
    for _ in 0..2 {
        let asked = world.server.psql("select clock_timestamp()");
        until_without_runtime("the holds are probed", || {
            let probes = format!(
                "select count(*) from pg_stat_activity where application_name like 'lockkeeper monitor %' \
                 and query like '%unnest%' and query_start > '{asked}' and state = 'idle'"
            );
            world.server.psql(&probes) != "0"
        });
    }
}

#[test]
fn loss_is_reported_while_the_runtime_of_the_hold_stalls() {
    let world = World::start();
    let stalled = runtime();
    let held = hold(&world, &stalled);
    until_probed_twice(&world);
    assert_eq!(held.loss(), None);
    world.terminate_holders();
    let terminated = Instant::now();
    until_without_runtime("the loss is reported", || held.loss().is_some());
    let took = terminated.elapsed();
    assert_eq!(held.loss(), Some(LossCause::Disconnected));
    assert!(took < PROBE_AND_LIMIT, "{took:?}");
}

#[test]
fn silent_server_is_a_loss_while_the_runtime_of_the_hold_stalls() {
    let world = World::start();
    let stalled = runtime();
    let held = hold(&world, &stalled);
    world.server.stop();
    until_without_runtime("the loss is reported", || held.loss().is_some());
    world.server.cont();
    assert_eq!(held.loss(), Some(LossCause::Disconnected));
    until_without_runtime("nothing is left", || world.locks() == 0);
}

#[test]
fn break_reaches_its_holder_while_the_runtime_of_the_hold_stalls() {
    let world = World::start();
    let (stalled, other) = (runtime(), runtime());
    let held = hold(&world, &stalled);
    let order = BreakOrder {
        name: "a".parse().unwrap(),
        token: held.token_hint().unwrap(),
        reason: "reason".into(),
        by: "operator".into(),
        now: false,
    };
    other.block_on(async { world.client("operator").await.break_hold(order).await.unwrap() });
    until_without_runtime("the break is reported", || held.loss().is_some());
    assert_eq!(held.loss(), Some(LossCause::Broken));
}

#[test]
fn hold_ends_with_its_runtime_and_its_holder_is_notified() {
    let world = World::start();
    let ends = runtime();
    let held = hold(&world, &ends);
    drop(ends);
    until_without_runtime("the loss is reported", || held.loss().is_some());
    assert_eq!(held.loss(), Some(LossCause::Disconnected));
    until_without_runtime("the server has freed the lock", || world.locks() == 0);
    runtime().block_on(async {
        world.client("other").await.mutex("a").acquire().await.unwrap().release().await.unwrap();
        drop(held);
    });
}

#[test]
fn guard_dropped_while_its_runtime_stalls_is_released() {
    let world = World::start();
    let stalled = runtime();
    let held = hold(&world, &stalled);
    drop(held);
    until_without_runtime("nothing is left", || world.locks() == 0);
}

#[test]
fn guard_released_on_another_runtime_is_released() {
    let world = World::start();
    let running = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stalled = runtime();
    for runtime in [&running, &stalled] {
        let held = hold(&world, runtime);
        self::runtime().block_on(held.release()).unwrap();
        assert_eq!(world.locks(), 0);
    }
}

#[test]
fn hold_is_verified_on_another_runtime() {
    let world = World::start();
    let stalled = runtime();
    let held = hold(&world, &stalled);
    let other = runtime();
    other.block_on(held.verify()).unwrap();
    world.terminate_holders();
    until_without_runtime("the server process is gone", || world.locks() == 0);
    other.block_on(held.verify()).unwrap_err();
}

#[test]
fn wait_that_ends_with_its_runtime_leaves_the_queue() {
    let world = World::start();
    let (holds, waits) = (runtime(), runtime());
    let held = hold(&world, &holds);
    let locks = waits.block_on(world.client("waits"));
    waits.spawn(async move { locks.mutex("a").acquire().await.map(drop) });
    waits.block_on(crate::session::world::until("it waits", async || (world.locks() == 2).then_some(())));
    drop(waits);
    until_without_runtime("it waits no more", || world.locks() == 1);
    holds.block_on(held.release()).unwrap();
}

#[test]
fn acquire_dropped_on_a_stalled_runtime_takes_nothing() {
    let world = World::start();
    let stalled = runtime();
    let locks = stalled.block_on(world.client("stalled"));
    stalled.block_on(async { locks.mutex("a").acquire().await.unwrap().release().await.unwrap() });
    let lock = locks.mutex("a");
    {
        let _entered = stalled.enter();
        let mut acquiring = pin!(lock.acquire());
        assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    // The runtime continues, and drives the call that was begun.
    stalled.block_on(async {
        let held = locks.mutex("a").acquire().await.unwrap();
        assert_eq!(world.locks(), 1);
        held.release().await.unwrap();
    });
    assert_eq!(world.locks(), 0);
}

#[test]
fn acquires_aborted_with_their_runtime_leave_nothing() {
    let world = World::start();
    let rest = runtime();
    let locks = rest.block_on(world.client("stays"));
    for round in 0..20 {
        let ends = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        for task in 0..8 {
            let locks = locks.clone();
            ends.spawn(async move {
                loop {
                    // In even rounds two tasks at a time contend for a lock; in odd rounds each task has its
                    // own lock.
                    let held =
                        locks.mutex(format!("{}", task / 2 * 2 + task % 2 * (round % 2))).acquire().await;
                    held.unwrap().release().await.unwrap();
                }
            });
        }
        std::thread::sleep(Duration::from_micros(700 * round));
        ends.shutdown_background();
        until_without_runtime("nothing is left", || world.locks() == 0);
    }
    rest.block_on(async { locks.mutex("0").acquire().await.unwrap().release().await.unwrap() });
}

/// One query probes all holds. The probes are counted in the server's log of statements.
#[test]
fn all_holds_are_probed_by_one_query_and_none_by_none() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let directory = format!("log_directory={}", folder.path().display());
    let settings = ["max_connections=250", "log_statement=all", "logging_collector=on", "log_file_mode=0644"];
    let settings = [&settings[..], &["log_filename=log", &directory]].concat();
    let world = World::with(&settings.iter().flat_map(|setting| ["-c", setting]).collect::<Vec<_>>());
    let runtime = runtime();
    let url = format!("{}&connections=210", world.url());
    let locks = runtime.block_on(lockkeeper::Locks::connect_as(&url, "many")).unwrap();
    let probes = || {
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        log.matches("statement: select number from unnest").count() as u128
    };
    assert_eq!(probes(), 0);
    let mutexes: Vec<_> = (0..200).map(|number| locks.mutex(format!("a/{number}"))).collect();
    let mut held = Vec::new();
    for some in mutexes.chunks(10) {
        let acquiring = some.iter().map(|mutex| mutex.acquire());
        held.extend(
            runtime.block_on(futures_util::future::join_all(acquiring)).into_iter().map(Result::unwrap),
        );
    }
    let before = (probes(), Instant::now());
    until_probed_twice(&world);
    let (sent, took) = (probes() - before.0, before.1.elapsed());
    let most = took.as_millis() / 200 + 2;
    assert!((1..=most).contains(&sent), "{sent} probes in {took:?}");
    assert!(held.iter().all(|held| held.loss().is_none()));
    for held in held {
        runtime.block_on(held.release()).unwrap();
    }
    // One probe may have begun before the last hold was released. After it, none is sent.
    let after = probes();
    std::thread::sleep(Duration::from_secs(1));
    assert!(probes() <= after + 1, "{} probes without a hold", probes() - after);
}
