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
    /// Whether its client has a stream open, or makes calls instead.
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
