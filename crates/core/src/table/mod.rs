//! The table: all sessions and all locks, and the function that changes them.
//!
//! `apply` dispatches a command and then runs the grant pass (G1). The rules are in one module per concept:
//! `sessions`, `acquire`, `grant`, `end`, `breaks`,
//! `caching`, `deadlock`, `admin`. `pass` is the grant pass, and `work` bounds the
//! work of a command.

mod acquire;
mod admin;
mod ages;
mod breaks;
mod caching;
mod copy_on_write;
mod costs;
mod crowd;
mod deadlock;
mod describe;
mod end;
mod grant;
mod names;
mod obstacles;
mod pass;
mod pending;
mod prefixes;
mod request;
mod requests;
mod restore;
mod session;
mod sessions;
mod snapshot_iterator;
mod usage;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

pub use ages::Oldest;
pub use describe::{Description, HoldInfo, HoldState, Page, SessionInfo, TokenStatus, WaiterInfo};
pub use pending::Pending;
pub use prefixes::PrefixLoad;
pub use restore::{Restorer, SnapshotError};
pub use snapshot_iterator::{SnapshotProgress, SnapshotUnderWay};
pub use usage::Usage;

use crate::command::Command;
use crate::limits;
use crate::reply::{Effect, Effects, Reply};
use crate::types::{SessionId, Ticket, Token, WallTime};
use caching::CachedNames;
use deadlock::Declared;
use names::{Names, NodeId};
use request::RequestId;
use requests::Requests;
use session::Sessions;
use snapshot_iterator::SnapshotIterator;
use work::{Budget, Freed, Unpassed};

/// The replicated state: all locks, all sessions and the token counter.
///
/// The table reads no clock, and does not know the leader. Its driver runs the timers and proposes commands
/// such as [`Command::ExpireSession`].
pub struct Table {
    rules: u32,
    last_token: u64,
    last_ticket: u64,
    last_session: u64,
    /// The time of the last [`Command::SetClock`].
    clock: WallTime,
    names: Names,
    requests: Requests,
    sessions: Sessions,
    by_secret: BTreeMap<[u8; 32], SessionId>,
    revoked: BTreeMap<Token, RequestId>,
    closed: BTreeMap<Token, RequestId>,
    cached: CachedNames,
    declared: Declared,
    /// What is left of the current command's bound on the requests that it ends because they were put off
    /// (C6).
    tries_left: Budget,
    /// Number of closed holds and live requests with `keep_closed` (D4).
    closing: usize,
    stored_limits: usize,
    /// Names whose waiters the current command may have unblocked: a request has left the name or was
    /// downgraded, or the name's limit was set.
    freed: Vec<Freed<NodeId>>,
    /// Names that earlier commands freed, and whose waiters the grant pass has not all visited yet.
    unpassed: Unpassed,
    /// See [`Table::granted_after`].
    granted_after: Vec<Duration>,
    /// [`limits::WORK_PER_COMMAND_MAX`], or less in tests.
    work_max: usize,
    /// [`limits::PERMIT_WAITERS_PASSED_MAX`], or less in tests.
    permit_waiters_passed_max: usize,
    /// The snapshot iterator, while a snapshot is written in pieces.
    walk: Option<SnapshotIterator>,
}

impl Table {
    /// A table without history. Its first token is 1, unless [`Command::RaiseTokens`] comes first (T1).
    ///
    /// `hash_seed` defends against clients that choose colliding names. It affects no result, so nodes may
    /// use different seeds.
    #[must_use]
    pub fn new(hash_seed: u64) -> Self {
        Self::with_rules(hash_seed, limits::RULES_VERSION)
    }

    /// As [`Table::new`], with an older version of the rules: the newest one that all bootstrap members of a
    /// cluster support, at most [`limits::RULES_VERSION`].
    #[must_use]
    pub fn with_rules(hash_seed: u64, rules: u32) -> Self {
        Self {
            rules,
            last_token: 0,
            last_ticket: 0,
            last_session: 0,
            clock: WallTime::default(),
            names: Names::new(hash_seed),
            requests: Requests::default(),
            sessions: Sessions::default(),
            by_secret: BTreeMap::new(),
            revoked: BTreeMap::new(),
            closed: BTreeMap::new(),
            cached: CachedNames::default(),
            declared: Declared::new(),
            tries_left: Budget::new(0),
            closing: 0,
            stored_limits: 0,
            freed: Vec::new(),
            unpassed: Unpassed::default(),
            granted_after: Vec::new(),
            work_max: limits::WORK_PER_COMMAND_MAX,
            permit_waiters_passed_max: limits::PERMIT_WAITERS_PASSED_MAX,
            walk: None,
        }
    }

    /// Applies one command and returns its reply. Appends its effects on other requests and sessions to
    /// `out`, in the order of rule E1.
    ///
    /// After a reply of [`Rejection::UnknownRules`](crate::Rejection::UnknownRules) this node must stop.
    pub fn apply(&mut self, command: Command, out: &mut Effects) -> Reply {
        debug_assert!(self.freed.is_empty());
        self.granted_after.clear();
        self.tries_left = Budget::new(self.work_max);
        let reply = match command {
            Command::OpenSession(open) => self.open_session(open),
            Command::CloseSession { session } => self.end_session(session, false, out),
            Command::ExpireSession { session } => self.end_session(session, true, out),
            Command::TimeOut { session, target } => self.time_out(session, target, out),
            Command::EndDelay { token } => self.end_delay(token),
            Command::EndRevoked { token } => self.end_revoked(token, out),
            Command::Acquire(acquire) => self.acquire(acquire, out),
            Command::Finish { session, seq, target, done_through } => {
                self.finish(session, seq, target, done_through, out)
            }
            Command::SetValue { session, seq, target, value, done_through } => {
                self.set_value(session, seq, target, value, done_through)
            }
            Command::Downgrade { session, seq, target, done_through } => {
                self.downgrade(session, seq, target, done_through, out)
            }
            Command::Settle { session, seq, target, done_through } => {
                self.settle(session, seq, target, done_through, out)
            }
            Command::SetLimit { name, limit } => self.set_limit(&name, limit),
            Command::Break(order) => self.break_hold(&order, out),
            Command::RaiseTokens { above } => self.raise_tokens(above),
            Command::RaiseRules { version } => self.raise_rules(version),
            Command::SetClock { now } => self.set_clock(now),
            Command::Resume => self.resume(out),
        };
        self.pass_freed(out);
        reply
    }

    /// Applies a command, and then [`Command::Resume`] until there is no backlog. For a table with a single
    /// driver that has no other work: unlike [`Table::apply`], its run time is not bounded (M2).
    pub fn apply_whole(&mut self, command: Command, out: &mut Effects) -> Reply {
        let reply = self.apply(command, out);
        while self.has_backlog() {
            let _done = self.apply(Command::Resume, out);
        }
        reply
    }

    /// The last token issued; 0 before the first.
    #[must_use]
    pub fn last_token(&self) -> u64 {
        self.last_token
    }

    /// The size of all sessions and requests in bytes: an estimate of their memory that depends only on the
    /// replicated state, so that it is the same on every node. [`limits::TABLE_BYTES_MAX`] limits it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.requests.bytes() + self.sessions.bytes()
    }

    /// The version of the rules in force (V1).
    #[must_use]
    pub fn rules(&self) -> u32 {
        self.rules
    }

    /// Number of holds, waiters and closed holds.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.requests.len()
    }

    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }
}

/// The effects of one request's end, with the request's ticket: all ends of a command are sorted by ticket
/// before they are appended to the effects (E1).
struct EndOf {
    ticket: Ticket,
    ended: Option<Effect>,
    closed: Option<Effect>,
}

/// Appends the effects of recalls in the order of the holds' tickets (E1).
fn tell_recalls(mut recalls: Vec<(Ticket, Effect)>, out: &mut Effects) {
    recalls.sort_unstable_by_key(|&(ticket, _)| ticket);
    out.extend(recalls.into_iter().map(|(_, effect)| effect));
}

fn tell_ends(mut ends: Vec<EndOf>, out: &mut Effects) {
    ends.sort_unstable_by_key(|end| end.ticket);
    out.extend(ends.into_iter().flat_map(|end| [end.ended, end.closed]).flatten());
}
