//! What the suite must be able to do with a backend from outside.

use std::time::Duration;

use lockkeeper::Locks;

use crate::proxy::Faults;

/// A backend under test. Every method that causes a fault says whether that fault exists here at all.
pub(crate) trait Subject: Sync {
    /// The URL scheme.
    fn scheme(&self) -> &'static str;

    /// The page in docs/backends/, and the column of its tables that speaks of this subject.
    fn page(&self) -> (&'static str, usize) {
        (self.scheme(), 1)
    }

    /// The ttl of holds that are to be taken away, where that takes one: short, so that the suite is.
    fn ttl(&self) -> Option<Duration> {
        None
    }

    /// A client of its own, which excludes the others.
    async fn client(&self, label: &str) -> Locks;

    /// Makes a client that holds `name` with these options, and then vanishes as a crashed process does. Returns when
    /// the service can have noticed.
    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration);

    /// Takes a lock away from a holder that has stopped listening, by the strongest means there is.
    async fn take_away(&self, label: &str, name: &str);

    /// What lies between clients and the service, where something does.
    fn faults(&self) -> Option<&Faults> {
        None
    }

    /// From now on nothing of this client reaches the service. `false`: nothing lies between them.
    fn cut_off(&self, label: &str) -> bool {
        self.faults().map(|faults| faults.cut_off(label)).is_some()
    }

    /// The answers to the next calls are lost. `false`: nothing lies between.
    fn lose_answers(&self, count: u32) -> bool {
        self.faults().map(|faults| faults.lose_answers(count)).is_some()
    }

    /// The next calls are lost.
    fn lose_calls(&self, count: u32) -> bool {
        self.faults().map(|faults| faults.lose_calls(count)).is_some()
    }

    /// The next attempt to hold `name` is not confirmed before [`Subject::let_go`], while keep-alives are. `false`: an
    /// attempt can't be overtaken here, or nothing is kept alive.
    fn hold_back(&self, _name: &str) -> bool {
        false
    }

    /// Whether an attempt is held back.
    fn is_held_back(&self) -> bool {
        self.faults().is_some_and(|faults| faults.held_back() > 0)
    }

    /// Lets the held attempt go on.
    fn let_go(&self) {
        self.faults().inspect(|faults| faults.let_go());
    }

    /// The service stands still for so long. `false`: there is no service.
    fn stall(&self, duration: Duration) -> bool;

    /// Lets time pass.
    async fn pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// The service starts anew, with whatever it keeps.
    async fn restart(&self);

    /// What the service keeps is deleted, and it starts anew.
    async fn wipe(&self);
}

/// Waits for a condition, with a deadline that is only there so that a failure ends.
pub(crate) async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "waited for 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until so many wait for a lock.
pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    let name = name.parse().unwrap();
    until(&format!("{count} waiters of {name}"), async || {
        (locks.inspect(&name).await.unwrap().waiter_count == count).then_some(())
    })
    .await;
}
