//! Read-only queries: a request's state for its client, and holds, waiters and sessions for people.

use super::Table;
use super::crowd::{Class, Here};
use super::names::{NameNode, NodeId};
use super::request::{RequestId, RequestStage};
use crate::limits;
use crate::name::LockName;
use crate::reply::{Grant, PermitGrant, Reply};
use crate::snapshot::Caching;
use crate::types::{ModeKind, Seq, SessionId, Slot, Ticket, Token, WallTime};

/// Status of a token at a name (B4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenStatus {
    /// A live hold with this token, not revoked, covers the name.
    Current,
    /// There is no live, unrevoked hold with this token that covers the name.
    NotCurrent {
        /// Tokens of the live, unrevoked holds among the [`limits::LIVE_TOKENS_MAX`] lowest tokens that cover
        /// the name, ascending.
        live: Vec<Token>,
    },
    /// The token is 0 or above the counter.
    NeverIssued,
}

/// Selects some of the holds and waiters of a name, which bounds the work and the size of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// Selects holds with a higher token; `None` begins with the first hold.
    pub after: Option<Token>,
    /// Maximum number of holds.
    pub holds_max: usize,
    /// The page ends once its holds have this many bytes, by the measure of [`Table::bytes`].
    pub bytes_max: usize,
    /// Maximum number of waiters.
    pub waiters_max: usize,
}

impl Page {
    /// The first page of holds, of the maximum size, and the first waiters.
    #[must_use]
    pub const fn first(waiters_max: usize) -> Self {
        Self {
            after: None,
            holds_max: limits::HOLDS_LISTED_MAX,
            bytes_max: limits::HOLDS_LISTED_BYTES_MAX,
            waiters_max,
        }
    }
}

/// Holds, waiters and permits of a name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Description {
    /// The holds of this page that cover the name, including closed ones, by token.
    pub holds: Vec<HoldInfo>,
    /// Number of all holds that cover the name, including closed ones.
    pub hold_count: usize,
    /// Whether holds follow after the last one listed.
    pub has_more: bool,
    /// Number of waiters at exactly this name.
    pub waiter_count: usize,
    /// The first waiters at exactly this name, in order of arrival.
    pub waiters: Vec<WaiterInfo>,
    /// Permit limit in force, and whether it is stored.
    pub limit: Option<(u32, bool)>,
}

/// Description of a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldInfo {
    /// Session and seq; `None` for a closed hold.
    pub owner: Option<(SessionId, Seq)>,
    /// The fencing token.
    pub token: Token,
    /// Mode of the hold.
    pub mode: ModeKind,
    /// Whether the hold covers all names below its names too.
    pub subtree: bool,
    /// All names of the hold.
    pub names: Vec<LockName>,
    /// For a permit: the slot that the hold has at the described name.
    pub slot: Option<Slot>,
    /// Held, revoked or closed.
    pub state: HoldState,
    /// When it was granted (E3).
    pub since: WallTime,
    /// Whether its client caches it, and whether it is recalled.
    pub caching: Caching,
    /// Number of tokens after `token` that belong to the hold as well (C2).
    pub spare_tokens: u32,
    /// Value that the holder publishes.
    pub value: Box<[u8]>,
    /// Purpose, for people.
    pub meta: Box<[u8]>,
}

/// State of a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HoldState {
    /// Live and not revoked.
    Held,
    /// Under a break that waits for the holder.
    Revoked {
        /// Reason of the break.
        reason: Box<str>,
        /// Operator who ordered the break.
        by: Box<str>,
    },
    /// Ended, but still excluding others.
    Closed {
        /// How long the hold stays closed, counted from its end, in milliseconds.
        ms: u64,
    },
}

/// Description of a waiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterInfo {
    /// Session and seq.
    pub owner: (SessionId, Seq),
    /// Requested mode.
    pub mode: ModeKind,
    /// Whether the request covers all names below its names too.
    pub subtree: bool,
    /// Purpose, for people.
    pub meta: Box<[u8]>,
    /// When it was queued (E3).
    pub since: WallTime,
}

/// Description of a session, also used to rebuild the session's timers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// Id of the session.
    pub id: SessionId,
    /// The ttl in milliseconds.
    pub ttl_ms: u64,
    /// The lock-delay in milliseconds.
    pub lock_delay_ms: u64,
    /// The linger in milliseconds; 0 disables it.
    pub linger_ms: u64,
    /// Host, process and purpose, for people.
    pub label: Box<str>,
    /// Who opened it; empty: unknown.
    pub identity: Box<str>,
    /// Number of live requests: holds and waiters.
    pub requests: usize,
}

impl Table {
    /// Hash of a live session's secret; every attach must present that secret.
    #[must_use]
    pub fn secret_hash(&self, session: SessionId) -> Option<&[u8; 32]> {
        self.sessions.get(session).map(|session| &session.secret_hash)
    }

    /// Description of a live session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionInfo> {
        self.sessions.get(id).map(|session| SessionInfo {
            id,
            ttl_ms: session.ttl_ms,
            lock_delay_ms: session.lock_delay_ms,
            linger_ms: session.linger_ms,
            label: session.label.clone(),
            identity: session.identity.clone(),
            requests: session.live.len(),
        })
    }

    /// All live sessions, by id.
    pub fn sessions(&self) -> impl Iterator<Item = SessionInfo> {
        self.sessions_after(SessionId(0))
    }

    /// The live sessions with an id above `after`, by id. Does not visit the sessions before.
    pub fn sessions_after(&self, after: SessionId) -> impl Iterator<Item = SessionInfo> {
        self.sessions.after(after).filter_map(|(id, _)| self.session(id))
    }

    /// Starts or stops recording the names whose holds, waiters or limits change, for
    /// [`Table::take_changes`]. Costs nothing while off, and affects no result.
    pub fn watch(&mut self, watched: bool) {
        self.requests.watch(watched);
    }

    /// Returns at most `max` names whose requests or limits have changed since these names were last
    /// returned. Each call continues in byte order after the last name that the previous call returned, and
    /// wraps around, so a name that changes constantly doesn't starve the others.
    pub fn take_changes(&mut self, max: usize) -> Vec<LockName> {
        self.requests.take_changes(max)
    }

    /// Whether [`Table::take_changes`] would return a name.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.requests.has_changes()
    }

    /// Current state of a live request, equal to the reply to a retry of its acquire.
    #[must_use]
    pub fn request(&self, session: SessionId, seq: Seq) -> Option<Reply> {
        let &id = self.sessions.get(session)?.live.get(&seq)?;
        Some(self.present_state(id))
    }

    /// All names at or below `prefix` that have holds, waiters or a stored limit, in byte order.
    #[must_use]
    pub fn names_in_use(&self, prefix: Option<&LockName>) -> Vec<LockName> {
        let used =
            |(id, node): (NodeId, &NameNode)| (!matches!(node.here, Here::Idle)).then(|| self.names.name(id));
        let mut names: Vec<LockName> = match prefix {
            None => self.names.all().filter_map(used).collect(),
            Some(prefix) => self.names.find(prefix.as_str()).map_or_else(Vec::new, |top| {
                let below = self.names.below(top).filter_map(used);
                used((top, self.names.get(top))).into_iter().chain(below).collect()
            }),
        };
        names.sort_unstable();
        names
    }

    /// Some of [`Table::names_in_use`], in no particular order, with bounded work: scans `places` slab
    /// entries from `cursor` (initially 0) and returns the next cursor, `None` at the end. A name that stays
    /// in use during the whole scan is returned exactly once.
    #[must_use]
    pub fn names_in_part(
        &self,
        prefix: Option<&LockName>,
        cursor: u64,
        places: usize,
    ) -> (Vec<LockName>, Option<u64>) {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let (nodes, next) = self.names.part(from, places);
        let asked =
            |name: &LockName| prefix.is_none_or(|prefix| prefix == name || prefix.is_above(name.as_str()));
        let used = nodes.filter(|(_, node)| !matches!(node.here, Here::Idle));
        let names = used.map(|(id, _)| self.names.name(id)).filter(asked);
        (names.collect(), next.map(|next| next as u64))
    }

    /// Describes a name: one page of its holds, and its first waiters.
    #[must_use]
    pub fn describe(&self, name: &LockName, page: Page) -> Description {
        let node = self.names.find(name.as_str());
        let counts = self
            .covering(name)
            .map(|(node, classes)| self.names.get(node).here.count_holds(classes, &self.requests));
        let mut description = Description { hold_count: counts.sum(), ..Description::default() };
        let first = self.first_covering(name, page.after, page.holds_max.saturating_add(1));
        let mut bytes = 0;
        for (_, id) in first {
            if description.holds.len() >= page.holds_max || bytes >= page.bytes_max {
                description.has_more = true;
                break;
            }
            bytes += self.requests[id as usize].bytes() as usize;
            description.holds.extend(self.hold_info(id, node));
        }
        let Some(crowd) = node.and_then(|node| self.names.get(node).here.crowd()) else { return description };
        description.limit = crowd.limit.map(|limit| (limit.number, limit.stored));
        description.waiter_count = crowd.waiting.len();
        let classes = Class::ALL.iter();
        let first = classes.flat_map(|&class| crowd.waiting.of(class).iter().take(page.waiters_max));
        let mut first: Vec<(Ticket, RequestId)> = first.map(|(&ticket, &id)| (ticket, id)).collect();
        first.sort_unstable();
        first.truncate(page.waiters_max);
        description.waiters = first.into_iter().filter_map(|(_, id)| self.waiter_info(id)).collect();
        description
    }

    fn waiter_info(&self, id: RequestId) -> Option<WaiterInfo> {
        let request = &self.requests[id as usize];
        let owner = request.owner?;
        Some(WaiterInfo {
            owner: (owner.session, owner.seq),
            mode: request.kind,
            subtree: request.subtree,
            meta: request.extras.as_ref().map(|extras| extras.meta.clone()).unwrap_or_default(),
            since: request.since,
        })
    }

    /// Who ordered the break that waits for the holder of this token, and why.
    #[must_use]
    pub fn break_order(&self, token: Token) -> Option<(&str, &str)> {
        let request = &self.requests[*self.revoked.get(&token)? as usize];
        request.extras.as_deref().map(|extras| (&*extras.by, &*extras.reason))
    }

    fn hold_info(&self, id: RequestId, asked: Option<NodeId>) -> Option<HoldInfo> {
        let request = &self.requests[id as usize];
        let extras = request.extras.as_deref();
        let state = match request.stage {
            RequestStage::Waiting { .. } => return None,
            RequestStage::Held { .. } => HoldState::Held,
            RequestStage::Revoked { .. } => HoldState::Revoked {
                reason: extras.map(|extras| extras.reason.clone()).unwrap_or_default(),
                by: extras.map(|extras| extras.by.clone()).unwrap_or_default(),
            },
            RequestStage::Closed { ms, .. } => HoldState::Closed { ms },
        };
        let nodes = request.nodes.as_slice();
        let index = nodes.iter().position(|&node| Some(node) == asked);
        Some(HoldInfo {
            owner: request.owner.map(|owner| (owner.session, owner.seq)),
            token: request.token()?,
            mode: request.kind,
            subtree: request.subtree,
            names: nodes.iter().map(|&node| self.names.name(node)).collect(),
            slot: index.and_then(|index| request.slot(index)),
            state,
            since: request.since,
            caching: request.caching,
            spare_tokens: request.spare_tokens,
            value: extras.map(|extras| extras.value.clone()).unwrap_or_default(),
            meta: extras.map(|extras| extras.meta.clone()).unwrap_or_default(),
        })
    }

    /// Derived counters and indexes in canonical order, for the comparison in `invariants::index`.
    pub(crate) fn counters(&self) -> impl PartialEq + std::fmt::Debug {
        let waiting = |id: NodeId, shared: bool| -> Vec<(Ticket, u32)> {
            let waiting = self.names.waiting_below(id, shared).into_iter().flatten();
            waiting.map(|(&ticket, &(_, names))| (ticket, names)).collect()
        };
        let mut nodes: Vec<_> = self
            .names
            .all()
            .map(|(id, node)| (self.names.name(id), node.below, waiting(id, true), waiting(id, false)))
            .collect();
        nodes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let live: usize = self.sessions.iter().map(|(_, session)| session.live.len()).sum();
        let revoked: Vec<_> = self.revoked.keys().copied().collect();
        let closed: Vec<_> = self.closed.keys().copied().collect();
        let (bytes, cached) = (self.bytes(), self.cached.counts());
        let counts = (self.closing, self.stored_limits, self.by_secret.len(), bytes, cached);
        let declared: Vec<_> = self.declared.keys().copied().collect();
        (nodes, live, revoked, closed, counts, declared)
    }

    /// Current state of a live request: queued, granted or revoked (P7-a).
    pub(super) fn present_state(&self, id: RequestId) -> Reply {
        let request = &self.requests[id as usize];
        match request.stage {
            RequestStage::Waiting { .. } => {
                let permit = request.kind == ModeKind::Permit;
                let nodes = if permit { request.nodes.as_slice() } else { &[] };
                Reply::Queued {
                    position: self.queued_ahead(&request.wanted(), request.ticket),
                    limits: nodes.iter().map(|&node| self.limit_in_force(node)).collect(),
                }
            }
            RequestStage::Revoked { token } => Reply::Revoked { token },
            RequestStage::Held { .. } | RequestStage::Closed { .. } => Reply::Granted(self.grant_of(id)),
        }
    }

    pub(super) fn grant_of(&self, id: RequestId) -> Grant {
        let request = &self.requests[id as usize];
        let Some(token) = request.token() else { unreachable!("only holds are described as grants") };
        let permits = request.nodes.as_slice().iter().zip(request.slots.as_slice());
        let permits = permits.map(|(&node, &slot)| PermitGrant { slot, limit: self.limit_in_force(node) });
        Grant { token, permits: permits.collect(), spare_tokens: request.spare_tokens }
    }

    fn limit_in_force(&self, node: NodeId) -> u32 {
        self.names.get(node).here.limit().map_or(0, |limit| limit.number)
    }
}
