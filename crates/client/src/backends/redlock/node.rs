//! Interface of a round to one server, and the encoded calls that all servers share.

use std::sync::Arc;

use lockkeeper_core::End;

use super::limit::RoundLimit;
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, Renewed, Tried, Wakes};

/// One of the servers.
pub(super) struct Node<S> {
    /// As the URL names it, for display.
    pub(super) name: String,
    pub(super) store: Arc<S>,
    /// The listener for its wake-ups.
    pub(super) wakes: Wakes,
}

/// Like [`Store`](crate::backends::leased::Store), for one of several servers that all get the same call (together: a
/// round). The futures are not boxed: the module `carry` stores each in a pooled buffer, and a box would be a second
/// allocation. Each call ends once the round's time is over.
pub(super) trait NodeStore: Send + Sync + 'static {
    fn attempt(
        &self,
        letter: &TryLetter,
        limit: &RoundLimit,
    ) -> impl Future<Output = Result<Tried, CallError>> + Send;

    fn finish(
        &self,
        letter: &EndLetter,
        limit: &RoundLimit,
    ) -> impl Future<Output = Result<End, CallError>> + Send;

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>>;

    /// The latest cause of a call without an answer, for display.
    fn trouble(&self) -> Option<String>;
}

/// An attempt.
pub(super) struct TryLetter {
    pub(super) attempt: Attempt,
}

impl TryLetter {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt }
    }
}

/// A call that removes an entry, after its hold has ended or its attempt has failed.
pub(super) struct EndLetter {
    pub(super) entry: Arc<Entry>,
    pub(super) doubt: bool,
}

impl EndLetter {
    pub(super) fn new(entry: Arc<Entry>, doubt: bool) -> Self {
        Self { entry, doubt }
    }
}
