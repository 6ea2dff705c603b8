//! The note that a client stores with its queue entry, for display and for an operator's break.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use lockkeeper_core::{ModeKind, Token};

use super::permits::NotePermit;
use super::store::Attempt;
use crate::error::{BackendError, BackendErrorKind};
use crate::info::WaiterInfo;
use crate::info::{HolderInfo, HolderState, decode_meta};

/// Stored as JSON. Other programs' clients store something else, or nothing.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Note {
    /// The client's label.
    pub owner: String,
    /// The purpose: `key=value` lines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub meta: String,
    /// The client and the entry, for services where each client has a mailbox: a message is sent to `client`,
    /// about `entry`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// See `client`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub entry: String,
    /// For how many ms the lock stays closed if the hold expires.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub closes_ms: u64,
    /// The hold has ended, and the lock stays closed until the value expires.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// Set for a permit request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<NotePermit>,
    /// The value of the hold, in Base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// An operator's break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(ms: &u64) -> bool {
    *ms == 0
}

/// An operator's break of a hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Revocation {
    /// The operator.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl Note {
    /// The note of an attempt.
    #[must_use]
    pub fn of(attempt: &Attempt) -> Self {
        Self {
            owner: attempt.label.to_string(),
            meta: String::from_utf8_lossy(&attempt.meta).into_owned(),
            entry: attempt.entry.id.0.clone(),
            value: BASE64_STANDARD.encode(&attempt.value),
            ..Self::default()
        }
    }

    /// The note with another value of the hold.
    #[must_use]
    pub fn with_value(self, value: &[u8]) -> Self {
        Self { value: BASE64_STANDARD.encode(value), ..self }
    }

    /// `None` for the value of another kind of client.
    pub fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    /// As it is stored.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Whether the value marks the hold as broken by an operator.
pub fn is_revoked(value: &[u8]) -> bool {
    Note::read(value).is_some_and(|note| note.revoked.is_some())
}

/// The entry's hold was broken before its grant was returned.
pub fn broken_at_grant() -> BackendError {
    BackendError::new(
        BackendErrorKind::Refused,
        "an operator broke the hold as it was granted; acquire again",
    )
}

/// The holder can't be notified that its hold is broken.
pub fn untold_holder() -> BackendError {
    BackendError::new(
        BackendErrorKind::Refused,
        "its holder is another kind of client, which can't be told; only a break with `now` ends its hold",
    )
}

/// A holder, for display. `note`: `None` if it is another kind of client.
pub fn shown_holder(
    token: Option<Token>,
    mode: ModeKind,
    owner: String,
    note: Option<Note>,
    revoked: Option<Revocation>,
) -> HolderInfo {
    HolderInfo {
        token,
        mode,
        slot: note.as_ref().and_then(|note| note.permit?.slot),
        state: match revoked {
            Some(Revocation { by, reason }) => HolderState::Revoked { reason, by },
            None => HolderState::Held,
        },
        value: note.as_ref().and_then(|note| BASE64_STANDARD.decode(&note.value).ok()).unwrap_or_default(),
        meta: note.map(|note| decode_meta(note.meta.as_bytes())).unwrap_or_default(),
        ..HolderInfo::exclusive(owner)
    }
}

/// A waiter, for display.
pub fn shown_waiter(mode: ModeKind, owner: String, note: Option<Note>) -> WaiterInfo {
    let meta = note.map(|note| decode_meta(note.meta.as_bytes())).unwrap_or_default();
    WaiterInfo::new(owner, mode, meta)
}
