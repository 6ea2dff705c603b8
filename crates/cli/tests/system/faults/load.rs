//! Load on a few locks through the library, and checks over its whole history.
//!
//! Tokens rise with every grant, so they order the grants: sorted by token, the holds of one lock must not
//! overlap in time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::{AcquireError, Fenced, Guard, LockName, Locks, LossCause, Wait};
use tokio::task::JoinSet;

use crate::faults::server::{LONG, PATIENCE, answer, until, within};

/// One hold, as its client observed it.
#[derive(Debug)]
struct Hold {
    lock: usize,
    token: u64,
    /// The time at which the acquire returned.
    since: Instant,
    /// The time just before the call of the release.
    until: Instant,
    lost: Option<LossCause>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    begun: AtomicU64,
    granted: AtomicU64,
    /// Acquires that ended without a grant, by their own wait limit.
    gave_up: AtomicU64,
    /// Futures of acquires that were dropped while they waited.
    dropped: AtomicU64,
    history: Mutex<Vec<Hold>>,
    /// All other errors of acquires and releases.
    errors: Mutex<Vec<String>>,
}

/// Tasks that acquire and release in loops.
pub(crate) struct Load {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    clients: Vec<Locks<Fenced>>,
}

/// The totals of a finished load.
pub(crate) struct Done {
    pub(crate) granted: u64,
    pub(crate) dropped: u64,
}

impl Load {
    /// Runs `tasks` tasks per client on `locks` locks named `load/<number>`.
    pub(crate) fn start(clients: Vec<Locks<Fenced>>, locks: usize, tasks: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let mut load = Self { shared: shared.clone(), tasks: JoinSet::new(), clients };
        for client in &load.clients {
            for task in 0..tasks {
                load.tasks.spawn(work(client.clone(), shared.clone(), locks, task));
            }
        }
        load
    }

    pub(crate) fn granted(&self) -> u64 {
        self.shared.granted.load(Ordering::Relaxed)
    }

    /// Waits until this many more acquires were granted.
    #[track_caller]
    pub(crate) fn goes_on(&self, more: u64) {
        let wanted = self.granted() + more;
        until("the load goes on", || {
            assert!(
                self.shared.errors.lock().unwrap().is_empty(),
                "{:?}",
                self.shared.errors.lock().unwrap()
            );
            self.granted() >= wanted
        });
    }

    /// Starts no new acquires from now on.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Lets every task finish its current acquire, and checks the history. The service must have no lock and
    /// no waiter of the load left (P7).
    pub(crate) async fn checked(mut self) -> Done {
        self.stop();
        let Shared { begun, granted, gave_up, dropped, history, errors, .. } = &*self.shared;
        within("every acquire has ended", async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.unwrap();
            }
        })
        .await;
        assert!(errors.lock().unwrap().is_empty(), "{:?}", errors.lock().unwrap());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(begun), count(granted) + count(gave_up) + count(dropped), "each ended exactly once");
        let mut history = std::mem::take(&mut *history.lock().unwrap());
        assert_eq!(history.len() as u64, count(granted));
        check(&mut history);
        let name: LockName = "load".parse().unwrap();
        answer("no lock and no waiter is left", async || {
            let listed = self.clients[0].list(Some(name.as_str())).await.ok()?;
            listed.is_empty().then_some(())
        })
        .await;
        for client in self.clients {
            let report = client.shutdown(PATIENCE).await;
            assert_eq!(report.left, 0, "every session is closed");
        }
        Done { granted: count(granted), dropped: count(dropped) }
    }
}

async fn work(client: Locks<Fenced>, shared: Arc<Shared>, locks: usize, task: usize) {
    let mut round = task;
    while !shared.stop.load(Ordering::Relaxed) {
        round += 1;
        let lock = round % locks;
        let wanted = client.mutex(format!("load/{lock}")).ttl(LONG);
        shared.begun.fetch_add(1, Ordering::Relaxed);
        // Some acquires time out, and some futures are dropped. If such a request were left behind, it would
        // block the others.
        let acquired = match round % 7 {
            0 => wanted.wait(Wait::For(Duration::from_millis(3))).acquire().await,
            1 => match tokio::time::timeout(Duration::from_millis(2), wanted.acquire()).await {
                Ok(acquired) => acquired,
                Err(_) => {
                    shared.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            },
            _ => wanted.acquire().await,
        };
        match acquired {
            Ok(guard) => hold(guard, &shared, lock).await,
            // A wait that is over before the service has said whether the lock is free is not one for a busy
            // lock.
            Err(AcquireError::TimedOut { .. } | AcquireError::Unreachable { .. }) => {
                shared.gave_up.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => shared.errors.lock().unwrap().push(format!("acquire: {error}")),
        }
    }
}

async fn hold(guard: Guard<Fenced>, shared: &Shared, lock: usize) {
    let since = Instant::now();
    // Lets other tasks run while the lock is held.
    tokio::task::yield_now().await;
    let (token, lost) = (guard.token().get(), guard.loss());
    shared.history.lock().unwrap().push(Hold { lock, token, since, until: Instant::now(), lost });
    shared.granted.fetch_add(1, Ordering::Relaxed);
    if let Err(error) = guard.release().await {
        shared.errors.lock().unwrap().push(format!("release of {token}: {error}"));
    }
}

/// Checks mutual exclusion (P1) and rising tokens (P2) over the whole history.
fn check(history: &mut [Hold]) {
    history.sort_by_key(|hold| (hold.lock, hold.token));
    for hold in history.iter() {
        assert_eq!(hold.lost, None, "no hold is lost by a restart that is shorter than its ttl: {hold:?}");
    }
    for pair in history.windows(2) {
        let [before, after] = pair else { unreachable!("windows of two") };
        if before.lock == after.lock {
            assert!(before.token < after.token, "one token twice: {before:?} {after:?}");
            assert!(before.until <= after.since, "two holders at a time: {before:?} {after:?}");
        }
    }
}
