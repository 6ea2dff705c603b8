//! Locks as they change, for people and tools that look on.

use tokio::sync::mpsc::Receiver;

use crate::error::BackendError;
use crate::info::LockInfo;

/// What a watch tells, in this order: the locks in use, [`WatchEvent::Synced`], then every change.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A lock that was in use when the watch began.
    State(LockInfo),
    /// That was the state; changes follow.
    Synced,
    /// A lock as it stands after a change; without holders it is free.
    Changed(LockInfo),
}

/// A watch of the locks at and below a name ([`Locks::watch`](crate::Locks::watch)). Ends when it is dropped.
#[derive(Debug)]
#[must_use = "a watch ends when it is dropped"]
pub struct Watch {
    events: Receiver<Result<WatchEvent, BackendError>>,
}

impl Watch {
    #[cfg_attr(not(feature = "service"), allow(dead_code, reason = "only our own service can watch"))]
    pub(crate) fn new(events: Receiver<Result<WatchEvent, BackendError>>) -> Self {
        Self { events }
    }

    /// The next event. After an error, and after `None`, nothing follows: watch again, and the state comes anew.
    /// Whoever reads too slowly may miss states in between, never the last one.
    pub async fn next(&mut self) -> Option<Result<WatchEvent, BackendError>> {
        self.events.recv().await
    }
}
