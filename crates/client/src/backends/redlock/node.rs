//! Interface of a round to one server, and the encoded calls that all servers share.

use std::sync::{Arc, OnceLock};

use lockkeeper_core::End;

use super::limit::RoundLimit;
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, Renewed, Tried, Wakes};
use crate::backends::redis::{Opening, Written};

/// One of the servers.
pub(super) struct Node<S> {
    /// As the URL names it, for display.
    pub(super) name: String,
    pub(super) store: Arc<S>,
    /// The listener for its wake-ups.
    pub(super) wakes: Wakes,
}

/// A [`Store`](crate::backends::leased::Store) as one of several that get the same calls. Its futures are not boxed,
/// so that each call of a round needs one buffer only (`carry`). Each call ends once the round's time is over.
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

/// An attempt. The node that sends it first encodes it for all.
pub(super) struct TryLetter {
    pub(super) attempt: Attempt,
    pub(super) written: OnceLock<Opening>,
}

impl TryLetter {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt, written: OnceLock::new() }
    }
}

/// A take-back. The node that sends it first encodes it for all.
pub(super) struct EndLetter {
    pub(super) entry: Arc<Entry>,
    pub(super) doubt: bool,
    pub(super) written: OnceLock<Written>,
}

impl EndLetter {
    pub(super) fn new(entry: Arc<Entry>, doubt: bool) -> Self {
        Self { entry, doubt, written: OnceLock::new() }
    }
}
