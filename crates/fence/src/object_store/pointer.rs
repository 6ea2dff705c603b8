//! Content of any size: a separate object for the data, and a small fenced object (the pointer) with its
//! name.
//!
//! Guarantees that a reader always finds one complete content, and that a sweep removes only data that no
//! pointer names or will name. The pointer of `stock` is the object `stock`; its data are
//! `stock.data/SWEEPS-NONCE`. Data are written once, under a name never used before, and only then does the
//! fenced put set the pointer to them.
//!
//! # Why a sweep removes only unneeded data
//! Data without a pointer may be old, or may belong to a writer that is about to set the pointer to them. Age
//! alone can't distinguish the two, since a writer can stall for any time. So the pointer counts its sweeps:
//! 1. A writer reads the count before it uploads (the count is part of the data's name), and may set the
//!    pointer only if the count is unchanged. The conditional put enforces this: it replaces the very record
//!    in which the count was checked.
//! 2. A sweep first raises the count, by a conditional put, and reads the name of the current data in the
//!    same step.
//! 3. Only then does it list the data. It removes data with a lower count, except those that the pointer
//!    named in step 2.
//!
//! After step 2 the pointer can no longer be set to data with a lower count, and the data that it named are
//! kept. So an upload that is under way at that time can't be published: `write` uploads again, and `publish`
//! fails with [`ObjectError::DraftSwept`]. The minimum age given to a sweep only makes the removal of data
//! less likely that a reader has found in the pointer but not read yet. Ages are measured by the store's
//! clock alone.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use lockkeeper_core::Token;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};

use super::change::{Next, Objects, path_of};
use super::record::{Holds, Nonce, Record};
use super::{ObjectError, TRIES_DEFAULT, passed, probe, reset_to};
use crate::rule::{Action, Marks, Section};

/// Most uploads of one write, when sweeps come between.
const UPLOADS_MAX: u32 = 3;
/// Most times that a reader reads the pointer again because its data were swept before the reader could read
/// them.
const FOLLOWS_MAX: u32 = 8;

/// Fenced resources with content of any size. Any number of values and processes may use the same store.
#[derive(Clone, Debug)]
pub struct PointerFence {
    objects: Objects,
}

/// A name for data that no pointer refers to yet.
#[derive(Clone, Debug)]
pub struct Draft {
    resource: String,
    path: Path,
    sweeps: u64,
}

impl Draft {
    /// The upload path. Any kind of upload works: multipart, or a copy on the server.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The result of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Number of removed objects.
    pub removed: u64,
    /// Number of objects kept although the pointer does not name them: they are too young, or their names
    /// were made after the sweep had raised the count.
    pub left: u64,
}

/// The content of a pointer's record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Pointer {
    /// Number of sweeps so far.
    sweeps: u64,
    /// The data's name in the resource's folder, and their length in bytes.
    data: Option<(String, u64)>,
}

impl Pointer {
    fn encode(&self) -> Bytes {
        let mut text = format!("sweeps {}\n", self.sweeps);
        if let Some((name, bytes)) = &self.data {
            // Writing to a String can't fail.
            let _ = writeln!(text, "data {name}\nbytes {bytes}");
        }
        text.into()
    }

    fn decode(content: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(content).ok()?.lines();
        let sweeps = lines.next()?.strip_prefix("sweeps ")?.parse().ok()?;
        let data = match lines.next() {
            None => None,
            Some(line) => {
                let name = line.strip_prefix("data ")?;
                sweeps_of(name)?;
                Some((name.to_owned(), lines.next()?.strip_prefix("bytes ")?.parse().ok()?))
            }
        };
        let pointer = Self { sweeps, data };
        (pointer.encode() == content).then_some(pointer)
    }

    /// Parses the pointer in the record of the object `path`.
    fn of(path: &Path, record: Option<&Record>) -> Result<Self, ObjectError> {
        let Some(content) = record.and_then(|record| record.content.as_deref()) else {
            return Ok(Self::default());
        };
        let why = "it does not name data as a fence does";
        Self::decode(content).ok_or_else(|| ObjectError::Corrupt { resource: path.to_string(), why })
    }
}

/// The sweep count in the name of data; `None` if no fence made the name.
fn sweeps_of(name: &str) -> Option<u64> {
    let (sweeps, nonce) = name.split_once('-')?;
    Nonce::parse(nonce)?;
    let count: u64 = sweeps.parse().ok()?;
    (count.to_string() == sweeps).then_some(count)
}

/// The folder of the data of the resource at `path`.
fn folder(path: &Path) -> Path {
    Path::from(format!("{path}.data"))
}

impl PointerFence {
    /// A fence for the objects in `store`: see [`ObjectFence::connect`](super::ObjectFence::connect).
    ///
    /// # Errors
    /// As [`ObjectFence::connect`](super::ObjectFence::connect).
    pub async fn connect(store: Arc<dyn ObjectStore>) -> Result<Self, ObjectError> {
        probe(store.as_ref(), &Path::default()).await?;
        Ok(Self { objects: Objects { store, holds: Holds::Pointer, tries: TRIES_DEFAULT } })
    }

    /// Sets the largest number of tries per call while other writers change the pointer; at least one.
    /// Default [`TRIES_DEFAULT`].
    #[must_use]
    pub fn tries_at_most(mut self, limit: u32) -> Self {
        self.objects.tries = limit.max(1);
        self
    }

    /// Raises the marks of `resource`, and returns the path of its data at that moment; `None` if there are
    /// none. Call it before the section reads the data that it will write.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if a later section has passed: stop. Any other error: the section must not
    /// continue, and may enter again.
    pub async fn enter(&self, resource: &str, section: Section) -> Result<Option<Path>, ObjectError> {
        let path = path_of(resource)?;
        let decide = |last: Option<&Record>| {
            let data = Pointer::of(&path, last)?.data.map(|(name, _)| folder(&path).join(name.as_str()));
            let marks = passed(last, Action::Enter, section)?;
            Ok(Next { marks, content: last.and_then(|last| last.content.clone()), answer: data })
        };
        self.objects.change(&path, decide).await
    }

    /// The data of `resource`, as a stream; `None` if there are none. Enter first, otherwise an update can be
    /// lost.
    ///
    /// # Errors
    /// [`ObjectError::Store`]; [`ObjectError::DataLost`] if the data are missing, or have another length than
    /// those published; [`ObjectError::Foreign`], [`ObjectError::OtherFence`], [`ObjectError::Corrupt`],
    /// [`ObjectError::Newer`].
    pub async fn open(&self, resource: &str) -> Result<Option<GetResult>, ObjectError> {
        let path = path_of(resource)?;
        let mut follows = 0;
        let mut followed = None;
        loop {
            let pointer = Pointer::of(&path, self.objects.read(&path).await?.as_ref())?;
            let Some((name, bytes)) = pointer.data else { return Ok(None) };
            let data = folder(&path).join(name.as_str());
            let lost = |why: String| {
                Err(ObjectError::DataLost { resource: resource.to_owned(), data: data.clone(), why })
            };
            match self.objects.store.get_opts(&data, GetOptions::default()).await {
                Ok(got) if got.meta.size == bytes => return Ok(Some(got)),
                Ok(got) => return lost(format!("are {} bytes, and {bytes} were published", got.meta.size)),
                // These data may have been swept after the pointer was read. Then the pointer names other
                // data by now: read it again.
                Err(Error::NotFound { .. }) if follows < FOLLOWS_MAX && followed.as_ref() != Some(&name) => {
                    followed = Some(name);
                    follows += 1;
                }
                Err(Error::NotFound { .. }) => return lost("are gone".to_owned()),
                Err(error) => return Err(ObjectError::store("read", &data)(error)),
            }
        }
    }

    /// As [`open`](Self::open), but reads all data into memory.
    ///
    /// # Errors
    /// As `open`.
    pub async fn read(&self, resource: &str) -> Result<Option<Bytes>, ObjectError> {
        let Some(got) = self.open(resource).await? else { return Ok(None) };
        let data = got.meta.location.clone();
        got.bytes().await.map(Some).map_err(ObjectError::store("read", &data))
    }

    /// Checks, uploads `content` as new data, then checks again and sets the pointer to them in one put.
    /// Readers see either the old content or the new one, never a mix.
    ///
    /// # Errors
    /// [`ObjectError::Refused`], [`ObjectError::Contended`]: nothing was written. [`ObjectError::Unsure`]: it
    /// may have been written, or may still be; enter again with the same token. As for
    /// [`enter`](Self::enter).
    pub async fn write(
        &self,
        resource: &str,
        section: Section,
        content: impl Into<PutPayload>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::Write, section, content.into()).await
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
        content: impl Into<PutPayload>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::CheckOnce, section, content.into()).await
    }

    /// Reserves a name for data that do not fit in memory: upload to [`Draft::path`], then
    /// [`publish`](Self::publish). A [`sweep`](Self::sweep) removes drafts that were never published.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn draft(&self, resource: &str) -> Result<Draft, ObjectError> {
        let path = path_of(resource)?;
        let pointer = Pointer::of(&path, self.objects.read(&path).await?.as_ref())?;
        draft_of(&path, pointer.sweeps)
    }

    /// Checks as a write does, and sets the pointer of the resource to the data of `draft`, in one put.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`ObjectError::DraftMissing`]; [`ObjectError::DraftSwept`] if a sweep came
    /// between: nothing was published, and the data must be uploaded to a new draft.
    pub async fn publish(&self, section: Section, draft: &Draft) -> Result<(), ObjectError> {
        let bytes = match self.objects.store.head(&draft.path).await {
            Ok(meta) => meta.size,
            Err(Error::NotFound { .. }) => {
                return Err(ObjectError::DraftMissing { draft: draft.path.clone() });
            }
            Err(error) => return Err(ObjectError::store("look for", &draft.path)(error)),
        };
        self.swing(Action::Write, section, draft, bytes).await
    }

    /// Checks as a write does, and leaves the resource without content, but with its marks. The next
    /// [`sweep`](Self::sweep) removes the data.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn delete(&self, resource: &str, section: Section) -> Result<(), ObjectError> {
        let path = path_of(resource)?;
        let decide = |last: Option<&Record>| {
            let pointer = Pointer { data: None, ..Pointer::of(&path, last)? };
            let marks = passed(last, Action::Write, section)?;
            Ok(Next { marks, content: Some(pointer.encode()), answer: () })
        };
        self.objects.change(&path, decide).await
    }

    /// The current marks of `resource`; the default ones if it was never seen. Creates nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn marks(&self, resource: &str) -> Result<Marks, ObjectError> {
        Ok(self.objects.read(&path_of(resource)?).await?.map(|record| record.marks).unwrap_or_default())
    }

    /// Sets the marks of `resource` to `to`, higher or lower, and keeps its content. For operators only: see
    /// [`ObjectFence::reset`](super::ObjectFence::reset).
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

    /// Removes data of `resource` that its pointer does not name and whose age is at least `older_than`, by
    /// the store's clock. A sweep may run at any time and concurrently with all other calls, including other
    /// sweeps; it needs no token. Choose a duration longer than an upload and a read: a shorter one is safe,
    /// but readers may have to read again. Concurrent writers must upload again in any case.
    ///
    /// # Errors
    /// [`ObjectError::Store`], [`ObjectError::Contended`], [`ObjectError::Unsure`], and those of
    /// [`open`](Self::open). The objects removed so far stay removed, and another sweep removes the rest.
    pub async fn sweep(&self, resource: &str, older_than: Duration) -> Result<Swept, ObjectError> {
        let path = path_of(resource)?;
        let decide = |last: Option<&Record>| {
            let mut pointer = Pointer::of(&path, last)?;
            pointer.sweeps += 1;
            let marks = last.map(|last| last.marks.clone()).unwrap_or_default();
            Ok(Next { marks, content: Some(pointer.encode()), answer: pointer })
        };
        let pointer = self.objects.change(&path, decide).await?;
        let store = &self.objects.store;
        // The current time, by the clock that also dates the data: the time of the pointer's last put, which
        // is this sweep's or a later one.
        let now = store.head(&path).await.map_err(ObjectError::store("look for", &path))?.last_modified;

        let folder = folder(&path);
        let failed = |error| ObjectError::store("list", &folder)(error);
        let all: Vec<ObjectMeta> = store.list(Some(&folder)).try_collect().await.map_err(failed)?;
        let named = pointer.data.as_ref().map(|(name, _)| name.as_str());
        let mut swept = Swept::default();
        for data in all {
            let Some(name) =
                data.location.filename().filter(|name| folder.clone().join(*name) == data.location)
            else {
                continue;
            };
            // Skips objects that don't have a name of the fence, and the data that the pointer names.
            let Some(sweeps) = sweeps_of(name).filter(|_| Some(name) != named) else { continue };
            let age = now.signed_duration_since(data.last_modified).to_std().unwrap_or_default();
            if sweeps >= pointer.sweeps || age < older_than {
                swept.left += 1;
                continue;
            }
            self.remove(&data.location).await.map_err(ObjectError::store("delete", &data.location))?;
            swept.removed += 1;
        }
        Ok(swept)
    }

    async fn put(
        &self,
        resource: &str,
        action: Action,
        section: Section,
        content: PutPayload,
    ) -> Result<(), ObjectError> {
        let path = path_of(resource)?;
        let bytes = content.content_length() as u64;
        let mut uploads = 0;
        loop {
            // Checks before the upload, so that a section with a stale token uploads nothing.
            let last = self.objects.read(&path).await?;
            let pointer = Pointer::of(&path, last.as_ref())?;
            passed(last.as_ref(), action, section)?;
            let draft = draft_of(&path, pointer.sweeps)?;
            let created = PutOptions::from(PutMode::Create);
            match self.objects.store.put_opts(&draft.path, content.clone(), created).await {
                // The name is unique: if the object exists, the HTTP client has sent this put twice.
                Ok(_) | Err(Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(ObjectError::store("upload to", &draft.path)(error)),
            }
            uploads += 1;
            match self.swing(action, section, &draft, bytes).await {
                Err(ObjectError::DraftSwept { .. }) if uploads < UPLOADS_MAX => {}
                Err(refused @ (ObjectError::Refused(_) | ObjectError::DraftSwept { .. })) => {
                    // No pointer will ever name these data. If the removal fails, a sweep removes them.
                    let _ = self.remove(&draft.path).await;
                    return Err(refused);
                }
                other => return other,
            }
        }
    }

    /// Sets the pointer of the resource to the data of `draft`.
    async fn swing(
        &self,
        action: Action,
        section: Section,
        draft: &Draft,
        bytes: u64,
    ) -> Result<(), ObjectError> {
        let path = path_of(&draft.resource)?;
        let name = draft.path.filename().unwrap_or_default();
        let decide = |last: Option<&Record>| {
            let pointer = Pointer::of(&path, last)?;
            let marks = passed(last, action, section)?;
            if pointer.sweeps != draft.sweeps {
                let (resource, draft) = (draft.resource.clone(), draft.path.clone());
                return Err(ObjectError::DraftSwept { resource, draft });
            }
            let pointer = Pointer { data: Some((name.to_owned(), bytes)), ..pointer };
            Ok(Next { marks, content: Some(pointer.encode()), answer: () })
        };
        self.objects.change(&path, decide).await
    }

    async fn remove(&self, path: &Path) -> Result<(), Error> {
        let mut deleted = self.objects.store.delete_stream(stream::iter([Ok(path.clone())]).boxed());
        while let Some(answer) = deleted.next().await {
            match answer {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A new name for data of the resource at `path`.
fn draft_of(path: &Path, sweeps: u64) -> Result<Draft, ObjectError> {
    let nonce = Nonce::random().map_err(ObjectError::Random)?;
    let name = format!("{sweeps}-{nonce}");
    Ok(Draft { resource: path.to_string(), path: folder(path).join(name.as_str()), sweeps })
}
