//! The paths of the calls that are treated in a way of their own, and the headers of forwarded calls.

/// The call for one request of a session without a stream.
pub(super) const SESSION_CALL: &str = "/lockkeeper.v1.Lockkeeper/SessionCall";
/// The call for a node's state.
pub(super) const STATUS: &str = "/lockkeeper.v1.Lockkeeper/Status";
/// The path prefix of the health service, which needs no authentication.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// The header of a forwarded call: the incarnation of the forwarding node's data directory.
pub(super) const FORWARDED: &str = "lockkeeper-forwarded";
/// The header with the identity of a forwarded call's caller. Accepted only from connections with the
/// certificate of another node.
pub(super) const IDENTITY: &str = "lockkeeper-identity";
/// The header with the address of a forwarded call's caller, for the audit trail.
pub(super) const ADDRESS: &str = "lockkeeper-address";

/// Whether a call needs no authentication.
pub(super) fn is_open_to_all(path: &str) -> bool {
    path.starts_with(HEALTH)
}

/// The name of a call of the service; `None` for calls of other services.
pub(super) fn call_name(path: &str) -> Option<&str> {
    path.strip_prefix("/lockkeeper.v1.Lockkeeper/")
}

/// Whether a call of this service has a single answer. Its other calls are answered by streams, which are
/// sent no faster than their readers read.
pub(super) fn has_one_answer(path: &str) -> bool {
    call_name(path).is_some_and(|name| !matches!(name, "Session" | "Watch" | "Backup"))
}

/// Whether a call opens a stream of a session's requests, which a drain barrier has to wait for.
pub(super) fn opens_session_stream(path: &str) -> bool {
    call_name(path) == Some("Session")
}
