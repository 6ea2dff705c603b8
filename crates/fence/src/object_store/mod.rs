//! Fences for objects in a store: S3, Azure Blob Storage and whatever else the crate `object_store` speaks to.
//!
//! Responsible for the public calls of [`ObjectFence`]; those of [`PointerFence`] are in `pointer`. How an object is
//! changed, and how it is known that it was, is in `change`; the bytes of an object in `record`; what a store is asked
//! before it is trusted in `probe`. It knows nothing of locks or lock services, and of no particular store: the caller
//! brings one.
//!
//! ```
//! # use std::sync::Arc;
//! # use lockkeeper_fence::{ObjectError, ObjectFence, Section, Token};
//! # async fn add(store: Arc<dyn object_store::ObjectStore>, token: Token) -> Result<(), ObjectError> {
//! let fence = ObjectFence::connect(store).await?; // once: it tries what the store honours
//! let section = Section::exclusive(token); // the token of the guard
//! let old = fence.enter("stock/42", section).await?.unwrap_or_default();
//! fence.write("stock/42", section, [&old[..], b"one more\n"].concat()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Two shapes, for small and for large content:
//! - [`ObjectFence`]: marks and content in one object, so that check and effect are one put. Every call reads and puts the
//!   whole of it: for content up to [`CONTENT_BYTES_MAX`].
//! - [`PointerFence`]: the content is an object of its own, of any size, written once under a name that was never used;
//!   a small fenced object names it.
//!
//! It rests on one thing: a put that is done only if the object still is what was read (If-Match), or does not exist
//! (If-None-Match: *). [`ObjectFence::connect`] tries whether the store really refuses others, and refuses one that
//! doesn't. A mark is as durable as the store makes what it has acknowledged; neither a killed process nor a lost answer
//! takes one back.
//!
//! Reads: S3, Azure and Google promise that a read sees the latest put. A check does not even need that; what `read`
//! gives does, so where it may lag use what `enter` gives.
//!
//! What goes round the fence can't be seen by it: somebody who puts or deletes the object himself, a rule of the bucket
//! that expires it, replication into the bucket. An object that is removed takes its marks along. Keep everybody else
//! from writing there.

mod change;
mod error;
mod pointer;
mod probe;
mod record;

use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_core::Token;
use object_store::ObjectStore;

use crate::rule::{Action, Marks, Pair, Section};
use change::{Next, Objects, path_of};
pub use error::{ObjectError, Unfit};
pub use pointer::{Draft, PointerFence, Swept};
use record::{Holds, Record};

/// Most bytes of content of an [`ObjectFence`]: 8 MiB. Every call moves the content twice, which shall stay well below a
/// second.
pub const CONTENT_BYTES_MAX: u64 = 8 << 20;

/// How many puts a call tries while others change the object under it, if nothing else is said. With the pauses between
/// them about half a minute.
pub const TRIES_DEFAULT: u32 = 64;

/// Fenced objects with their content, each the resource of its own name in the store. Any number of values and processes
/// may work on the same store.
#[derive(Clone, Debug)]
pub struct ObjectFence {
    objects: Objects,
}

impl ObjectFence {
    /// A fence for the objects in `store`. Tries first whether the store refuses a put whose condition does not hold, with
    /// objects below `.lockkeeper-probe/` that it removes again. For part of a bucket wrap the store in
    /// [`PrefixStore`](object_store::prefix::PrefixStore).
    ///
    /// The store's own limits of time and of retries hold; each try of a call is one read and one put.
    ///
    /// # Errors
    /// [`ObjectError::Unfit`] if the store can't be fenced: what it did is told. [`ObjectError::Store`].
    pub async fn connect(store: Arc<dyn ObjectStore>) -> Result<Self, ObjectError> {
        probe::probe(store.as_ref()).await?;
        Ok(Self { objects: Objects { store, holds: Holds::Content, tries: TRIES_DEFAULT } })
    }

    /// Tries at most `limit` puts per call while others change the object under it; at least one. Default
    /// [`TRIES_DEFAULT`].
    #[must_use]
    pub fn tries_at_most(mut self, limit: u32) -> Self {
        self.objects.tries = limit.max(1);
        self
    }

    /// Raises the marks of `resource`, and gives its content as it was at that moment; `None` if there is none. Call it
    /// before the section reads what it will write: what it gives no lower token can change any more.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if a later section has been here: stop. Any other error: the section may not go on, and
    /// may enter again.
    pub async fn enter(&self, resource: &str, section: Section) -> Result<Option<Bytes>, ObjectError> {
        let decide = |last: Option<&Record>| {
            let content = last.and_then(|last| last.content.clone());
            let marks = passed(last, Action::Enter, section)?;
            Ok(Next { marks, content: content.clone(), answer: content })
        };
        self.objects.change(&path_of(resource)?, decide).await
    }

    /// The content of `resource`; `None` if there is none. Enter first, else an update can be lost.
    ///
    /// # Errors
    /// [`ObjectError::Store`], [`ObjectError::Foreign`], [`ObjectError::OtherFence`], [`ObjectError::Corrupt`],
    /// [`ObjectError::Newer`].
    pub async fn read(&self, resource: &str) -> Result<Option<Bytes>, ObjectError> {
        Ok(self.objects.read(&path_of(resource)?).await?.and_then(|record| record.content))
    }

    /// Checks, and replaces the content of `resource`, in one put. When this returns both the mark and the content are as
    /// durable as the store makes what it has acknowledged.
    ///
    /// # Errors
    /// [`ObjectError::Refused`], [`ObjectError::Contended`]: nothing was written. [`ObjectError::Unsure`]: it may have
    /// been, and may yet be; enter again with the same token. [`ObjectError::TooLarge`], and as for
    /// [`enter`](Self::enter).
    pub async fn write(
        &self,
        resource: &str,
        section: Section,
        content: impl Into<Bytes>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::Write, section, Some(content.into())).await
    }

    /// As [`write`](Self::write), once per token and without `enter`: for one blind effect per grant (F-d).
    ///
    /// # Errors
    /// As `write`, and [`Refused::Repeated`](crate::Refused::Repeated) for a token that has been here.
    pub async fn check_once(
        &self,
        resource: &str,
        section: Section,
        content: impl Into<Bytes>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::CheckOnce, section, Some(content.into())).await
    }

    /// Checks as a write does, and removes the content. The object stays, with its marks: without them a stale token
    /// could write again.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn delete(&self, resource: &str, section: Section) -> Result<(), ObjectError> {
        self.put(resource, Action::Write, section, None).await
    }

    /// The marks of `resource` as they are now; the default ones if there is no such object. Creates nothing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn marks(&self, resource: &str) -> Result<Marks, ObjectError> {
        Ok(self.objects.read(&path_of(resource)?).await?.map(|record| record.marks).unwrap_or_default())
    }

    /// Sets the marks of `resource` to `to`, higher or lower, and leaves its content. For operators only, when another
    /// lock service with lower tokens takes over, or marks were lost: no holder of a token of before may be at work.
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

/// The marks once `section` has done `action`.
fn passed(last: Option<&Record>, action: Action, section: Section) -> Result<Marks, ObjectError> {
    let mut marks = last.map(|last| last.marks.clone()).unwrap_or_default();
    // Raised or not, it is put: see `change`.
    let _ = marks.check(action, section)?;
    Ok(marks)
}

fn reset_to(to: Token) -> Marks {
    Marks { base: Pair { any: Some(to), writer: Some(to) }, ..Marks::default() }
}
