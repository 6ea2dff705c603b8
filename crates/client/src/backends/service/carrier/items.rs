//! Conversion of calls into items of a client frame, and of items of server frames into answers.

use std::time::Duration;

use lockkeeper_backend::{AcquireRequest, Answer, BackendError, BackendErrorKind, Busy, Granted};
use lockkeeper_core::{Mode, Seq, limits};
use lockkeeper_wire::answer::{read_end, read_grant};
use lockkeeper_wire::v1::{self, RefusedCode, client_item, server_item::What};
use lockkeeper_wire::{FRAME_BYTES_MAX, FRAME_NAMES_MAX};

use super::Nonsense;

/// Upper bound for an item without names, value and meta, in bytes: tags, lengths, numbers, a secret and a
/// label.
const FIXED: usize = 128 + limits::LABEL_BYTES_MAX;
const PER_NAME: usize = 8;

// Every item fits into a frame: the library refuses content over a limit before it opens a session
// (`Lock::acquire`).
const _: () = {
    let names = limits::NAMES_PER_REQUEST_MAX * (limits::NAME_BYTES_MAX + PER_NAME);
    assert!(FIXED + names + limits::VALUE_BYTES_MAX + limits::META_BYTES_MAX <= FRAME_BYTES_MAX);
    assert!(limits::NAMES_PER_REQUEST_MAX <= FRAME_NAMES_MAX);
};

/// Upper bound for the size of an item in a frame, in bytes.
pub(super) fn weight(item: &v1::ClientItem) -> usize {
    match &item.what {
        Some(client_item::What::Acquire(acquire)) => {
            let names: usize = acquire.names.iter().map(|name| name.len() + PER_NAME).sum();
            FIXED + names + acquire.value.len() + acquire.meta.len() + acquire.traceparent.len()
        }
        Some(client_item::What::SetValue(set)) => FIXED + set.value.len(),
        _ => FIXED,
    }
}

/// The number of lock names in an item.
pub(super) fn names(item: &v1::ClientItem) -> usize {
    match &item.what {
        Some(client_item::What::Acquire(acquire)) => acquire.names.len(),
        _ => 0,
    }
}

pub(super) fn item(session: u64, what: client_item::What) -> v1::ClientItem {
    v1::ClientItem { session, what: Some(what) }
}

pub(super) fn acquire(
    seq: Seq,
    done_through: Seq,
    request: &AcquireRequest,
    wait_left: Option<Duration>,
) -> client_item::What {
    let (mode, permits) = match request.mode {
        Mode::Exclusive => (v1::Mode::Exclusive, None),
        Mode::Shared => (v1::Mode::Shared, None),
        Mode::Permit { of } => (v1::Mode::Permit, of),
    };
    client_item::What::Acquire(v1::Acquire {
        seq: seq.0,
        done_through: done_through.0,
        names: request.names.iter().map(|name| name.as_str().to_owned()).collect(),
        mode: mode.into(),
        permits,
        subtree: request.subtree,
        wait: request.wait,
        waiters_max: request.waiters_max,
        // 0 would not wait at all (Q2); the client also ends the wait by its own clock (W1).
        at_most_ms: wait_left.map(|left| millis(left).max(1)),
        keep_closed_ms: millis(request.keep_closed),
        value: request.value.to_vec(),
        meta: request.meta.to_vec(),
        spare_tokens: request.spare_tokens,
        holding: request.holding.iter().map(|token| token.get()).collect(),
        traceparent: request.traceparent.as_deref().unwrap_or_default().to_owned(),
    })
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Converts the answer to a command; `None` if the item is no such answer.
pub(super) fn answer(what: What) -> Result<Option<Answer>, Nonsense> {
    Ok(Some(match what {
        What::Granted(granted) => {
            let grant = read_grant(&granted).map_err(|error| Nonsense(error.to_string()))?;
            Answer::Granted(Granted {
                token: Some(grant.token),
                permits: grant.permits,
                spare_tokens: grant.spare_tokens,
            })
        }
        What::Busy(busy) => Answer::Busy(Busy {
            holder: (busy.holder != 0).then_some(busy.holder_label),
            queued_ahead: busy.queued_ahead,
        }),
        What::Finished(finished) | What::Ended(finished) => {
            Answer::Finished(read_end(finished).map_err(|error| Nonsense(error.to_string()))?)
        }
        What::Done(_) => Answer::Changed,
        What::Revoked(_) => Answer::Revoked,
        What::Refused(refused) => Answer::Refused(refusal(&refused)),
        _ => return Ok(None),
    }))
}

/// Converts a refusal.
pub(super) fn refusal(refused: &v1::Refused) -> BackendError {
    let kind = match refused.code() {
        RefusedCode::Operator | RefusedCode::Unspecified => BackendErrorKind::Operator,
        RefusedCode::Denied => BackendErrorKind::Denied,
        RefusedCode::Limit => BackendErrorKind::LimitReached,
        RefusedCode::Deadlock => BackendErrorKind::Deadlock,
        RefusedCode::Invalid | RefusedCode::Permits | RefusedCode::NotHeld | RefusedCode::InUse => {
            BackendErrorKind::Refused
        }
    };
    BackendError::new(kind, refused.text.clone())
}
