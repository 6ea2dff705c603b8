//! What lock services say, as `--json` prints it: the shapes of HTTP/JSON (docs/json.md), also for other lock
//! services, which leave fields out.

use std::time::{Duration, SystemTime};

use lockkeeper::{
    Broken, ClusterInfo, EndedSession, HolderInfo, HolderState, LockInfo, NodeDisk, NodeInfo, NodePart,
    NodeReport, NodeRole, ServiceStatus, SessionInfo, Token, TokenStatus, WaiterInfo,
};
use lockkeeper_http::view::content::{shown, time};
use lockkeeper_http::view::{
    BreakResult, BreakView, DiskView, EndSessionResult, EndedSessionView, HoldStateView, HoldView, LockView,
    MemberView, MembersView, Mode, NodeView, PartView, RoleView, SessionView, TokenStateView, TokenView,
    WaiterView,
};
use serde::Serialize;

pub(crate) fn lock(info: &LockInfo) -> LockView {
    LockView {
        name: info.name.to_string(),
        holds: info.holds.iter().map(hold).collect(),
        hold_count: info.hold_count as u64,
        next_holds_after: None,
        waiters: info.waiters.iter().map(waiter).collect(),
        waiter_count: info.waiter_count as u64,
        permits: info.permits,
        permits_stored: info.permits_stored,
    }
}

fn hold(holder: &HolderInfo) -> HoldView {
    let (value, value_base64) = shown(holder.value.clone());
    let (meta, meta_base64) = shown(meta(&holder.meta));
    let (state, closed_for_ms, broken) = match &holder.state {
        HolderState::Revoked { reason, by } => {
            (HoldStateView::Revoked, None, Some((by.clone(), reason.clone())))
        }
        HolderState::Closed { left } => (HoldStateView::Closed, Some(millis(*left)), None),
        _ => (HoldStateView::Held, None, None),
    };
    let (break_by, break_reason) = broken.unzip();
    HoldView {
        token: holder.token.map(Token::get),
        session: holder.session,
        label: holder.label.clone(),
        identity: holder.identity.clone(),
        mode: mode(holder.mode),
        subtree: holder.subtree,
        state,
        slot: holder.slot,
        held_for_ms: holder.held_for.map(millis),
        since: holder.since.map(time),
        closed_for_ms,
        cached: holder.cached,
        recalled: holder.recalled,
        last_token: holder.last_token.map(Token::get),
        value,
        value_base64,
        meta,
        meta_base64,
        break_by,
        break_reason,
    }
}

fn waiter(waiter: &WaiterInfo) -> WaiterView {
    let (meta, meta_base64) = shown(meta(&waiter.meta));
    WaiterView {
        session: waiter.session,
        label: waiter.label.clone(),
        identity: waiter.identity.clone(),
        mode: mode(waiter.mode),
        subtree: waiter.subtree,
        meta,
        meta_base64,
        waiting_for_ms: waiter.waiting_for.map(millis),
        since: waiter.since.map(time),
    }
}

/// The text whose lines were read as pairs; a line without `=` has no key.
fn meta(pairs: &[(String, String)]) -> Vec<u8> {
    let line = |(key, value): &(String, String)| {
        if key.is_empty() { value.clone() } else { format!("{key}={value}") }
    };
    pairs.iter().map(line).collect::<Vec<_>>().join("\n").into_bytes()
}

fn mode(mode: lockkeeper::Mode) -> Mode {
    match mode {
        lockkeeper::Mode::Exclusive => Mode::Exclusive,
        lockkeeper::Mode::Shared => Mode::Shared,
        lockkeeper::Mode::Permit => Mode::Permit,
    }
}

pub(crate) fn session(session: &SessionInfo) -> SessionView {
    SessionView {
        session: session.id,
        label: session.label.clone(),
        identity: session.identity.clone(),
        ttl_ms: millis(session.ttl),
        left_ms: millis(session.left),
        lock_delay_ms: millis(session.lock_delay),
        linger_ms: millis(session.linger),
        requests: session.requests,
        attached: session.attached,
    }
}

pub(crate) fn ended(session: u64, ended: EndedSession) -> EndedSessionView {
    let result = match ended {
        EndedSession::Done => EndSessionResult::Done,
        EndedSession::Attached => EndSessionResult::Attached,
        // `EndedSession` is non-exhaustive.
        _ => EndSessionResult::Gone,
    };
    EndedSessionView { session, result }
}

pub(crate) fn token(status: &TokenStatus) -> TokenView {
    let (status, live): (_, &[Token]) = match status {
        TokenStatus::Current => (TokenStateView::Current, &[]),
        TokenStatus::NotCurrent { live } => (TokenStateView::NotCurrent, live),
        TokenStatus::NeverIssued => (TokenStateView::NeverIssued, &[]),
    };
    TokenView { status, live_tokens: live.iter().map(|token| token.get()).collect() }
}

pub(crate) fn broken(broken: &Broken) -> BreakView {
    let (result, live): (_, &[Token]) = match broken {
        Broken::Done => (BreakResult::Done, &[]),
        Broken::NotCurrent { live } => (BreakResult::NotCurrent, live),
        // `Broken` is non-exhaustive.
        _ => (BreakResult::StillClosed, &[]),
    };
    BreakView { result, live_tokens: live.iter().map(|token| token.get()).collect() }
}

/// The answer of one node, or why there is none.
#[derive(Serialize)]
pub(crate) struct ReportView {
    /// The client address that was called.
    address: String,
    /// Whether the node answered, be it that it can't serve.
    answers: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Why it can't be reached from here at this address, if its status came through another node.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreached: Option<String>,
    #[serde(flatten)]
    status: Option<NodeView>,
}

pub(crate) fn reports(nodes: &[NodeReport]) -> Vec<ReportView> {
    let report = |node: &NodeReport| ReportView {
        address: node.address.clone(),
        answers: node.answers,
        error: node.status.as_ref().err().cloned(),
        unreached: node.unreached.clone(),
        status: node.status.as_ref().ok().map(status),
    };
    nodes.iter().map(report).collect()
}

fn status(status: &ServiceStatus) -> NodeView {
    NodeView {
        version: status.version.clone(),
        node: status.node,
        incarnation: status.incarnation.clone(),
        cluster: status.cluster.clone(),
        role: match status.role {
            NodeRole::Follower => RoleView::Follower,
            NodeRole::Candidate => RoleView::Candidate,
            NodeRole::Leader => RoleView::Leader,
        },
        leader: status.leader,
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
        members: status.members.iter().map(member).collect(),
        removed: status.removed.clone(),
        certificate_ends: status
            .certificate_ends
            .map(|ends| ends.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())),
        permissions: status.permissions.clone(),
        disk_used_bytes: status.disk_used_bytes,
        disk_free_bytes: status.disk_free_bytes,
        disk_state: match status.disk_state {
            None => DiskView::Unknown,
            Some(NodeDisk::Enough) => DiskView::Enough,
            Some(NodeDisk::Low) => DiskView::Low,
            Some(NodeDisk::Full) => DiskView::Full,
        },
        disk_full_in_seconds: status.disk_full_in.map(|left| left.as_secs()),
        audit_error: status.audit_error.clone(),
        backup_error: status.backup_error.clone(),
        files_error: status.files_error.clone(),
    }
}

pub(crate) fn members(info: &ClusterInfo) -> MembersView {
    MembersView {
        nodes: info.nodes.iter().map(member).collect(),
        leader: info.leader,
        term: info.term,
        last: info.last,
        changing: info.changing,
        removed: info.removed.clone(),
    }
}

fn member(node: &NodeInfo) -> MemberView {
    MemberView {
        node: node.node,
        peer_address: node.peer_address.clone(),
        client_address: node.client_address.clone(),
        part: match node.part {
            NodePart::Voter => PartView::Voter,
            NodePart::Learner => PartView::Learner,
            NodePart::Leaving => PartView::Leaving,
        },
        answers: node.answers,
        matched: node.matched,
        receives_snapshot: node.receives_snapshot,
        data_lost: node.data_lost,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
