//! Runtimes of callers that stall or end: a held lock does not depend on them.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use lockkeeper::LossCause;
use tokio::runtime::{Builder, Runtime};

use crate::world::{KINDS, World};

const DEADLINE: Duration = Duration::from_secs(30);

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

/// Waits until the holder's connection was probed twice, and answered.
fn until_probed_twice(world: &World) {
    for _ in 0..2 {
        let asked = world.server.psql("select clock_timestamp()");
        until_without_runtime("the holder is asked for a sign of life", || {
            let probes = format!(
                "select count(*) from pg_locks join pg_stat_activity using (pid) where locktype = 'advisory' \
                 and granted and query_start > '{asked}' and state like 'idle%'"
            );
            world.server.psql(&probes) == "1"
        });
    }
}

#[test]
fn hold_is_probed_while_its_runtime_is_stalled() {
    for kind in KINDS {
        let world = World::start();
        let still = runtime();
        let held =
            still.block_on(async { world.client(kind, "still").await.mutex("a").acquire().await.unwrap() });
        until_probed_twice(&world);
        assert_eq!(held.loss(), None, "{kind}");
        world.terminate_holders();
        until_without_runtime("the loss is signalled", || held.loss().is_some());
        assert_eq!(held.loss(), Some(LossCause::Disconnected), "{kind}");
    }
}

#[test]
fn hold_outlives_its_runtime_and_is_released() {
    for kind in KINDS {
        let world = World::start();
        let ends = runtime();
        let held =
            ends.block_on(async { world.client(kind, "ends").await.mutex("a").acquire().await.unwrap() });
        drop(ends);
        until_probed_twice(&world);
        let other = runtime();
        other.block_on(async {
            let other = world.client(kind, "other").await;
            assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "{kind}");
            assert_eq!(held.loss(), None, "{kind}");
            drop(held);
            other.mutex("a").acquire().await.unwrap().release().await.unwrap();
        });
    }
}

#[test]
fn connections_are_reused_by_the_next_runtime() {
    for kind in KINDS {
        let world = World::start();
        let locks = runtime().block_on(world.client(kind, "moves"));
        let processes = "select string_agg(distinct pid::text, ' ') from pg_stat_activity \
                         where application_name like 'lockkeeper%'";
        let mut seen = Vec::new();
        for _ in 0..3 {
            runtime().block_on(async { locks.mutex("a").acquire().await.unwrap().release().await.unwrap() });
            seen.push(world.server.psql(processes));
        }
        assert!(seen.iter().all(|processes| *processes == seen[0]), "{kind}: {seen:?}");
    }
}

/// The acquire is never polled again: its started work completes nevertheless.
#[test]
fn acquire_on_a_stalled_runtime_leaves_nothing() {
    for kind in KINDS {
        let world = World::start();
        let still = runtime();
        let locks = still.block_on(world.client(kind, "still"));
        still.block_on(async { locks.mutex("a").acquire().await.unwrap().release().await.unwrap() });
        let lock = locks.mutex("a");
        {
            let _entered = still.enter();
            let mut acquiring = pin!(lock.acquire());
            assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            until_without_runtime("the lock is taken", || world.locks() == 1);
        }
        until_without_runtime("nothing is left", || world.locks() == 0);
    }
}

#[test]
fn acquires_aborted_with_their_runtime_leave_nothing() {
    for kind in KINDS {
        let world = World::start();
        let rest = runtime();
        let locks = rest.block_on(world.client(kind, "stays"));
        for round in 0..20 {
            let ends = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            for task in 0..8 {
                let locks = locks.clone();
                ends.spawn(async move {
                    loop {
                        // Some wait for each other, and some do not.
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
}
