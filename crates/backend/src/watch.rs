//! Watches: locks as they change.

use tokio::sync::mpsc::Receiver;

use crate::error::BackendError;
use crate::info::LockInfo;

/// An event of a watch. The order is: the locks in use, [`WatchEvent::Synced`], then every change.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A lock that was in use when the watch began.
    State(LockInfo),
    /// The state is complete; changes follow.
    Synced,
    /// A lock's state after a change; without holders the lock is free.
    Changed(LockInfo),
}

/// A watch of the locks at and below a name. Ends when it is dropped.
#[derive(Debug)]
#[must_use = "a watch ends when it is dropped"]
pub struct Watch {
    events: Receiver<Result<WatchEvent, BackendError>>,
}

impl Watch {
    /// A watch whose events arrive by this channel. It may be bounded: a slow reader may miss intermediate
    /// states of a lock, never its last one.
    pub fn new(events: Receiver<Result<WatchEvent, BackendError>>) -> Self {
        Self { events }
    }

    /// The next event. After an error or `None` nothing follows: start a new watch, which sends the state
    /// again. A slow reader may miss intermediate states, never the last one.
    pub async fn next(&mut self) -> Option<Result<WatchEvent, BackendError>> {
        self.events.recv().await
    }
}
