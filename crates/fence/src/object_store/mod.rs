//! Fences for objects in a store: S3, Azure Blob Storage and the other stores that the crate `object_store`
//! supports.
//!
//! Contains the public calls of [`ObjectFence`]; those of [`PointerFence`] are in `pointer`. The conditional
//! put and the detection of its outcome are in `change`, the bytes of an object in `record`, the checks of a
//! store in `probe`. The fence depends on no lock service and on no particular store: the caller supplies the
//! store.
//!
//! ```
//! # use std::sync::Arc;
//! # use lockkeeper_fence::{ObjectError, ObjectFence, Section, Token};
//! # async fn add(store: Arc<dyn object_store::ObjectStore>, token: Token) -> Result<(), ObjectError> {
//! let fence = ObjectFence::connect(store).await?; // once: checks that the store honours conditions
//! let section = Section::exclusive(token); // the token of the guard
//! let old = fence.enter("stock/42", section).await?.unwrap_or_default();
//! fence.write("stock/42", section, [&old[..], b"one more\n"].concat()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Two types, for small and for large content:
//! - [`ObjectFence`]: marks and content in one object, so that check and effect are one put. Every `enter`
//!   and every write reads and puts the whole object: for content up to [`CONTENT_BYTES_MAX`].
//! - [`PointerFence`]: the content is a separate object of any size, written once under a name never used
//!   before; a small fenced object points to it.
//!
//! Both require conditional puts: a put that takes effect only if the object is unchanged since the read
//! (If-Match), or does not exist (If-None-Match: *). [`ObjectFence::connect`] checks that the store rejects a
//! put whose condition does not hold, and refuses a store that doesn't. A mark is as durable as the store's
//! acknowledged puts; neither a killed process nor a lost response undoes it.
//!
//! Reads: S3, Azure and Google guarantee that a read returns the latest put. A check does not depend on that,
//! but the result of `read` does: with a store whose reads may lag, use the content that `enter` returns.
//!
//! The fence does not detect changes that bypass it: puts and deletes by other clients, a lifecycle rule of
//! the bucket, replication into the bucket. Removing an object removes its marks. Restrict write access to
//! users of the fence.

mod change;
mod error;
mod pointer;
mod probe;
mod record;

use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::Token;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::rule::{Action, Marks, Pair, Section};
use change::{Next, Objects, path_of};
pub use error::{ObjectError, Unfit};
pub use pointer::{Draft, PointerFence, Swept};
pub use probe::probe;
use record::{Holds, Record};

#[cfg(any(test, fuzzing))]
pub(crate) use record::{fuzz_record, fuzz_seed};

/// Most bytes of content of an [`ObjectFence`]: 8 MiB. An `enter` or a write transfers the content twice,
/// which should take well below a second.
pub const CONTENT_BYTES_MAX: u64 = 8 << 20;

/// Default limit of tries per call while other writers change the object. The pauses between that many tries
/// are about half a minute together.
pub const TRIES_DEFAULT: u32 = 64;

/// Fenced objects with their content; each object is a resource, named by its path. Any number of values and
/// processes may use the same store.
#[derive(Clone, Debug)]
pub struct ObjectFence {
    objects: Objects,
}

impl ObjectFence {
    /// A fence for the objects in `store`. First checks that the store rejects a put whose condition does not
    /// hold, with temporary objects below `.lockkeeper-probe/`. For a part of a bucket wrap the store in
    /// [`PrefixStore`](object_store::prefix::PrefixStore).
    ///
    /// The store's own timeouts and retries apply; each try of a call is one read and one put.
    ///
    /// # Errors
    /// [`ObjectError::Unfit`] if the store can't be fenced, with the reason. [`ObjectError::Store`].
    pub async fn connect(store: Arc<dyn ObjectStore>) -> Result<Self, ObjectError> {
        probe(store.as_ref(), &Path::default()).await?;
        Ok(Self { objects: Objects { store, holds: Holds::Content, tries: TRIES_DEFAULT } })
    }

    /// Sets the largest number of tries per call while other writers change the object; at least one. Default
    /// [`TRIES_DEFAULT`].
    #[must_use]
    pub fn tries_at_most(mut self, limit: u32) -> Self {
        self.objects.tries = limit.max(1);
        self
    }

    /// Raises the marks of `resource`, and returns its content at that moment; `None` if there is none. Call
    /// it before the section reads the data that it will write: lower tokens can no longer change the
    /// returned content.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if a later section has passed: stop. Any other error: the section must not
    /// continue, and may enter again.
    pub async fn enter(&self, resource: &str, section: Section) -> Result<Option<Bytes>, ObjectError> {
        let decide = |last: Option<&Record>| {
            let content = last.and_then(|last| last.content.clone());
            let marks = passed(last, Action::Enter, section)?;
            Ok(Next { marks, content: content.clone(), answer: content })
        };
        self.objects.change(&path_of(resource)?, decide).await
    }

    /// The content of `resource`; `None` if there is none. Enter first, otherwise an update can be lost.
    ///
    /// # Errors
    /// [`ObjectError::Store`], [`ObjectError::Foreign`], [`ObjectError::OtherFence`],
    /// [`ObjectError::Corrupt`], [`ObjectError::Newer`].
    pub async fn read(&self, resource: &str) -> Result<Option<Bytes>, ObjectError> {
        Ok(self.objects.read(&path_of(resource)?).await?.and_then(|record| record.content))
    }

    /// Checks, and replaces the content of `resource`, in one put. On success both the mark and the content
    /// are as durable as the store's acknowledged puts.
    ///
    /// # Errors
    /// [`ObjectError::Refused`], [`ObjectError::Contended`]: nothing was written. [`ObjectError::Unsure`]: it
    /// may have been written, or may still be; enter again with the same token. [`ObjectError::TooLarge`],
    /// and as for [`enter`](Self::enter).
    pub async fn write(
        &self,
        resource: &str,
        section: Section,
        content: impl Into<Bytes>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::Write, section, Some(content.into())).await
    }

    /// As [`write`](Self::write), but each token passes only once, and `enter` is not needed: for an effect
    /// that does not depend on anything read before, executed at most once per grant (rule F-d).
    ///
    /// # Errors
    /// As `write`, and [`Refused::Repeated`](crate::Refused::Repeated) for a token that has passed before.
    pub async fn check_once(
        &self,
        resource: &str,
        section: Section,
        content: impl Into<Bytes>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::CheckOnce, section, Some(content.into())).await
    }

    /// Checks as a write does, and removes the content. The object remains, with its marks: without them a
    /// stale token could write again.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn delete(&self, resource: &str, section: Section) -> Result<(), ObjectError> {
        self.put(resource, Action::Write, section, None).await
    }

    /// The current marks of `resource`; the default ones if the object does not exist. Creates nothing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn marks(&self, resource: &str) -> Result<Marks, ObjectError> {
        Ok(self.objects.read(&path_of(resource)?).await?.map(|record| record.marks).unwrap_or_default())
    }

    /// Sets the marks of `resource` to `to`, higher or lower, and keeps its content. For operators only, when
    /// another lock service with lower tokens takes over, or marks were lost: no holder of an earlier token
    /// may be running.
    ///
    /// # Errors
    /// As [`write`](Self::write), but never refused.
    pub async fn reset(&self, resource: &str, to: Token) -> Result<(), ObjectError> {
        let decide = |last: Option<&Record>| {
            let content = last.and_then(|last| last.content.clone());
            Ok(Next { marks: reset_to(to), content, answer: () })
        };
        self.objects.change(&path_of(resource)?, decide).await
    }

    async fn put(
        &self,
        resource: &str,
        action: Action,
        section: Section,
        content: Option<Bytes>,
    ) -> Result<(), ObjectError> {
        let bytes = content.as_ref().map_or(0, |content| content.len() as u64);
        if bytes > CONTENT_BYTES_MAX {
            return Err(ObjectError::TooLarge { resource: resource.to_owned(), bytes });
        }
        let decide = |last: Option<&Record>| {
            let marks = passed(last, action, section)?;
            Ok(Next { marks, content: content.clone(), answer: () })
        };
        self.objects.change(&path_of(resource)?, decide).await
    }
}

/// Checks the section, and returns the marks after it.
fn passed(last: Option<&Record>, action: Action, section: Section) -> Result<Marks, ObjectError> {
    let mut marks = last.map(|last| last.marks.clone()).unwrap_or_default();
    // The put follows even if no mark rose; `change` gives the reason.
    let _ = marks.check(action, section)?;
    Ok(marks)
}

fn reset_to(to: Token) -> Marks {
    Marks { base: Pair { any: Some(to), writer: Some(to) }, ..Marks::default() }
}
