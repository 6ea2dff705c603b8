//! The object of one lock, in JSON. It is never deleted: its counter makes the tokens rise.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_backend::leased::{Attempt, Entry, EntryId, Note, NotePermit};
use lockkeeper_backend::{BackendError, BackendErrorKind, hex, random_bytes};
use lockkeeper_core::{LockName, Mode, ModeKind, Token};
use serde::{Deserialize, Serialize};

/// The version of the layout.
const LAYOUT: u32 = 1;
/// Suffix of the objects of locks. It keeps a lock and the locks below its name apart where a store's objects
/// are files, and other objects below the prefix out of lists.
pub(super) const SUFFIX: &str = ".lock";
/// Largest object that is read, in bytes: more than [`HOLDERS_MAX`] holders with the longest notes.
pub(super) const OBJECT_BYTES_MAX: u64 = 1 << 20;
/// Largest number of holders of a lock: each of their renewals writes the whole object.
pub(super) const HOLDERS_MAX: usize = 16;
/// Number of released holds that an object names.
const RELEASED_MAX: usize = 8;

/// A lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct LockRecord {
    lockkeeper: u32,
    /// Of the latest grant; 0 before the first.
    pub(super) token: u64,
    /// New with each write. Equal contents have equal ETags at S3, and a condition must name one write.
    nonce: String,
    pub(super) holds: Vec<HeldRecord>,
    /// The last holds that were released, the newest last: a release whose answer was lost finds itself here.
    released: Vec<EntryId>,
}

/// A hold, alive or dead.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct HeldRecord {
    pub(super) id: EntryId,
    pub(super) mode: HeldMode,
    pub(super) token: u64,
    /// Rises with each renewal.
    pub(super) renewal: u64,
    ttl_ms: u64,
    /// The lock-delay.
    delay_ms: u64,
    /// For display; with an operator's break, and the slot of a permit.
    pub(super) note: Note,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum HeldMode {
    Exclusive,
    Shared,
    Permit,
}

impl HeldMode {
    pub(super) fn kind(self) -> ModeKind {
        match self {
            Self::Exclusive => ModeKind::Exclusive,
            Self::Shared => ModeKind::Shared,
            Self::Permit => ModeKind::Permit,
        }
    }
}

impl HeldRecord {
    /// For how long others observe the hold before they take its place: the ttl, and the time for which the
    /// lock is to stay closed after an expiry.
    pub(super) fn observed_for(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.saturating_add(self.delay_ms))
    }

    pub(super) fn token(&self) -> Option<Token> {
        Token::new(self.token)
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.note.revoked.is_some()
    }
}

impl LockRecord {
    /// A lock that was never held.
    pub(super) fn new() -> Self {
        Self { lockkeeper: LAYOUT, token: 0, nonce: String::new(), holds: Vec::new(), released: Vec::new() }
    }

    pub(super) fn hold(&self, id: &EntryId) -> Option<&HeldRecord> {
        self.holds.iter().find(|held| held.id == *id)
    }

    pub(super) fn hold_mut(&mut self, id: &EntryId) -> Option<&mut HeldRecord> {
        self.holds.iter_mut().find(|held| held.id == *id)
    }

    pub(super) fn was_released(&self, id: &EntryId) -> bool {
        self.released.contains(id)
    }

    /// Adds a hold with the next token.
    pub(super) fn grant(&mut self, attempt: &Attempt, permit: Option<NotePermit>) -> u64 {
        let Entry { id, mode, ttl, lock_delay, .. } = &*attempt.entry;
        self.token += 1;
        let millis = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.holds.push(HeldRecord {
            id: id.clone(),
            mode: match mode {
                Mode::Exclusive => HeldMode::Exclusive,
                Mode::Shared => HeldMode::Shared,
                Mode::Permit { .. } => HeldMode::Permit,
            },
            token: self.token,
            renewal: 0,
            ttl_ms: millis(ttl),
            delay_ms: millis(lock_delay),
            note: Note { permit, ..Note::of(attempt) },
        });
        self.token
    }

    /// Removes a hold, and remembers that it was released. Returns it as it was.
    pub(super) fn release(&mut self, id: &EntryId) -> Option<HeldRecord> {
        let at = self.holds.iter().position(|held| held.id == *id)?;
        if self.released.len() == RELEASED_MAX {
            self.released.remove(0);
        }
        self.released.push(id.clone());
        Some(self.holds.remove(at))
    }

    /// As it is stored, with a new nonce.
    pub(super) fn sealed(mut self) -> Result<(Self, Bytes), BackendError> {
        self.nonce = hex(&random_bytes::<16>()?);
        let bytes = serde_json::to_vec(&self).map_err(|error| {
            BackendError::new(BackendErrorKind::Refused, format!("the lock can't be written: {error}"))
        })?;
        Ok((self, bytes.into()))
    }

    /// Decodes an object.
    pub(super) fn read(name: &LockName, bytes: &[u8]) -> Result<Self, BackendError> {
        let why = match serde_json::from_slice::<Self>(bytes) {
            Ok(record) if record.lockkeeper == LAYOUT => return Ok(record),
            Ok(record) => format!("it has layout {}, and this program reads {LAYOUT}", record.lockkeeper),
            Err(error) => format!("it can't be read ({error})"),
        };
        let what = format!(
            "the object `{name}{SUFFIX}` is no lock: {why}; use another prefix, or move the object away and see that \
             fences know a token that high (`lockkeeper check-token`)"
        );
        Err(BackendError::new(BackendErrorKind::Operator, what))
    }
}
