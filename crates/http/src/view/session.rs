//! Sessions.

use lockkeeper_wire::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A live session.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    /// The session's id.
    pub session: u64,
    /// The client's label, as the client has chosen it.
    pub label: String,
    /// The identity that the service has authenticated; empty: unknown.
    pub identity: String,
    /// How long the session lives without a sign of life from its client, in milliseconds.
    pub ttl_ms: u64,
    /// The rest of its ttl, as the leader counts it, in milliseconds.
    pub left_ms: u64,
    /// How long its locks stay closed if it expires, in milliseconds.
    pub lock_delay_ms: u64,
    /// How long it lives once its client has closed the stream, in milliseconds; 0: as long as otherwise.
    pub linger_ms: u64,
    /// The number of its holds and waiting requests.
    pub requests: u64,
    /// Whether its client has a stream open, or makes calls instead and has made one in the last half of the
    /// ttl; also true after a change of leader, until the client was heard or its ttl is over.
    pub attached: bool,
}

impl From<v1::Session> for SessionView {
    fn from(session: v1::Session) -> Self {
        let v1::Session {
            id,
            label,
            ttl_ms,
            lock_delay_ms,
            linger_ms,
            requests,
            attached,
            left_ms,
            identity,
        } = session;
        Self { session: id, label, identity, ttl_ms, left_ms, lock_delay_ms, linger_ms, requests, attached }
    }
}

/// What the order to end a session has done.
#[derive(Serialize, ToSchema)]
#[schema(as = EndedSession)]
pub struct EndedSessionView {
    /// The session's id.
    pub session: u64,
    /// `done`: it has ended, with all its holds and waiters; `gone`: there is no such session any more;
    /// `attached`: its client is attached, and the session goes on: only `now` ends it.
    pub result: EndSessionResult,
}

/// How the order to end a session went.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EndSessionResult {
    /// It has ended, with all its holds and waiters.
    Done,
    /// There is no such session any more.
    Gone,
    /// Its client is attached, and the session goes on.
    Attached,
}

impl EndSessionResult {
    /// `None`: a result that this version does not know.
    pub(crate) fn of(result: v1::EndSessionResult) -> Option<Self> {
        match result {
            v1::EndSessionResult::Done => Some(Self::Done),
            v1::EndSessionResult::Gone => Some(Self::Gone),
            v1::EndSessionResult::Attached => Some(Self::Attached),
            v1::EndSessionResult::Unspecified => None,
        }
    }
}
