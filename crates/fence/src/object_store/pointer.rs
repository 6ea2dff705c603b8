//! Content of any size: an object of its own, and a small fenced object that names it.
//!
//! Responsible for a reader always finding the whole of one content, and for removing what is no longer needed without
//! ever removing what is. The pointer of `stock` is the object `stock`; its data are `stock.data/SWEEPS-NONCE`. Data are
//! written once, under a name never used before, and only then does the fenced put swing the pointer to them.
//!
//! # Why a sweep removes nothing that is needed
//! What no pointer names may be old data, or data of a writer that is about to swing the pointer to them. No age tells
//! these apart for sure: a writer can stall as long as it likes. So the pointer counts its sweeps:
//! 1. A writer notes the count before it uploads (it is part of the data's name), and may swing the pointer only while
//!    the count is still that. The put says so: it replaces the very record in which the count was checked.
//! 2. A sweep first raises the count, by such a put. It learns in it which data the pointer names.
//! 3. Only then does it list. It removes data with a lower count that the pointer did not name in step 2.
//!
//! After step 2 no data with a lower count can be swung to any more, and the one that had been was kept. Whoever is
//! uploading meanwhile is told to upload again. The age given to a sweep is a courtesy to them, and to readers that have
//! read the pointer and not yet the data; it is measured by the store's clock alone.

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

/// How often data are uploaded for one write, when sweeps come between.
const UPLOADS_MAX: u32 = 3;
/// How often a reader follows a pointer whose data were swept before it came to them.
const FOLLOWS_MAX: u32 = 8;

/// Fenced resources with content of any size. Any number of values and processes may work on the same store.
#[derive(Clone, Debug)]
pub struct PointerFence {
    objects: Objects,
}

/// A place for data that no pointer names yet.
#[derive(Clone, Debug)]
pub struct Draft {
    resource: String,
    path: Path,
    sweeps: u64,
}

impl Draft {
    /// Where to upload the data, in whatever way: in parts, or as a copy on the server.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a sweep did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// How many objects it removed.
    pub removed: u64,
    /// How many objects it left, though the pointer does not name them: too young, or uploaded since it began.
    pub left: u64,
}

/// The content of a pointer's record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Pointer {
    /// How many sweeps there were.
    sweeps: u64,
    /// The data's name below the resource's folder and their length in bytes.
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

    /// Of the object `path`, whose record this is.
    fn of(path: &Path, record: Option<&Record>) -> Result<Self, ObjectError> {
        let Some(content) = record.and_then(|record| record.content.as_deref()) else {
            return Ok(Self::default());
        };
        let why = "it does not name data as a fence does";
        Self::decode(content).ok_or_else(|| ObjectError::Corrupt { resource: path.to_string(), why })
    }
}

/// The count of sweeps in the name of data; `None` for a name that a fence does not give.
fn sweeps_of(name: &str) -> Option<u64> {
    let (sweeps, nonce) = name.split_once('-')?;
    Nonce::parse(nonce)?;
    let count: u64 = sweeps.parse().ok()?;
    (count.to_string() == sweeps).then_some(count)
}

/// Where the data of the resource at `path` are.
fn folder(path: &Path) -> Path {
    Path::from(format!("{path}.data"))
}

impl PointerFence {
    /// A fence for the objects in `store`: see [`ObjectFence::connect`](super::ObjectFence::connect).
    ///
    /// # Errors
    /// As there.
    pub async fn connect(store: Arc<dyn ObjectStore>) -> Result<Self, ObjectError> {
        probe::probe(store.as_ref()).await?;
        Ok(Self { objects: Objects { store, holds: Holds::Pointer, tries: TRIES_DEFAULT } })
    }

    /// Tries at most `limit` puts per call while others change the pointer under it; at least one. Default
    /// [`TRIES_DEFAULT`].
    #[must_use]
    pub fn tries_at_most(mut self, limit: u32) -> Self {
        self.objects.tries = limit.max(1);
        self
    }

    /// Raises the marks of `resource`, and gives the name of its data at that moment; `None` if there are none. Call it
    /// before the section reads what it will write.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if a later section has been here: stop. Any other error: the section may not go on, and
    /// may enter again.
    pub async fn enter(&self, resource: &str, section: Section) -> Result<Option<Path>, ObjectError> {
        let path = path_of(resource)?;
        let decide = |last: Option<&Record>| {
            let data = Pointer::of(&path, last)?.data.map(|(name, _)| folder(&path).join(name.as_str()));
            let marks = passed(last, Action::Enter, section)?;
            Ok(Next { marks, content: last.and_then(|last| last.content.clone()), answer: data })
        };
        self.objects.change(&path, decide).await
    }

    /// The data of `resource`, to be read as they come; `None` if there are none. Enter first, else an update can be lost.
    ///
    /// # Errors
    /// [`ObjectError::Store`]; [`ObjectError::DataLost`] if the data are not what was published;
    /// [`ObjectError::Foreign`], [`ObjectError::OtherFence`], [`ObjectError::Corrupt`], [`ObjectError::Newer`].
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
                // Swept since we read the pointer, if it names others by now.
                Err(Error::NotFound { .. }) if follows < FOLLOWS_MAX && followed.as_ref() != Some(&name) => {
                    followed = Some(name);
                    follows += 1;
                }
                Err(Error::NotFound { .. }) => return lost("are gone".to_owned()),
                Err(error) => return Err(ObjectError::store("read", &data)(error)),
            }
        }
    }

    /// As [`open`](Self::open), with the data in memory as a whole.
    ///
    /// # Errors
    /// As `open`.
    pub async fn read(&self, resource: &str) -> Result<Option<Bytes>, ObjectError> {
        let Some(got) = self.open(resource).await? else { return Ok(None) };
        let data = got.meta.location.clone();
        got.bytes().await.map(Some).map_err(ObjectError::store("read", &data))
    }

    /// Checks, uploads `content` as new data, checks again, and makes them the content of `resource`, the last two in one
    /// put. Readers see the old content or the new one, whole.
    ///
    /// # Errors
    /// [`ObjectError::Refused`], [`ObjectError::Contended`]: nothing was written. [`ObjectError::Unsure`]: it may have
    /// been, and may yet be; enter again with the same token. As for [`enter`](Self::enter).
    pub async fn write(
        &self,
        resource: &str,
        section: Section,
        content: impl Into<PutPayload>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::Write, section, content.into()).await
    }

    /// As [`write`](Self::write), once per token and without `enter`: for one blind effect per grant (F-d).
    ///
    /// # Errors
    /// As `write`, and [`Refused::Repeated`](crate::Refused::Repeated) for a token that has been here.
    pub async fn check_once(
        &self,
        resource: &str,
        section: Section,
        content: impl Into<PutPayload>,
    ) -> Result<(), ObjectError> {
        self.put(resource, Action::CheckOnce, section, content.into()).await
    }

    /// A place to upload data to that do not fit in memory: upload to [`Draft::path`], then [`publish`](Self::publish).
    /// What is never published is removed by a [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn draft(&self, resource: &str) -> Result<Draft, ObjectError> {
        let path = path_of(resource)?;
        let pointer = Pointer::of(&path, self.objects.read(&path).await?.as_ref())?;
        draft_of(&path, pointer.sweeps)
    }

    /// Checks as a write does, and makes the data of `draft` the content of its resource, in one put.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`ObjectError::DraftMissing`]; [`ObjectError::DraftSwept`] if a sweep came between:
    /// nothing was published, and the data must be uploaded to a new draft.
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

    /// Checks as a write does, and leaves the resource without content, but with its marks. The data go with the next
    /// [`sweep`](Self::sweep).
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

    /// The marks of `resource` as they are now; the default ones if it was never seen. Creates nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn marks(&self, resource: &str) -> Result<Marks, ObjectError> {
        Ok(self.objects.read(&path_of(resource)?).await?.map(|record| record.marks).unwrap_or_default())
    }

    /// Sets the marks of `resource` to `to`, higher or lower, and leaves its content. For operators only: see
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

    /// Removes data of `resource` that its pointer does not name and that are `older_than`, by the store's clock. May run
    /// at any time and beside anything, also beside other sweeps; needs no token. Give it more than an upload and a read
    /// take: shorter is safe, but whoever is uploading must upload again, and whoever is reading begin anew.
    ///
    /// # Errors
    /// [`ObjectError::Store`], [`ObjectError::Contended`], [`ObjectError::Unsure`], and those of [`open`](Self::open); what
    /// was removed until then stays removed, and another sweep removes the rest.
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
        // When the pointer was put, by the clock that also dates the data. Later at most, if it was put again since.
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
            // Other objects in the folder are none of ours.
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
            // Much may be uploaded for nothing if this section is stale already.
            let last = self.objects.read(&path).await?;
            let pointer = Pointer::of(&path, last.as_ref())?;
            passed(last.as_ref(), action, section)?;
            let draft = draft_of(&path, pointer.sweeps)?;
            let created = PutOptions::from(PutMode::Create);
            match self.objects.store.put_opts(&draft.path, content.clone(), created).await {
                // Nobody else has this name: the client has sent it twice.
                Ok(_) | Err(Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(ObjectError::store("upload to", &draft.path)(error)),
            }
            uploads += 1;
            match self.swing(action, section, &draft, bytes).await {
                Err(ObjectError::DraftSwept { .. }) if uploads < UPLOADS_MAX => {}
                Err(refused @ (ObjectError::Refused(_) | ObjectError::DraftSwept { .. })) => {
                    // No pointer will ever name it. If it can't be removed now, a sweep will.
                    let _ = self.remove(&draft.path).await;
                    return Err(refused);
                }
                other => return other,
            }
        }
    }

    /// Makes the data of `draft` the content of its resource.
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
