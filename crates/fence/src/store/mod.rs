//! Marks of many resources, for the fences that must keep their own: where the resource can't.
//!
//! Responsible for the words [`MarkStore`] and for the two stores. A check is answered from memory; a mark that rose
//! is durable before the answer. One commit makes the marks of all checks durable that came while the commit before
//! was under way, so many sections at once share the cost of a sync, and a mark that was seen before costs none.
//!
//! [`DurableMarks`] keeps them in one file, for one process at a time; [`MemoryFence`] in memory, for tests and for
//! what a restart forgets too.
//!
//! Reading order: `rounds.rs` (what is decided and what waits for which commit; no disk), `disk.rs` (the file),
//! `durable.rs` (the thread between them), `error.rs`.

mod disk;
mod durable;
mod error;
mod rounds;

use std::future::{self, Future};

use lockkeeper_core::Token;

use crate::memory::MemoryFence;
use crate::resource::Resource;
use crate::rule::{Action, Marks, Pair, Passed, Section};
pub use durable::DurableMarks;
pub use error::MarksError;

/// Keeps the marks of many resources, and checks against them.
///
/// A future may be dropped at any time: the mark may have risen then, which is harmless.
pub trait MarkStore: Send + Sync + 'static {
    /// Checks as [`Marks::check`] does, and answers when the marks are as durable as this store makes them. Two checks
    /// of one resource never pass on the same marks.
    ///
    /// # Errors
    /// [`MarksError::Refused`] is the rule's word. After any other error the mark may have risen, and the section must
    /// not go on; it may ask again.
    fn check(
        &self,
        resource: &Resource,
        action: Action,
        section: Section,
    ) -> impl Future<Output = Result<Passed, MarksError>> + Send;

    /// The marks as they are now; the default ones if `resource` was never seen.
    ///
    /// # Errors
    /// They could not be read.
    fn marks(&self, resource: &Resource) -> impl Future<Output = Result<Marks, MarksError>> + Send;

    /// Sets all marks of `resource` to `to`, also to a lower one. Lowering lets in every token from `to` on that was
    /// stale before: only for moving to a lock service whose tokens are lower, when no section of the old one is left.
    ///
    /// # Errors
    /// The marks may not be durable.
    fn reset(&self, resource: &Resource, to: Token) -> impl Future<Output = Result<(), MarksError>> + Send;
}

/// What [`MarkStore::reset`] leaves: every slot is that of the base.
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
