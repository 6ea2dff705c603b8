//! Changes of the locks of a recipe: by a watch where the lock service has one, otherwise by polling once a
//! second.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{Backend, BackendError, BackendErrorKind, BoxFuture, LockInfo, Watch, WatchEvent};
use lockkeeper_core::LockName;
use tokio::time::{Instant, sleep_until};

/// Polling interval for a lock service without watches.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// The pause before a watch that has ended is restarted.
const PAUSE: Duration = Duration::from_millis(200);

/// Which locks are followed.
#[derive(Clone, Debug)]
pub(super) enum Followed {
    /// This one.
    One(LockName),
    /// Those at and below this name.
    Below(LockName),
}

/// Follows locks.
pub(super) struct LockFeed {
    backend: Arc<dyn Backend>,
    followed: Followed,
    source: Source,
}

enum Source {
    /// Start a watch at this time.
    Begin(Instant),
    Watch {
        watch: Watch,
        /// The locks received so far, until the initial state is complete.
        states: Option<Vec<LockInfo>>,
    },
    /// The lock service has no watches: the time of the next poll, and the poll in progress.
    Poll(Instant, Option<BoxFuture<'static, Result<Vec<LockInfo>, BackendError>>>),
}

/// An event of a feed.
pub(super) enum FeedEvent {
    /// All locks in use.
    All(Vec<LockInfo>),
    /// A lock that has changed.
    Changed(LockInfo),
}

impl LockFeed {
    pub(super) fn new(backend: Arc<dyn Backend>, followed: Followed) -> Self {
        Self { backend, followed, source: Source::Begin(Instant::now()) }
    }

    /// The locks, then each change; all locks again after an interruption, and where the lock service has no
    /// watches. Cancel-safe.
    ///
    /// # Errors
    /// [`BackendError`]: the state of the locks is unknown. The next call reads it again.
    pub(super) async fn next(&mut self) -> Result<FeedEvent, BackendError> {
        loop {
            match self.step().await {
                Ok(None) => {}
                Ok(Some(seen)) => return Ok(seen),
                Err(error) => {
                    self.source = Source::Begin(Instant::now() + PAUSE);
                    return Err(error);
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<FeedEvent>, BackendError> {
        let (Followed::One(name) | Followed::Below(name)) = &self.followed;
        let is_followed = |lock: &LockInfo| match &self.followed {
            Followed::One(name) => lock.name == *name,
            Followed::Below(_) => true,
        };
        match &mut self.source {
            Source::Begin(at) => {
                sleep_until(*at).await;
                self.source = match self.backend.watch(Some(name.clone())) {
                    Ok(watch) => Source::Watch { watch, states: Some(Vec::new()) },
                    Err(error) if error.kind == BackendErrorKind::Unsupported => {
                        Source::Poll(Instant::now(), None)
                    }
                    Err(error) => return Err(error),
                };
                Ok(None)
            }
            Source::Watch { watch, states } => match watch.next().await {
                Some(Ok(WatchEvent::State(lock))) => {
                    if let Some(states) = states
                        && is_followed(&lock)
                    {
                        states.push(lock);
                    }
                    Ok(None)
                }
                Some(Ok(WatchEvent::Synced)) => Ok(states.take().map(FeedEvent::All)),
                Some(Ok(WatchEvent::Changed(lock))) => {
                    Ok(Some(lock).filter(is_followed).map(FeedEvent::Changed))
                }
                // A kind of event that is newer than this code.
                Some(Ok(_)) => Ok(None),
                Some(Err(error)) => Err(error),
                None => Err(BackendError::new(BackendErrorKind::Unreachable, "the watch has ended")),
            },
            Source::Poll(at, asking) => {
                sleep_until(*at).await;
                // Kept across calls, since a caller that gives up early must not restart a slow poll each
                // time.
                let asking = asking.get_or_insert_with(|| {
                    let (backend, followed) = (self.backend.clone(), self.followed.clone());
                    Box::pin(async move {
                        match followed {
                            Followed::One(name) => Ok(vec![backend.inspect(name).await?]),
                            Followed::Below(name) => backend.list(Some(name)).await,
                        }
                    })
                });
                let locks = asking.await?;
                self.source = Source::Poll(Instant::now() + POLL_EVERY, None);
                Ok(Some(FeedEvent::All(locks)))
            }
        }
    }
}
