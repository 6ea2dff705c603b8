//! What a round needs of one server, and what it says to all of them in the same words.

use std::sync::{Arc, OnceLock};

use lockkeeper_core::End;

use super::limit::RoundLimit;
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, Renewed, Tried, Wakes};
use crate::backends::redis::{Opening, Written};

/// One of the servers.
pub(super) struct Node<S> {
    /// As the URL names it, for people.
    pub(super) name: String,
    pub(super) store: Arc<S>,
    /// Where it tells that it may be an entry's turn there.
    pub(super) wakes: Wakes,
}

/// A [`Store`](crate::backends::leased::Store) as one of several that are asked the same. Its calls are no boxes, so that
/// those of a round are one piece of memory; each answers or fails once the round's time is over.
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

    /// What the latest call without an answer failed of, for people.
    fn trouble(&self) -> Option<String>;
}

/// What a node is asked to hold. Whoever sends it first writes it down for the others.
pub(super) struct TryLetter {
    pub(super) attempt: Attempt,
    pub(super) written: OnceLock<Opening>,
}

impl TryLetter {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt, written: OnceLock::new() }
    }
}

/// What a node is asked to take back.
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
