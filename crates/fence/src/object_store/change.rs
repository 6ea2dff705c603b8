//! One change of one object: reads it, decides, puts the next record conditionally, and determines whether
//! the put took effect.
//!
//! Guarantees that no change is lost, applied twice or reported wrongly, for any response of the store. It
//! does not depend on the decision, which is made by [`Marks::check`](crate::Marks::check) and its callers.
//!
//! The response to a conditional put can be lost. It can also be "condition failed" only because the client
//! resent the put after a lost response and the first copy had taken effect. So a failed condition is not
//! conclusive: the object is read again, and its record determines the outcome ([`Fate`]):
//! - The record has our nonce, or lists it among the previous changes: our put took effect, though other
//!   changes may have followed.
//! - The record is still the one that we read before: our put did not take effect yet, but may be in flight.
//!   The same bytes are put again; at most one of the two puts can take effect, since they have the same
//!   condition.
//! - The record lists the nonce of the one that we read before, but not ours: another change followed the old
//!   record, so ours can never take effect. The decision is made again, on the current record.
//! - The record is older than the one that we read before: the read lags, and is repeated.
//! - There is no object any more: a client that bypassed the fence removed it ([`ObjectError::Removed`]).
//! - None of these, because more than [`BEFORE_MAX`](super::record::BEFORE_MAX) changes came between: the
//!   outcome is unknown ([`ObjectError::Unsure`]).
//!
//! Every call puts, even if it raises no mark. If an earlier put of the same holder is still in flight, its
//! condition fails from then on. The put also proves that the check was made on the object's current state,
//! even if the store's reads lag. A refusal needs no such proof: it is correct even on a lagging read, since
//! marks only rise.

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
/// The upper limit of the first pause, about the duration of a put. The limit doubles for each further pause.
const PAUSE_FIRST: Duration = Duration::from_millis(10);

/// The objects of one kind of fence in one store.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) holds: Holds,
    /// The largest number of tries for one change. A try is a put, or a repeated read after a failed or
    /// lagging one.
    pub(super) tries: u32,
}

/// A record as read, and the version for a conditional put.
struct ReadRecord {
    record: Record,
    version: UpdateVersion,
}

/// The decision of a call: the next state of the object.
pub(super) struct Next<T> {
    pub(super) marks: Marks,
    pub(super) content: Option<Bytes>,
    /// The result of the call once the put is done.
    pub(super) answer: T,
}

/// One decision and its put. The put is sent again, with the same bytes, while its outcome is open.
struct Attempt<T> {
    base: Option<ReadRecord>,
    nonce: Nonce,
    bytes: Bytes,
    answer: T,
    /// The last error of a put of this attempt other than "condition failed".
    unanswered: Option<Error>,
}

/// The outcome of an attempt, from the record read after it.
enum Fate {
    Done,
    /// Not done so far, since the object is unchanged; a put may still be in flight.
    Open,
    /// Not done, and it can't take effect any more.
    Overtaken,
    /// The read lags: it returned a state from before the record that the attempt is based on.
    LateRead,
    /// The object does not exist any more.
    Removed,
    Unknown,
}

/// Returns the path of the object of `resource`.
///
/// # Errors
/// [`ObjectError::BadResource`] and [`ObjectError::BadPath`].
pub(super) fn path_of(resource: &str) -> Result<Path, ObjectError> {
    let name = resource::checked(resource)?;
    let bad = |why: String| ObjectError::BadPath { resource: resource.to_owned(), why };
    let path = Path::parse(name).map_err(|error| bad(error.to_string()))?;
    // `Path::parse` drops slashes at the beginning and the end, so one object would have two names.
    if path.as_ref() != name {
        return Err(bad("it begins or ends with `/`".to_owned()));
    }
    Ok(path)
}

impl Objects {
    /// The record of the object; `None` if there is no such object.
    ///
    /// # Errors
    /// All errors of a read: see [`ObjectError`].
    pub(super) async fn read(&self, path: &Path) -> Result<Option<Record>, ObjectError> {
        Ok(self.see(path).await?.map(|seen| seen.record))
    }

    async fn see(&self, path: &Path) -> Result<Option<ReadRecord>, ObjectError> {
        let failed = |error| ObjectError::store("read", path)(error);
        let got = match self.store.get_opts(path, GetOptions::default()).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let resource = || path.to_string();
        // Checked before reading into memory: no record of a fence is longer.
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
        Ok(Some(ReadRecord { record, version }))
    }

    /// Changes the object as decided by `decide`, which is called again each time another writer changed the
    /// object first. Its argument is `None` if the object does not exist.
    ///
    /// # Errors
    /// Those of `decide`, with nothing done; [`ObjectError::Contended`], [`ObjectError::Unsure`],
    /// [`ObjectError::Removed`], [`ObjectError::Store`], and all errors of a read.
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
                // No put of this call was sent, so none can be in flight.
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
        base: Option<ReadRecord>,
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
    fn fate(&self, seen: Option<&ReadRecord>) -> Fate {
        let (now, base) = match (seen, &self.base) {
            (None, None) => return Fate::Open,
            (None, Some(_)) => return Fate::Removed,
            (Some(now), base) => (&now.record, base.as_ref().map(|base| &base.record)),
        };
        if now.nonce == self.nonce || now.before.contains(&self.nonce) {
            return Fate::Done;
        }
        let Some(base) = base else {
            // If the record lists all changes back to the first one, ours is not among them: another writer
            // created the object.
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

/// Whether the error is permanent: the put was not done, and a retry would fail too.
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

/// Waits before the next try: a random time up to a limit that doubles (jittered exponential backoff).
async fn pause(tries: u32) {
    let limit = PAUSE_FIRST.saturating_mul(1 << (tries.max(1) - 1).min(16)).min(PAUSE_MAX);
    tokio::time::sleep(limit.mul_f64(fastrand::f64())).await;
}
