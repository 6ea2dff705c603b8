//! Elections: one leader among the clients that campaign under a name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockName, ModeKind, NameError, Token};
use tokio::time::{Instant, sleep_until};

use crate::backend::Backend;
use crate::error::{AcquireError, BackendError, BackendErrorKind};
use crate::guard::Guard;
use crate::info::{HolderInfo, HolderState, LockInfo};
use crate::kind::{Kind, Unfenced};
use crate::lock::Lock;
use crate::watch::{Watch, WatchEvent};

/// How often a leader is looked for where the lock service has no watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before a watch that has ended is begun again.
const PAUSE: Duration = Duration::from_millis(200);

/// An election: at most one of those who campaign under its name leads.
///
/// It is a lock of that name, and leadership is its exclusive hold: a [`Guard`], with a token where the lock service has them. The
/// loss of leadership is signalled ([`Guard::lost`]) before another can lead (P5), and [`Guard::release`] resigns. The leader
/// proclaims a value, for example its address, which observers read: where the lock service keeps values ([`Capabilities::values`]).
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

/// The leader of an election, as observers see it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The token of its leadership; `None` if the lock service issues none. Resources that know it can refuse an earlier leader.
    pub token: Option<Token>,
    /// Its label.
    pub owner: String,
    /// What it has proclaimed last; empty if nothing.
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

    /// Waits to be elected, as configured by [`Lock::wait`]: those who campaign lead one after the other, in the order in which they
    /// began where the lock service is fair. `value` is proclaimed with the election; observers never see the new leader without it.
    /// Campaign without a value where the lock service keeps none.
    ///
    /// Cancel-safe: if the future is dropped at any await point, the client ends the candidature or the leadership in the
    /// background.
    ///
    /// # Errors
    /// [`AcquireError`].
    pub async fn campaign(&self, value: impl Into<Vec<u8>>) -> Result<Guard<F>, AcquireError> {
        self.lock.clone().value(value).acquire().await
    }

    /// The present leader. It may have lost the election by the time of the answer.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn leader(&self) -> Result<Option<Leader>, BackendError> {
        Ok(leader(self.backend.inspect(self.name.clone()?).await?))
    }

    /// Observes the leader. Several leaders in short succession may be seen as one change.
    pub fn observe(&self) -> LeaderWatch {
        LeaderWatch {
            backend: self.backend.clone(),
            name: self.name.clone(),
            source: Source::Begin(Instant::now()),
            last: None,
        }
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
    backend: Arc<dyn Backend>,
    name: Result<LockName, NameError>,
    source: Source,
    /// What was returned last.
    last: Option<Option<Leader>>,
}

enum Source {
    /// A watch is to be begun.
    Begin(Instant),
    Watch {
        watch: Watch,
        /// The lock was among those that the watch has sent.
        is_told: bool,
    },
    /// The lock service has no watches: look at this time.
    Look(Instant),
}

impl LeaderWatch {
    /// The leader, or `None` if nobody leads: at first the present one, then each time once it is another one, or has
    /// proclaimed another value. Where the lock service has no watches, it is asked once a second.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`BackendError`]: for now it is not known who leads. The next call observes again.
    pub async fn next(&mut self) -> Result<Option<Leader>, BackendError> {
        let name = self.name.clone()?;
        loop {
            let seen = self
                .look(&name)
                .await
                .inspect_err(|_| self.source = Source::Begin(Instant::now() + PAUSE))?;
            if let Some(seen) = seen.filter(|seen| self.last.as_ref() != Some(seen)) {
                self.last = Some(seen.clone());
                return Ok(seen);
            }
        }
    }

    /// Takes one step of the source. `None` if that says nothing about the lock.
    async fn look(&mut self, name: &LockName) -> Result<Option<Option<Leader>>, BackendError> {
        match &mut self.source {
            Source::Begin(at) => {
                sleep_until(*at).await;
                self.source = match self.backend.watch(Some(name.clone())) {
                    Ok(watch) => Source::Watch { watch, is_told: false },
                    Err(error) if error.kind == BackendErrorKind::Unsupported => Source::Look(Instant::now()),
                    Err(error) => return Err(error),
                };
                Ok(None)
            }
            Source::Watch { watch, is_told } => match watch.next().await {
                Some(Ok(WatchEvent::State(lock) | WatchEvent::Changed(lock))) if lock.name == *name => {
                    *is_told = true;
                    Ok(Some(leader(lock)))
                }
                Some(Ok(WatchEvent::Synced)) if !*is_told => Ok(Some(None)),
                Some(Ok(_)) => Ok(None),
                Some(Err(error)) => Err(error),
                None => Err(BackendError::new(BackendErrorKind::Unreachable, "the watch has ended")),
            },
            Source::Look(at) => {
                sleep_until(*at).await;
                let lock = self.backend.inspect(name.clone()).await?;
                self.source = Source::Look(Instant::now() + LOOK_EVERY);
                Ok(Some(leader(lock)))
            }
        }
    }
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderWatch")
            .field("name", &self.name)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// The leader, if the lock is held. A closed lock has none.
fn leader(lock: LockInfo) -> Option<Leader> {
    let leads = |holder: &HolderInfo| {
        holder.mode == ModeKind::Exclusive && !matches!(holder.state, HolderState::Closed { .. })
    };
    let holder = lock.holders.into_iter().find(leads)?;
    Some(Leader { token: holder.token, owner: holder.owner, value: holder.value })
}
