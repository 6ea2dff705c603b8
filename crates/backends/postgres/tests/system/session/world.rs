//! A private server, its clients, and the server's own view of its locks.

use std::time::{Duration, Instant};

use lockkeeper::backends::postgres::schema_sql;
use lockkeeper::{Guard, Locks, Unfenced};
use lockkeeper_rig::Postgres;

/// Only bounds the duration of a failing test.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) server: Postgres,
}

impl World {
    /// A server with the schema of tokens.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(args: &[&str]) -> Self {
        let server = Postgres::with(args);
        server.psql(&schema_sql(None));
        Self { server }
    }

    /// The URL, with a short probe interval and timeout.
    pub(crate) fn url(&self) -> String {
        for_session(&self.server.url())
    }

    pub(crate) async fn client(&self, label: &str) -> Locks {
        Locks::connect_as(&self.url(), label).await.unwrap()
    }

    /// Number of advisory locks at the server, held or waited for.
    pub(crate) fn locks(&self) -> usize {
        self.server.psql("select count(*) from pg_locks where locktype = 'advisory'").trim().parse().unwrap()
    }

    /// Waits until the server has no advisory lock.
    pub(crate) async fn until_nothing_is_left(&self) {
        until("nothing is left in pg_locks", async || (self.locks() == 0).then_some(())).await;
    }

    /// Terminates the server processes that hold advisory locks.
    pub(crate) fn terminate_holders(&self) {
        self.server
            .psql("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted");
    }
}

pub(crate) fn for_session(url: &str) -> String {
    format!("{url}?lock=session&probe=200ms&timeout=3s")
}

/// Waits for a condition, with a deadline.
pub(crate) async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(since.elapsed() < DEADLINE, "waited for {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a lock has `count` waiters.
pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    until("they wait", async || (locks.inspect(name).await.ok()?.waiter_count == count).then_some(())).await;
}

/// Waits until the guard reports the loss of its lock.
pub(crate) async fn until_lost(guard: &Guard<Unfenced>) {
    let lost = guard.lost();
    tokio::time::timeout(DEADLINE, lost.cancelled()).await.expect("the holder hears of the loss");
}
