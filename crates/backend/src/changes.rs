//! Watches for lock services that report which lock has changed, but not its new state: each message triggers
//! an inspection.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_core::LockName;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Sender, channel};

use crate::box_future::BoxFuture;
use crate::error::{BackendError, BackendErrorKind};
use crate::info::LockInfo;
use crate::io::LeaseThread;
use crate::watch::{Watch, WatchEvent};

/// A lock service that reports which lock has changed, and whose locks can be inspected.
pub trait ReportsChanges: Send + Sync + 'static {
    /// Begins to follow the service's messages. The inner future follows them until they end, and adds each
    /// changed lock.
    fn follow<'a>(
        &'a self,
        changed: &'a ChangedLocks,
    ) -> BoxFuture<'a, Result<BoxFuture<'a, ()>, BackendError>>;

    /// All locks in use at or below `prefix`, by name.
    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>>;

    /// The holders and the waiters of a lock.
    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>>;
}

/// The locks that have changed since they were last inspected: at most one entry for each lock, however often
/// it changes.
pub struct ChangedLocks {
    prefix: Option<LockName>,
    names: Mutex<BTreeSet<LockName>>,
    more: Notify,
}

impl ChangedLocks {
    /// The watch is for the locks at and below this name; `None`: for all.
    pub fn prefix(&self) -> Option<&LockName> {
        self.prefix.as_ref()
    }

    /// Adds a lock, if the watch is for it.
    pub fn add(&self, name: LockName) {
        if self.prefix.as_ref().is_none_or(|prefix| *prefix == name || prefix.is_above(name.as_str())) {
            self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
            self.more.notify_one();
        }
    }

    async fn next(&self) -> BTreeSet<LockName> {
        loop {
            let names = std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner));
            if !names.is_empty() {
                return names;
            }
            self.more.notified().await;
        }
    }
}

/// Watches the locks at and below `prefix`: lists them once the service's messages are followed, then
/// inspects each changed one.
pub fn watch_by_inspection(
    thread: &LeaseThread,
    service: Arc<impl ReportsChanges>,
    prefix: Option<LockName>,
) -> Watch {
    let (events, receiver) = channel(1);
    thread.run(Box::pin(async move {
        let changed = ChangedLocks { prefix, names: Mutex::default(), more: Notify::new() };
        let following = async {
            let messages = service.follow(&changed).await?;
            tokio::select! {
                sent = send_events(&*service, &changed, &events) => sent,
                () = messages => Ok(()),
            }?;
            let what = "the lock service ended the watch; watch again";
            Err::<(), _>(BackendError::new(BackendErrorKind::Unreachable, what))
        };
        let ended = tokio::select! {
            ended = following => ended,
            () = events.closed() => return,
        };
        if let Err(error) = ended {
            // The receiver may have been dropped.
            let _ = events.send(Err(error)).await;
        }
    }));
    Watch::new(receiver)
}

/// Sends the present locks, and then each changed one.
async fn send_events(
    service: &impl ReportsChanges,
    changed: &ChangedLocks,
    events: &Sender<Result<WatchEvent, BackendError>>,
) -> Result<(), BackendError> {
    // If the receiver was dropped, the whole watch ends.
    for lock in service.list(changed.prefix.clone()).await? {
        let _ = events.send(Ok(WatchEvent::State(lock))).await;
    }
    let _ = events.send(Ok(WatchEvent::Synced)).await;
    loop {
        for name in changed.next().await {
            let lock = service.inspect(name).await?;
            let _ = events.send(Ok(WatchEvent::Changed(lock))).await;
        }
    }
}
