//! Elections: one leader among the clients that campaign under a name.

use std::fmt;
use std::sync::Arc;

use lockkeeper_backend::{Backend, BackendError, HolderInfo, HolderState, LockInfo};
use lockkeeper_core::{LockName, ModeKind, NameError, Token};

use super::follow::{FeedEvent, Followed, LockFeed};
use crate::error::AcquireError;
use crate::guard::Guard;
use crate::kind::{Kind, Unfenced};
use crate::lock::Lock;

/// An election: at most one of the clients that campaign under its name leads.
///
/// It is a lock of that name, and leadership is its exclusive hold: a [`Guard`], with a token where the lock
/// service has them. The loss of leadership is signalled ([`Guard::lost`]) before another can lead (P5), and
/// [`Guard::release`] resigns. The leader proclaims a value, for example its address, which observers read:
/// where the lock service keeps values ([`Capabilities::values`]).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = lockkeeper::Locks::connect("memory:").await?;
/// let election = locks.election("shop/scheduler");
/// let mut observed = election.observe();
/// assert_eq!(observed.next().await?, None);
///
/// let leadership = election.campaign("10.0.0.7:80").await?;
/// let leader = observed.next().await?.expect("somebody leads");
/// assert_eq!(leader.value, b"10.0.0.7:80");
///
/// leadership.set_value("10.0.0.7:81").await?; // another proclamation
/// leadership.release().await?;
/// # Ok(()) }
/// ```
///
/// [`Capabilities::values`]: crate::Capabilities::values
#[derive(Clone)]
#[must_use = "an election does nothing until somebody campaigns"]
pub struct Election<F: Kind = Unfenced> {
    backend: Arc<dyn Backend>,
    name: Result<LockName, NameError>,
    lock: Lock<F>,
}

/// The leader of an election, as returned to observers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The token of its leadership; `None` if the lock service issues none. Resources that check tokens can
    /// refuse an earlier leader.
    pub token: Option<Token>,
    /// Its label.
    pub label: String,
    /// The value proclaimed last; empty before the first.
    pub value: Vec<u8>,
}

impl<F: Kind> Election<F> {
    pub(crate) fn new(backend: Arc<dyn Backend>, name: Result<LockName, NameError>, lock: Lock<F>) -> Self {
        Self { backend, name, lock }
    }

    /// Sets options of the lock: its ttl, how long to wait, ….
    pub fn with(self, change: impl FnOnce(Lock<F>) -> Lock<F>) -> Self {
        Self { lock: change(self.lock), ..self }
    }

    /// Waits to be elected, as configured by [`Lock::wait`]. Candidates lead one after the other; in the
    /// order of their campaigns where the lock service is fair. `value` is proclaimed with the election, so
    /// observers never see the new leader without it. Must be empty where the lock service has no values.
    ///
    /// Cancel-safe: if the future is dropped at any await point, the client ends the candidature or the
    /// leadership in the background.
    ///
    /// # Errors
    /// [`AcquireError`].
    pub async fn campaign(&self, value: impl Into<Vec<u8>>) -> Result<Guard<F>, AcquireError> {
        self.lock.clone().value(value).acquire().await
    }

    /// The present leader. The answer may be outdated on arrival.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn leader(&self) -> Result<Option<Leader>, BackendError> {
        Ok(leader(self.backend.inspect(self.name.clone()?).await?))
    }

    /// Observes the leader. Several leaders in short succession may be seen as one change.
    pub fn observe(&self) -> LeaderWatch {
        let feed = |name| LockFeed::new(self.backend.clone(), Followed::One(name));
        LeaderWatch { feed: self.name.clone().map(feed), last: None }
    }
}

impl<F: Kind> fmt::Debug for Election<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// The leaders of an election, one after the other ([`Election::observe`]).
#[must_use = "it tells nothing unless it is asked"]
pub struct LeaderWatch {
    feed: Result<LockFeed, NameError>,
    /// The leader returned last.
    last: Option<Option<Leader>>,
}

impl LeaderWatch {
    /// The leader, or `None` if nobody leads. The first call returns the present leader; each later call
    /// waits until the leader or its value changes. A lock service without watches is polled once a second.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`BackendError`]: the leader is unknown. The next call returns the leader even if it is the same as
    /// before.
    pub async fn next(&mut self) -> Result<Option<Leader>, BackendError> {
        let feed = self.feed.as_mut().map_err(|error| error.clone())?;
        loop {
            // After an error the present leader is returned again.
            let seen = match feed.next().await.inspect_err(|_| self.last = None)? {
                FeedEvent::All(mut locks) => locks.pop().and_then(leader),
                FeedEvent::Changed(lock) => leader(lock),
            };
            if self.last.as_ref() != Some(&seen) {
                self.last = Some(seen.clone());
                return Ok(seen);
            }
        }
    }
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderWatch").field("last", &self.last).finish_non_exhaustive()
    }
}

/// The leader, if the lock is held. A closed lock has none.
fn leader(lock: LockInfo) -> Option<Leader> {
    let leads = |holder: &HolderInfo| {
        holder.mode == ModeKind::Exclusive && !matches!(holder.state, HolderState::Closed { .. })
    };
    let holder = lock.holds.into_iter().find(leads)?;
    Some(Leader { token: holder.token, label: holder.label, value: holder.value })
}
