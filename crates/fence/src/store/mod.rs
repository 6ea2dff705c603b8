//! Marks of many resources, for fences whose resource can't store marks itself.
//!
//! Defines [`MarkStore`] and its two implementations. [`DurableMarks`] decides checks in memory, and returns
//! only when the marks are durable. One commit covers all checks that arrive while the previous commit is
//! under way, so concurrent sections share the cost of a sync. A check on marks that are durable already
//! needs none.
//!
//! [`DurableMarks`] keeps the marks in one file, for one process at a time; [`MemoryFence`] keeps them in
//! memory, for tests and for resources that don't survive a restart either.
//!
//! Reading order: `group_commit.rs` (which check waits for which commit; no disk), `disk.rs` (the file),
//! `durable.rs` (the thread that commits the batches to the file), `count.rs` (the bound on their number),
//! `error.rs`.

mod count;
mod disk;
mod durable;
mod error;
mod group_commit;

use std::future::{self, Future};

use lockkeeper_core::Token;

use crate::memory::MemoryFence;
use crate::resource::Resource;
use crate::rule::{Action, Marks, Pair, Passed, Section};
pub use count::MARKS_MAX_DEFAULT;
pub use durable::DurableMarks;
pub use error::MarksError;

/// Stores the marks of many resources, and checks against them.
///
/// The futures are cancel safe: a mark may have risen when a future is dropped, and the same token may be
/// checked again (after a `check_once` it may count as used).
pub trait MarkStore: Send + Sync + 'static {
    /// Checks as [`Marks::check`] does, and returns when the marks are as durable as this store makes them.
    /// Checks of one resource are serialized: two of them never pass on the same marks.
    ///
    /// # Errors
    /// [`MarksError::Refused`] if the rule refuses the section. After any other error the mark may have
    /// risen, and the section must not continue; it may check again.
    fn check(
        &self,
        resource: &Resource,
        action: Action,
        section: Section,
    ) -> impl Future<Output = Result<Passed, MarksError>> + Send;

    /// The current marks; the default ones if `resource` was never seen.
    ///
    /// # Errors
    /// The marks could not be read.
    fn marks(&self, resource: &Resource) -> impl Future<Output = Result<Marks, MarksError>> + Send;

    /// Sets all marks of `resource` to `to`, even if that lowers them. After that, all tokens from `to` on
    /// pass, even those that were stale before. Only for the move to a lock service whose tokens are lower,
    /// when no section under a token of the old service is running.
    ///
    /// # Errors
    /// The marks may not be durable.
    fn reset(&self, resource: &Resource, to: Token) -> impl Future<Output = Result<(), MarksError>> + Send;
}

/// The marks after [`MarkStore::reset`]: no slot has marks of its own.
pub(crate) fn reset_marks(to: Token) -> Marks {
    Marks { base: Pair { any: Some(to), writer: Some(to) }, ..Marks::default() }
}

impl MarkStore for MemoryFence {
    fn check(
        &self,
        resource: &Resource,
        action: Action,
        section: Section,
    ) -> impl Future<Output = Result<Passed, MarksError>> + Send {
        future::ready(self.change(resource.as_str(), |marks| Ok(marks.check(action, section)?)))
    }

    fn marks(&self, resource: &Resource) -> impl Future<Output = Result<Marks, MarksError>> + Send {
        future::ready(Ok(self.marks(resource.as_str())))
    }

    fn reset(&self, resource: &Resource, to: Token) -> impl Future<Output = Result<(), MarksError>> + Send {
        self.change(resource.as_str(), |marks| *marks = reset_marks(to));
        future::ready(Ok(()))
    }
}
