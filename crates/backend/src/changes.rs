//! Watches for lock services that say which lock has changed, but not how: each message is followed by an
//! inspection.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_core::LockName;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Sender, channel};

use crate::backend::BoxFuture;
use crate::error::{BackendError, BackendErrorKind};
use crate::info::LockInfo;
use crate::io::LeaseThread;
use crate::watch::{Watch, WatchEvent};

/// The locks that have changed since they were last inspected: at most one entry for each lock, however often
/// it changes.
#[derive(Clone)]
pub struct ChangedLocks(Arc<Changed>);

struct Changed {
    names: Mutex<BTreeSet<LockName>>,
    prefix: Option<LockName>,
    more: Notify,
}

impl ChangedLocks {
    /// Adds a lock, if the watch is for it.
    pub fn add(&self, name: LockName) {
        if self.0.prefix.as_ref().is_none_or(|prefix| *prefix == name || prefix.is_above(name.as_str())) {
            self.0.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
            self.0.more.notify_one();
        }
    }

    async fn next(&self) -> BTreeSet<LockName> {
        loop {
            let names = std::mem::take(&mut *self.0.names.lock().unwrap_or_else(PoisonError::into_inner));
            if !names.is_empty() {
                return names;
            }
            self.0.more.notified().await;
        }
    }
}

/// Watches the locks at and below `prefix`. `open` begins to follow the service's messages; once it has
/// begun, the future that it returns follows them until they end, and adds each changed lock. Then `list` and
/// `inspect` are called.
pub fn watch_by_inspection<O, M>(
    thread: &LeaseThread,
    prefix: Option<LockName>,
    open: impl FnOnce(ChangedLocks) -> O + Send + 'static,
    list: BoxFuture<'static, Result<Vec<LockInfo>, BackendError>>,
    inspect: impl Fn(LockName) -> BoxFuture<'static, Result<LockInfo, BackendError>> + Send + Sync + 'static,
) -> Watch
where
    O: Future<Output = Result<M, BackendError>> + Send + 'static,
    M: Future<Output = ()> + Send + 'static,
{
    let (events, receiver) = channel(1);
    let changed = ChangedLocks(Arc::new(Changed { names: Mutex::default(), prefix, more: Notify::new() }));
    thread.run(Box::pin(async move {
        let following = async {
            let messages = open(changed.clone()).await?;
            tokio::select! {
                told = tell(list, &inspect, &changed, &events) => told,
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
async fn tell(
    list: BoxFuture<'static, Result<Vec<LockInfo>, BackendError>>,
    inspect: &(impl Fn(LockName) -> BoxFuture<'static, Result<LockInfo, BackendError>> + Sync),
    changed: &ChangedLocks,
    events: &Sender<Result<WatchEvent, BackendError>>,
) -> Result<(), BackendError> {
    // If the receiver was dropped, the whole watch ends.
    for lock in list.await? {
        let _ = events.send(Ok(WatchEvent::State(lock))).await;
    }
    let _ = events.send(Ok(WatchEvent::Synced)).await;
    loop {
        for name in changed.next().await {
            let lock = inspect(name).await?;
            let _ = events.send(Ok(WatchEvent::Changed(lock))).await;
        }
    }
}
