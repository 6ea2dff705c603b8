//! The operations on a backend that the suite needs.

use std::time::Duration;

use lockkeeper::{AcquireError, BackendErrorKind, Guard, HolderInfo, HolderState, Lock, Locks};
use lockkeeper_rig::{Faults, ServiceRefusal};
use tokio::task::JoinHandle;

/// A backend under test. A fault that does not exist for every backend is injected by a method that returns
/// whether callers of this one can notice the fault.
#[expect(async_fn_in_trait, reason = "its futures are polled where they are made")]
pub trait Subject: Sync {
    /// The URL scheme.
    fn scheme(&self) -> &'static str;

    /// The ttl of holds for [`Subject::take_away`], if it waits until they expire: short, to keep the suite
    /// fast.
    fn ttl(&self) -> Option<Duration> {
        None
    }

    /// Whether waiters leave a trace at the service.
    fn shows_waiters(&self) -> bool {
        true
    }

    /// Opens a separate client, whose holds exclude those of the others.
    async fn client(&self, label: &str) -> Locks;

    /// A client without faults in between.
    async fn operator(&self) -> Locks {
        self.client("operator").await
    }

    /// Creates a client that holds `name` with these options, and then ends it like a crashed process,
    /// without a release. Returns once the service can have ended the hold. The options of abilities that
    /// are not declared are left out.
    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let label = format!("crashes with {name}");
        let client = self.client(&label).await;
        let mut lock = client.mutex(name).ttl(Duration::from_secs(2));
        if client.capabilities().keep_closed {
            lock = lock.keep_closed(keep_closed);
        }
        if client.capabilities().lock_delay {
            lock = lock.lock_delay(lock_delay);
        }
        let held = lock.acquire().await.unwrap();
        self.take_away(&label, name).await;
        drop(held);
    }

    /// Makes the client `label` lose its hold of `name`: by cutting it off until the hold expires or its
    /// connection is terminated, or by an operator's break, to which it responds. May return before the lock
    /// is free.
    async fn take_away(&self, label: &str, name: &str) {
        assert!(self.cut_off(label), "{}: no network is in between", self.scheme());
        let operator = self.operator().await;
        until("the hold has expired", async || {
            let holders = operator.inspect(name).await.unwrap().holds;
            let is_closed = |holder: &HolderInfo| matches!(holder.state, HolderState::Closed { .. });
            holders.iter().all(is_closed).then_some(())
        })
        .await;
    }

    /// The proxies between clients and the service, if there are any.
    fn faults(&self) -> Option<&Faults> {
        None
    }

    /// Blocks all traffic of this client. `false`: there is no network in between.
    fn cut_off(&self, label: &str) -> bool {
        self.faults().map(|faults| faults.cut_off(label)).is_some()
    }

    /// Loses the answers to the next calls. `false`: there is no network in between.
    fn lose_answers(&self, count: u32) -> bool {
        self.faults().map(|faults| faults.lose_answers(count)).is_some()
    }

    /// Loses the next calls. `false`: there is no network in between, or the client resends lost calls
    /// unnoticed.
    fn lose_calls(&self, count: u32) -> bool {
        self.faults().map(|faults| faults.lose_calls(count)).is_some()
    }

    /// Holds back the next attempt to acquire `name`, or its commit at the service, until
    /// [`Subject::let_go`], while keep-alives are acknowledged. `false`: a keep-alive cannot overtake an
    /// attempt here, or there are no keep-alives.
    fn hold_back(&self, _name: &str) -> bool {
        false
    }

    /// Whether an attempt is held back.
    fn is_held_back(&self) -> bool {
        self.faults().is_some_and(|faults| faults.held_back() > 0)
    }

    /// Lets the attempt proceed.
    fn let_go(&self) {
        self.faults().inspect(|faults| faults.let_go());
    }

    /// Opens a client with one address for each label, whose proxy has that label.
    async fn client_through(&self, _labels: &[&str]) -> Locks {
        panic!("{} has one address", self.scheme())
    }

    /// The errors with which the service refuses for a while, and their kinds. Those of kind `Unreachable`
    /// pass by themselves.
    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        &[]
    }

    /// The service refuses requests with this error until [`Subject::stop_refusing`].
    fn refuse(&self, refusal: ServiceRefusal) {
        self.faults().inspect(|faults| faults.refuse(refusal));
    }

    fn stop_refusing(&self) {
        self.faults().inspect(|faults| faults.stop_refusing());
    }

    /// The number of requests refused.
    fn refused(&self) -> usize {
        self.faults().map_or(0, Faults::refused)
    }

    /// Stalls the service for this duration. `false`: there is no service.
    fn stall(&self, duration: Duration) -> bool;

    /// Waits for this duration, or advances virtual time by it.
    async fn pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Restarts the service with its durable state.
    async fn restart(&self);

    /// Deletes the service's durable state and restarts it.
    async fn wipe(&self);
}

/// Waits for a condition; the deadline only makes a failure visible.
pub async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "waited for 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a lock has `count` waiters.
pub async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    until(&format!("{count} waiters of {name}"), async || {
        (locks.inspect(name).await.unwrap().waiter_count == count).then_some(())
    })
    .await;
}

/// Starts to acquire a lock that is held. Returns once the client knows that its request waits: a request
/// that the service has, and whose answer the client has not, is in doubt and may end (P12).
///
/// # Panics
/// If the request ends instead, or is not told its place within 30 s.
pub async fn start_waiting(lock: Lock) -> JoinHandle<Result<Guard, AcquireError>> {
    let (told_in, mut told) = tokio::sync::mpsc::unbounded_channel();
    let lock = lock.on_queued(move |position| {
        // Fails once the test has gone on.
        let _ = told_in.send(position);
    });
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    let waits = tokio::time::timeout(Duration::from_secs(30), told.recv()).await;
    waits.expect("a place in the queue within 30 s").expect("the request waits");
    acquiring
}
