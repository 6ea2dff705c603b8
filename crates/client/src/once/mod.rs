//! Work that is done once per key: a lock excludes concurrent callers, and a record of the outcome keeps
//! later callers from repeating the work.
//!
//! ```
//! use lockkeeper::once::{MemoryRecords, OnceError};
//!
//! # async fn example(locks: lockkeeper::Locks) -> Result<(), OnceError> {
//! let records = MemoryRecords::default(); // in production: in the database that the work writes to
//! let lock = locks.mutex("invoices/4711");
//! let sent = lock.once("invoice-4711-sent", &records, async |_attempt| {
//!     Ok::<_, OnceError>(b"message 17".to_vec()) // the work
//! });
//! let sent = sent.await?;
//! assert_eq!(sent.outcome, b"message 17"); // of this call, or of an earlier one anywhere
//! # Ok(()) }
//! ```
//!
//! How often the work's effect takes place:
//!
//! - Once, if the work writes the record itself, in the transaction of its effect
//!   ([`PostgresRecords::put_in`], [`SqliteRecords::put_in`]): the second of two transactions finds the
//!   record.
//! - Otherwise at least once: if a process dies between the work and the record, the next caller repeats the
//!   work. If the service that performs the effect supports idempotency keys, pass it the key.
//!
//! An error of the work is not recorded, and the next call tries again.
//!
//! Records are kept until they are deleted, or for the time that the store is configured with. Keep them
//! longer than any retry of the same key can take.

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "file")]
mod file;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use lockkeeper_backend::{hex, random_bytes};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::ops::Deref;

use crate::error::{AcquireError, HoldError};
use crate::guard::{Guard, Held};
use crate::kind::Kind;
use crate::lock::Lock;

#[cfg(feature = "dynamodb")]
pub use dynamodb::DynamoDbRecords;
#[cfg(feature = "file")]
pub use file::FileRecords;
pub use memory::MemoryRecords;
#[cfg(feature = "postgres")]
pub use postgres::PostgresRecords;
#[cfg(feature = "redis")]
pub use redis::RedisRecords;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteRecords;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// The largest outcome, in bytes.
pub const OUTCOME_BYTES_MAX: usize = 64 * 1024;

/// A store of outcomes.
pub trait OnceStore: Send + Sync {
    /// Why a call failed.
    type Error: Into<Box<dyn Error + Send + Sync>>;

    /// The record of a key.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<OnceRecord>, Self::Error>> + Send;

    /// Stores a record unless the key has one; atomically. Returns the key's record: this one, or the earlier
    /// one.
    fn put(
        &self,
        key: &str,
        record: &OnceRecord,
    ) -> impl Future<Output = Result<OnceRecord, Self::Error>> + Send;
}

/// The record that the work of a key was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnceRecord {
    /// The id of the attempt that did the work ([`OnceAttempt::id`]): 32 hexadecimal digits.
    pub attempt: String,
    /// What the work returned.
    pub outcome: Vec<u8>,
}

impl OnceRecord {
    /// A record of a new attempt.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    pub fn new(outcome: Vec<u8>) -> Self {
        Self { attempt: attempt_id(), outcome }
    }

    /// The attempt, a line feed, and the outcome: for stores of single values.
    #[cfg(any(feature = "file", feature = "redis"))]
    fn to_bytes(&self) -> Vec<u8> {
        [self.attempt.as_bytes(), b"\n", &self.outcome].concat()
    }

    /// Reads [`Self::to_bytes`].
    #[cfg(any(feature = "file", feature = "redis"))]
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let attempt = std::str::from_utf8(&bytes[..end]).ok()?.to_owned();
        Some(Self { attempt, outcome: bytes[end + 1..].to_vec() })
    }
}

#[cfg(all(any(test, fuzzing), any(feature = "file", feature = "redis")))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(record) = OnceRecord::from_bytes(bytes) {
        assert_eq!(record.to_bytes(), bytes);
    }
}

/// The result of [`Lock::once`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Once {
    /// What the work returned, in this call or in an earlier one.
    pub outcome: Vec<u8>,
    /// Whether this call did the work.
    pub is_new: bool,
}

/// Why [`Lock::once`] has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError {
    /// The key is empty or too long.
    #[error("the key has {bytes} bytes; 1 to {KEY_BYTES_MAX} are allowed")]
    Key {
        /// The length of the key.
        bytes: usize,
    },
    /// The lock was not acquired, or was lost while the work ran. The work is recorded only if it had ended.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// The records could not be read. The work was not done.
    #[error("the record of `{key}` could not be read")]
    Read {
        /// The key.
        key: String,
        /// The store's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The work was done, but its record could not be written: the record may be missing, and then the next
    /// call repeats the work.
    #[error("the work was done, but its record for `{key}` could not be written")]
    Write {
        /// The key.
        key: String,
        /// The store's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The work was done and not recorded, because its outcome is too large.
    #[error(
        "the work was done, but its outcome of {bytes} bytes can't be recorded; at most {OUTCOME_BYTES_MAX} are allowed"
    )]
    Outcome {
        /// The length of the outcome.
        bytes: usize,
    },
    /// The lock was lost while the work ran, and another holder did the work too and recorded it first.
    #[error("the work was done twice: the lock was lost, and another holder has recorded its outcome first")]
    Twice {
        /// The outcome of the other holder.
        outcome: Vec<u8>,
    },
}

impl From<AcquireError> for OnceError {
    fn from(error: AcquireError) -> Self {
        Self::Hold(error.into())
    }
}

/// The running work of [`Lock::once`]. Dereferences to the guard of the lock.
pub struct OnceAttempt<'a, F: Kind> {
    held: Held<'a, F>,
    id: String,
}

impl<F: Kind> OnceAttempt<'_, F> {
    /// The attempt's random id, which is in its record: 32 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The record of this attempt, to be written in the transaction of the work.
    #[must_use]
    pub fn record(&self, outcome: Vec<u8>) -> OnceRecord {
        OnceRecord { attempt: self.id.clone(), outcome }
    }
}

impl<F: Kind> Deref for OnceAttempt<'_, F> {
    type Target = Guard<F>;

    fn deref(&self) -> &Guard<F> {
        &self.held
    }
}

impl<F: Kind> fmt::Debug for OnceAttempt<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceAttempt").field("id", &self.id).field("held", &self.held).finish()
    }
}

impl<F: Kind> Lock<F> {
    /// Does the work of a key and records its outcome in `store`, unless `store` has the outcome already; see
    /// [`crate::once`]. Takes the lock only if there is no record yet. All callers with the same key must use
    /// the same lock.
    ///
    /// # Errors
    /// The error of the work, or [`OnceError`].
    pub async fn once<S: OnceStore, E: From<OnceError>>(
        &self,
        key: &str,
        store: &S,
        work: impl AsyncFnOnce(OnceAttempt<'_, F>) -> Result<Vec<u8>, E>,
    ) -> Result<Once, E> {
        let bytes = key.len();
        if !(1..=KEY_BYTES_MAX).contains(&bytes) {
            return Err(OnceError::Key { bytes }.into());
        }
        if let Some(OnceRecord { outcome, .. }) = read(store, key).await? {
            return Ok(Once { outcome, is_new: false });
        }
        let (mut done, mut unrecorded) = (None, None);
        let ran = self.run(async |held| {
            if let Some(OnceRecord { outcome, .. }) = read(store, key).await.map_err(UnderLock::Own)? {
                done = Some(Once { outcome, is_new: false });
                return Ok(());
            }
            let attempt = attempt_id();
            let outcome = work(OnceAttempt { held, id: attempt.clone() }).await.map_err(UnderLock::Work)?;
            let record = unrecorded.insert(OnceRecord { attempt, outcome });
            done = Some(write(store, key, record).await.map_err(UnderLock::Own)?);
            Ok(())
        });
        let ran = ran.await;
        if let (Err(UnderLock::Hold(_)), None, Some(record)) = (&ran, &done, &unrecorded) {
            // The work was done; the loss of the lock has cancelled the writing of its record.
            return Ok(write(store, key, record).await?);
        }
        match (ran, done) {
            // A loss of the lock after the record was written does no harm.
            (Ok(()) | Err(UnderLock::Hold(_)), Some(once)) => Ok(once),
            (Err(UnderLock::Work(error)), _) => Err(error),
            (Err(UnderLock::Own(error)), _) => Err(error.into()),
            (Err(UnderLock::Hold(error)), None) => Err(OnceError::Hold(error).into()),
            (Ok(()), None) => unreachable!("the closure sets the outcome before it returns"),
        }
    }
}

/// What ends the work under the lock.
enum UnderLock<E> {
    Work(E),
    Own(OnceError),
    Hold(HoldError),
}

impl<E> From<HoldError> for UnderLock<E> {
    fn from(error: HoldError) -> Self {
        Self::Hold(error)
    }
}

async fn read<S: OnceStore>(store: &S, key: &str) -> Result<Option<OnceRecord>, OnceError> {
    store.get(key).await.map_err(|error| OnceError::Read { key: key.to_owned(), source: error.into() })
}

async fn write<S: OnceStore>(store: &S, key: &str, record: &OnceRecord) -> Result<Once, OnceError> {
    let bytes = record.outcome.len();
    if bytes > OUTCOME_BYTES_MAX {
        return Err(OnceError::Outcome { bytes });
    }
    let stored = store.put(key, record).await;
    let stored = stored.map_err(|error| OnceError::Write { key: key.to_owned(), source: error.into() })?;
    if stored.attempt == record.attempt {
        Ok(Once { outcome: record.outcome.clone(), is_new: true })
    } else {
        Err(OnceError::Twice { outcome: stored.outcome })
    }
}

/// The key of a record in a store that is shared with other data.
#[cfg(any(feature = "dynamodb", feature = "redis"))]
fn prefixed(key: &str) -> String {
    format!("lockkeeper:once:{key}")
}

fn attempt_id() -> String {
    hex(&random_bytes::<16>().expect("the system has random numbers"))
}
