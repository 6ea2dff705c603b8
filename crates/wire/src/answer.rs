//! The service's answers on a client's stream.

use lockkeeper_core::{End, Grant, PermitGrant, Rejection, Reply, Seq, SessionId};

use crate::fields::{self, Malformed, malformed};
use crate::v1::{self, server_item::What};

/// Returns the item that answers a session's command.
///
/// `label` returns the label of a session; it is called for the holder that `Busy` names.
#[must_use]
pub fn reply_item(
    session: SessionId,
    seq: Seq,
    reply: Reply,
    label: impl FnOnce(SessionId) -> String,
) -> v1::ServerItem {
    let what = match reply {
        Reply::Granted(grant) => granted(&grant),
        Reply::Queued { position, limits } => What::Queued(v1::Queued { position, limits }),
        Reply::Busy { holder, queued_ahead } => What::Busy(v1::Busy {
            holder: holder.map_or(0, |holder| holder.0),
            holder_label: holder.map(label).unwrap_or_default(),
            queued_ahead,
        }),
        Reply::Finished(end) => What::Finished(finished(end)),
        Reply::Revoked { token } => {
            What::Revoked(v1::Revoked { token: token.get(), ..v1::Revoked::default() })
        }
        Reply::Refused(rejection) => What::Refused(refused(&rejection)),
        Reply::Done => What::Done(v1::Done {}),
        // Only `SessionGone` occurs here: `Opened`, `NotCurrent` and `StillClosed` are replies to
        // `OpenSession` and `Break`, whose answers are not built here.
        Reply::SessionGone | Reply::Opened { .. } | Reply::NotCurrent { .. } | Reply::StillClosed => {
            What::SessionGone(v1::SessionGone {})
        }
    };
    v1::ServerItem { session: session.0, seq: seq.0, what: Some(what) }
}

/// The body of an answer that grants a request.
#[must_use]
pub fn granted(grant: &Grant) -> What {
    What::Granted(v1::Granted {
        token: grant.token.get(),
        permits: grant
            .permits
            .iter()
            .map(|permit| v1::PermitGrant { slot: permit.slot, limit: permit.limit })
            .collect(),
        spare_tokens: grant.spare_tokens,
    })
}

/// The body of an answer that names how a request ended.
#[must_use]
pub fn finished(end: End) -> v1::Finished {
    let end = match end {
        End::Left => v1::End::Left,
        End::Released => v1::End::Released,
        End::Broken => v1::End::Broken,
        End::TimedOut => v1::End::TimedOut,
        End::NotAcquired => v1::End::NotAcquired,
        End::Gone => v1::End::Gone,
    };
    v1::Finished { end: end.into() }
}

/// Encodes a refusal: the code determines the client's next step, the text is the rejection's, for people.
#[must_use]
pub fn refused(rejection: &Rejection) -> v1::Refused {
    v1::Refused { code: refused_code(rejection).into(), text: rejection.to_string(), secret_prefix: 0 }
}

fn refused_code(rejection: &Rejection) -> v1::RefusedCode {
    match rejection {
        Rejection::NameCount { .. }
        | Rejection::PermitSubtree
        | Rejection::PermitCount { .. }
        | Rejection::KeepClosed { .. }
        | Rejection::ValueTooLong { .. }
        | Rejection::MetaTooLong { .. }
        | Rejection::SpareTokens { .. }
        | Rejection::NotCacheable
        | Rejection::HoldingCount { .. }
        | Rejection::TextTooLong { .. }
        | Rejection::Ttl { .. }
        | Rejection::LockDelay { .. }
        | Rejection::Linger { .. } => v1::RefusedCode::Invalid,
        Rejection::OtherTerms { .. } | Rejection::NumberTaken { .. } => v1::RefusedCode::InUse,
        Rejection::OtherIdentity { .. } => v1::RefusedCode::Denied,
        Rejection::LimitMismatch { .. } | Rejection::NoLimit { .. } => v1::RefusedCode::Permits,
        Rejection::NotHeld { .. } | Rejection::WrongMode { .. } => v1::RefusedCode::NotHeld,
        Rejection::Deadlock { .. } => v1::RefusedCode::Deadlock,
        Rejection::TooManySessions
        | Rejection::TooManyRequests
        | Rejection::TooManyWaiters { .. }
        | Rejection::TooManyKeptAnswers
        | Rejection::TooManyClosedHolds
        | Rejection::TableFull
        | Rejection::TooManyStoredLimits => v1::RefusedCode::Limit,
        Rejection::TokensExhausted | Rejection::RaiseTooHigh { .. } | Rejection::UnknownRules { .. } => {
            v1::RefusedCode::Operator
        }
    }
}

/// Decodes a grant.
///
/// # Errors
/// [`Malformed`] if the token is out of range.
pub fn read_grant(granted: &v1::Granted) -> Result<Grant, Malformed> {
    Ok(Grant {
        token: fields::token(granted.token)?,
        permits: granted
            .permits
            .iter()
            .map(|permit| PermitGrant { slot: permit.slot, limit: permit.limit })
            .collect(),
        spare_tokens: granted.spare_tokens,
    })
}

/// Decodes how a request ended.
///
/// # Errors
/// [`Malformed`] if this version does not know the value.
pub fn read_end(finished: v1::Finished) -> Result<End, Malformed> {
    match v1::End::try_from(finished.end) {
        Ok(v1::End::Left) => Ok(End::Left),
        Ok(v1::End::Released) => Ok(End::Released),
        Ok(v1::End::Broken) => Ok(End::Broken),
        Ok(v1::End::TimedOut) => Ok(End::TimedOut),
        Ok(v1::End::NotAcquired) => Ok(End::NotAcquired),
        Ok(v1::End::Gone) => Ok(End::Gone),
        Ok(v1::End::Unspecified) | Err(_) => {
            malformed(format!("end {} of a request is unknown", finished.end))
        }
    }
}
