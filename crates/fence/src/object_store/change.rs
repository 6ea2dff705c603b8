//! One change of one object: read it, decide, put the next record if the object is still what was read, and know
//! whether it was done.
//!
//! Responsible for no change being lost, done twice or told wrongly, whatever the store answers. May not know what is
//! decided: that is [`Marks::check`](crate::Marks::check) and its callers.
//!
//! A store's answer to a conditional put can be lost, or be "the condition does not hold" only because the client sent
//! the put again after an answer was lost, and its first one had been done. So no refusal is believed: the object is
//! read again, and its record tells ([`Fate`]):
//! - it has our nonce, or names it among the changes before it: done, though perhaps not the latest any more.
//! - it is still the record that we had read: not done, and a put on its way may yet be. The same bytes are put once
//!   more; of the two one can be done, for they have the same condition.
//! - it names the record that we had read, and not ours: somebody else's change came after that one, so ours never can.
//!   The decision is made anew, on what is there now.
//! - none of these, since more than [`BEFORE_MAX`](super::record::BEFORE_MAX) changes came between: not known, and told
//!   so ([`ObjectError::Unsure`]).
//!
//! Every call puts, also one that raises no mark: then a put of the same holder that is still on its way finds another
//! object than it was meant for and is refused, and what passed has passed on the object as it was at that moment, even
//! if the store's reads should lag behind. A refusal is right even on a read that lags, since marks only rise.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutMode, PutOptions, UpdateVersion};

use super::record::{HEADER_BYTES_MAX, Holds, Nonce, Record, Unreadable};
use super::{CONTENT_BYTES_MAX, ObjectError};
use crate::resource;
use crate::rule::Marks;

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The pause after the first try is at most this; then it doubles. About what a put takes.
const PAUSE_FIRST: Duration = Duration::from_millis(10);

/// The objects of one kind of fence in one store.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) holds: Holds,
    /// Most puts of one change.
    pub(super) tries: u32,
}

/// A record as it was read, and what names it in a condition.
struct Seen {
    record: Record,
    version: UpdateVersion,
}

/// What a call has decided to make of an object.
pub(super) struct Next<T> {
    pub(super) marks: Marks,
    pub(super) content: Option<Bytes>,
    /// What the call answers once this is done.
    pub(super) answer: T,
}

/// A put that was sent, or is about to be.
struct Attempt<T> {
    base: Option<Seen>,
    nonce: Nonce,
    bytes: Bytes,
    answer: T,
    /// What the store said to the last put of it, unless that was "the condition does not hold".
    unanswered: Option<Error>,
}

/// What became of an attempt.
enum Fate {
    Done,
    /// Not done so far: the object is as it was.
    Open,
    /// Never done, and never will be.
    Overtaken,
    /// The read shows the object as it was before the attempt was even decided.
    LateRead,
    /// There is no object any more.
    Removed,
    Unknown,
}

/// The object of `resource`.
///
/// # Errors
/// [`ObjectError::BadResource`] and [`ObjectError::BadPath`].
pub(super) fn path_of(resource: &str) -> Result<Path, ObjectError> {
    let name = resource::checked(resource)?;
    let bad = |why: String| ObjectError::BadPath { resource: resource.to_owned(), why };
    let path = Path::parse(name).map_err(|error| bad(error.to_string()))?;
    // It would be dropped without a word: two names for one object.
    if path.as_ref() != name {
        return Err(bad("it begins or ends with `/`".to_owned()));
    }
    Ok(path)
}

impl Objects {
    /// The record of the object; `None` if there is no such object.
    ///
    /// # Errors
    /// All of reading: see [`ObjectError`].
    pub(super) async fn read(&self, path: &Path) -> Result<Option<Record>, ObjectError> {
        Ok(self.see(path).await?.map(|seen| seen.record))
    }

    async fn see(&self, path: &Path) -> Result<Option<Seen>, ObjectError> {
        let failed = |error| ObjectError::store("read", path)(error);
        let got = match self.store.get_opts(path, GetOptions::default()).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let resource = || path.to_string();
        // Checked before anything is read into memory: no record of ours is longer.
        if got.meta.size > CONTENT_BYTES_MAX + HEADER_BYTES_MAX {
            return Err(ObjectError::Foreign { resource: resource() });
        }
        let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let bytes = got.bytes().await.map_err(failed)?;
        let record = Record::decode(&bytes).map_err(|why| match why {
            Unreadable::Foreign => ObjectError::Foreign { resource: resource() },
            Unreadable::Newer { version } => ObjectError::Newer { resource: resource(), version },
            Unreadable::Corrupt { why } => ObjectError::Corrupt { resource: resource(), why },
        })?;
        if record.holds != self.holds {
            let (found, use_instead) = match record.holds {
                Holds::Content => ("its content itself", "ObjectFence"),
                Holds::Pointer => ("pointer to its content", "PointerFence"),
            };
            return Err(ObjectError::OtherFence { resource: resource(), found, use_instead });
        }
        Ok(Some(Seen { record, version }))
    }

    /// Changes the object as `decide` says, which is asked anew whenever the object was changed by others meanwhile.
    /// `None` is an object that is not there.
    ///
    /// # Errors
    /// Those of `decide`, with nothing done; [`ObjectError::Contended`], [`ObjectError::Unsure`],
    /// [`ObjectError::Removed`], [`ObjectError::Store`], and all of reading.
    pub(super) async fn change<T>(
        &self,
        path: &Path,
        mut decide: impl FnMut(Option<&Record>) -> Result<Next<T>, ObjectError>,
    ) -> Result<T, ObjectError> {
        let unsure = |tries, source| Err(ObjectError::Unsure { resource: path.to_string(), tries, source });
        let mut open: Option<Attempt<T>> = None;
        let mut puts = 0;
        loop {
            let seen = match (self.see(path).await, &open) {
                (Ok(seen), _) => seen,
                // Nothing of ours can be on its way.
                (Err(error), None) => return Err(error),
                (Err(ObjectError::Store { source, .. }), Some(_)) if puts >= self.tries => {
                    return unsure(puts, Some(source));
                }
                (Err(ObjectError::Store { .. }), Some(_)) => {
                    puts += 1;
                    pause(puts).await;
                    continue;
                }
                (Err(error), Some(_)) => return Err(error),
            };
            let mut attempt = match open.take() {
                None => self.attempt(seen, &mut decide)?,
                Some(mine) => match mine.fate(seen.as_ref()) {
                    Fate::Done => return Ok(mine.answer),
                    Fate::Overtaken if puts >= self.tries => {
                        return Err(ObjectError::Contended { resource: path.to_string(), tries: puts });
                    }
                    Fate::Overtaken => self.attempt(seen, &mut decide)?,
                    Fate::Open | Fate::LateRead if puts >= self.tries => {
                        return unsure(puts, mine.unanswered);
                    }
                    Fate::Open => mine,
                    Fate::LateRead => {
                        open = Some(mine);
                        puts += 1;
                        pause(puts).await;
                        continue;
                    }
                    Fate::Removed => return Err(ObjectError::Removed { resource: path.to_string() }),
                    Fate::Unknown => return unsure(puts, mine.unanswered),
                },
            };
            puts += 1;
            match self.put(path, &attempt).await {
                Ok(()) => return Ok(attempt.answer),
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotModified { .. }) => {
                }
                Err(error) if is_final(&error) && attempt.unanswered.is_none() => {
                    return Err(ObjectError::store("put", path)(error));
                }
                Err(error) => attempt.unanswered = Some(error),
            }
            open = Some(attempt);
            pause(puts).await;
        }
    }

    fn attempt<T>(
        &self,
        base: Option<Seen>,
        decide: &mut impl FnMut(Option<&Record>) -> Result<Next<T>, ObjectError>,
    ) -> Result<Attempt<T>, ObjectError> {
        let last = base.as_ref().map(|seen| &seen.record);
        let Next { marks, content, answer } = decide(last)?;
        let nonce = Nonce::random().map_err(ObjectError::Random)?;
        let bytes = Record::after(last, self.holds, nonce, marks, content).encode();
        Ok(Attempt { base, nonce, bytes, answer, unanswered: None })
    }

    async fn put<T>(&self, path: &Path, attempt: &Attempt<T>) -> Result<(), Error> {
        let mode = match &attempt.base {
            None => PutMode::Create,
            Some(seen) => PutMode::Update(seen.version.clone()),
        };
        self.store.put_opts(path, attempt.bytes.clone().into(), PutOptions::from(mode)).await.map(drop)
    }
}

impl<T> Attempt<T> {
    fn fate(&self, seen: Option<&Seen>) -> Fate {
        let (now, base) = match (seen, &self.base) {
            (None, None) => return Fate::Open,
            (None, Some(_)) => return Fate::Removed,
            (Some(now), base) => (&now.record, base.as_ref().map(|base| &base.record)),
        };
        if now.nonce == self.nonce || now.before.contains(&self.nonce) {
            return Fate::Done;
        }
        let Some(base) = base else {
            // The object that somebody else has created, if its record goes back to that.
            let whole = now.change == now.before.len() as u64 + 1;
            return if whole { Fate::Overtaken } else { Fate::Unknown };
        };
        if now.nonce == base.nonce {
            Fate::Open
        } else if now.before.contains(&base.nonce) {
            Fate::Overtaken
        } else if now.change < base.change {
            Fate::LateRead
        } else {
            Fate::Unknown
        }
    }
}

/// Whether the store has said that it will not do it, now or on a further try.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotImplemented { .. }
            | Error::NotSupported { .. }
            | Error::NotFound { .. }
            | Error::InvalidPath { .. }
    )
}

/// Waits before the next try: between nothing and a limit that doubles, so that writers who met do not meet again.
async fn pause(tries: u32) {
    let limit = PAUSE_FIRST.saturating_mul(1 << (tries.max(1) - 1).min(16)).min(PAUSE_MAX);
    tokio::time::sleep(limit.mul_f64(fastrand::f64())).await;
}
