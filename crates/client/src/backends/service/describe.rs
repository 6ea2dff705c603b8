//! Converts the service's descriptions of locks, sessions and nodes into the library's types.

use std::time::{Duration, SystemTime};

use lockkeeper_backend::{
    BackendError, BackendErrorKind, Broken, EndedSession, HolderInfo, HolderState, LockInfo, NodeDisk,
    NodeRole, ServiceStatus, SessionInfo, WaiterInfo, decode_meta,
};
use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus, WallTime};
use lockkeeper_wire::v1;

/// The answer is invalid: the service is newer, or is no lock service.
fn nonsense(what: impl std::fmt::Display) -> BackendError {
    BackendError::new(
        BackendErrorKind::Operator,
        format!(
            "the lock service's answer can't be read: {what}; use versions of client and service that fit"
        ),
    )
}

fn mode(mode: v1::Mode) -> Result<ModeKind, BackendError> {
    match mode {
        v1::Mode::Exclusive => Ok(ModeKind::Exclusive),
        v1::Mode::Shared => Ok(ModeKind::Shared),
        v1::Mode::Permit => Ok(ModeKind::Permit),
        v1::Mode::Unspecified => Err(nonsense("a mode is unknown")),
    }
}

fn token(value: u64) -> Result<Token, BackendError> {
    Token::new(value).ok_or_else(|| nonsense(format_args!("{value} is no token")))
}

pub(super) fn lock(lock: v1::Lock) -> Result<LockInfo, BackendError> {
    Ok(LockInfo {
        name: LockName::parse(&lock.name).map_err(nonsense)?,
        hold_count: usize::try_from(lock.hold_count).unwrap_or(usize::MAX),
        holds: lock.holds.into_iter().map(hold).collect::<Result<_, _>>()?,
        waiter_count: usize::try_from(lock.waiter_count).unwrap_or(usize::MAX),
        waiters: lock.waiters.into_iter().map(waiter).collect::<Result<_, _>>()?,
        permits: lock.permits,
        permits_stored: lock.permits_stored,
    })
}

fn hold(hold: v1::Hold) -> Result<HolderInfo, BackendError> {
    let first = token(hold.token)?;
    Ok(HolderInfo {
        token: Some(first),
        cached: hold.cached,
        recalled: hold.recalled,
        last_token: first.after(hold.spare_tokens),
        session: (hold.session != 0).then_some(hold.session),
        mode: mode(hold.mode())?,
        subtree: hold.subtree,
        slot: hold.slot,
        held_for: hold.held_for_ms.map(Duration::from_millis),
        since: WallTime(hold.since_unix_ms).time(),
        state: match hold.state() {
            v1::HoldState::Held => HolderState::Held,
            v1::HoldState::Revoked => HolderState::Revoked { reason: hold.break_reason, by: hold.break_by },
            v1::HoldState::Closed => HolderState::Closed { left: Duration::from_millis(hold.closed_for_ms) },
            v1::HoldState::Unspecified => return Err(nonsense("the state of a hold is unknown")),
        },
        label: hold.label,
        identity: hold.identity,
        meta: decode_meta(&hold.meta),
        value: hold.value,
    })
}

fn waiter(waiter: v1::Waiter) -> Result<WaiterInfo, BackendError> {
    Ok(WaiterInfo {
        session: Some(waiter.session),
        mode: mode(waiter.mode())?,
        subtree: waiter.subtree,
        label: waiter.label,
        identity: waiter.identity,
        meta: decode_meta(&waiter.meta),
        waiting_for: waiter.waiting_for_ms.map(Duration::from_millis),
        since: WallTime(waiter.since_unix_ms).time(),
    })
}

pub(super) fn session(session: v1::Session) -> SessionInfo {
    SessionInfo {
        id: session.id,
        label: session.label,
        identity: session.identity,
        ttl: Duration::from_millis(session.ttl_ms),
        lock_delay: Duration::from_millis(session.lock_delay_ms),
        linger: Duration::from_millis(session.linger_ms),
        requests: session.requests,
        attached: session.attached,
        left: Duration::from_millis(session.left_ms),
    }
}

pub(super) fn status(status: v1::StatusResponse) -> ServiceStatus {
    let disk_state = match status.disk_state() {
        v1::DiskState::Unspecified => None,
        v1::DiskState::Enough => Some(NodeDisk::Enough),
        v1::DiskState::Low => Some(NodeDisk::Low),
        v1::DiskState::Full => Some(NodeDisk::Full),
    };
    ServiceStatus {
        role: match status.role() {
            v1::Role::Follower | v1::Role::Unspecified => NodeRole::Follower,
            v1::Role::Candidate => NodeRole::Candidate,
            v1::Role::Leader => NodeRole::Leader,
        },
        version: status.version,
        node: status.node,
        incarnation: status.incarnation,
        cluster: status.cluster,
        leader: (status.leader != 0).then_some(status.leader),
        term: status.term,
        applied: status.applied,
        committed: status.committed,
        snapshot: status.snapshot,
        last_token: status.last_token,
        sessions: status.sessions,
        requests: status.requests,
        streams: status.streams,
        relayed_streams: status.relayed_streams,
        rules: status.rules,
        members: status.members.into_iter().map(super::cluster::node).collect(),
        removed: status.removed,
        certificate_ends: (status.certificate_ends > 0)
            .then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(status.certificate_ends)),
        permissions: Some(status.permissions).filter(|digest| !digest.is_empty()),
        disk_used_bytes: status.disk_used_bytes,
        disk_free_bytes: status.disk_free_bytes,
        disk_state,
        disk_full_in: status.disk_full_in_seconds.map(Duration::from_secs),
        audit_error: Some(status.audit_error).filter(|error| !error.is_empty()),
        backup_error: Some(status.backup_error).filter(|error| !error.is_empty()),
        files_error: Some(status.files_error).filter(|error| !error.is_empty()),
    }
}

pub(super) fn token_status(checked: &v1::CheckTokenResponse) -> Result<TokenStatus, BackendError> {
    match checked.status() {
        v1::TokenStatus::Current => Ok(TokenStatus::Current),
        v1::TokenStatus::NotCurrent => Ok(TokenStatus::NotCurrent { live: tokens(&checked.live)? }),
        v1::TokenStatus::NeverIssued => Ok(TokenStatus::NeverIssued),
        v1::TokenStatus::Unspecified => Err(nonsense("the worth of a token is unknown")),
    }
}

pub(super) fn broken(broken: &v1::BreakResponse) -> Result<Broken, BackendError> {
    match broken.result() {
        v1::BreakResult::Done => Ok(Broken::Done),
        v1::BreakResult::NotCurrent => Ok(Broken::NotCurrent { live: tokens(&broken.live)? }),
        v1::BreakResult::StillClosed => Ok(Broken::StillClosed),
        v1::BreakResult::Unspecified => Err(nonsense("the result of a break is unknown")),
    }
}

pub(super) fn ended_session(answer: v1::EndSessionResponse) -> Result<EndedSession, BackendError> {
    match answer.result() {
        v1::EndSessionResult::Done => Ok(EndedSession::Done),
        v1::EndSessionResult::Gone => Ok(EndedSession::Gone),
        v1::EndSessionResult::Attached => Ok(EndedSession::Attached),
        v1::EndSessionResult::Unspecified => Err(nonsense("the result of ending a session is unknown")),
    }
}

fn tokens(live: &[u64]) -> Result<Vec<Token>, BackendError> {
    live.iter().map(|&value| token(value)).collect()
}
