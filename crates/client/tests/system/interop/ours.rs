//! Lockkeeper's side of the scenarios: a waiter that is known to be queued, and a holder that can be killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::{AcquireError, Guard, Locks, Unfenced};
use tokio::task::JoinHandle;

/// Environment variable that makes a copy of this test binary hold a lock until it is killed: `url name
/// ttl_ms`.
const HOLD: &str = "LOCKKEEPER_INTEROP_HOLD";

/// Only bounds the duration of a failing test.
const COMES_WITHIN: Duration = Duration::from_secs(30);

/// An acquire that waits.
pub(crate) struct Waiter(JoinHandle<Result<Guard<Unfenced>, AcquireError>>);

impl Waiter {
    /// Starts waiting for a lock that is not free. Returns once the request is queued.
    pub(crate) async fn start(locks: &Locks, name: &str, ttl: Duration) -> Self {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let lock = locks.mutex(name).ttl(ttl).on_queued(move |ahead| {
            // Fails if this closure is called again after the receiver was dropped.
            let _ = tell.send(ahead);
        });
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let queued = tokio::time::timeout(COMES_WITHIN, told.recv()).await;
        assert!(queued.is_ok_and(|ahead| ahead.is_some()), "our acquire of {name} does not wait");
        Self(waiter)
    }

    /// Waits for the grant.
    pub(crate) async fn granted(self) -> Guard<Unfenced> {
        let granted = tokio::time::timeout(COMES_WITHIN, self.0).await;
        granted.expect("the lock is free, so our waiter gets it").unwrap().unwrap()
    }
}

/// A process that holds a lock through Lockkeeper's library. Killed when dropped.
pub(crate) struct Holder(Child);

impl Holder {
    /// Starts the process. Returns once it holds the lock.
    pub(crate) fn start(url: &str, name: &str, ttl: Duration) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "interop::ours::the_process_that_is_killed", "--nocapture"])
            .env(HOLD, format!("{url} {name} {}", ttl.as_millis()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let holder = Self(child);
        assert!(lines.any(|line| line.unwrap().ends_with("holding")), "the holder ended without holding");
        holder
    }

    /// Ends the process by `kill -9`.
    pub(crate) fn crash(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already, and a panic may be in progress.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Main function of the process that is killed; does nothing unless `HOLD` is set.
#[test]
fn the_process_that_is_killed() {
    let Ok(order) = std::env::var(HOLD) else { return };
    let [url, name, ttl_ms] = order.split(' ').collect::<Vec<_>>()[..] else {
        panic!("`{order}` is not an order")
    };
    let ttl = Duration::from_millis(ttl_ms.parse().unwrap());
    let locks = lockkeeper::blocking::Locks::connect(url).unwrap();
    let _held = locks.mutex(name).ttl(ttl).acquire().unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "holding").and_then(|()| out.flush()).unwrap();
    loop {
        std::thread::park();
    }
}
