//! Unary calls: linearizable reads and operators' commands.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{
    Command, HoldInfo, HoldState, LockName, Page, PrefixLoad, SessionId, Token, TokenStatus,
};
use lockkeeper_wire::{mode_number, v1};
use prost::Message;

use super::lead::ms;
use super::quorum_reads::PendingRead;
use super::{Origin, Proposal, Replica};
use crate::event::{Answer, AskId, Output, Question};
use crate::load::Load;

/// Maximum number of table slots visited for one page of a list: some hundred microseconds.
const VISITS_PER_PAGE: usize = 1 << 14;
/// Slots visited between two checks of the page's size.
const VISITS_PER_STEP: usize = 8;
/// A list page ends once it has this many bytes.
const PAGE_BYTES_MAX: usize = 1 << 18;
/// Most prefixes whose load and oldest are returned at once, and most names and prefixes that are visited for
/// others.
const PREFIXES_MAX: usize = 128;
const PREFIX_PLACES_MAX: usize = 512;
/// Table slots in which one question looks for the oldest hold and waiter, of all and of each prefix: about a
/// millisecond.
const OLDEST_PLACES: usize = 1 << 14;
/// The page of each lock's holds and waiters that lists and watches show.
pub(super) const LISTED: Page = Page { after: None, holds_max: 10, bytes_max: 1 << 13, waiters_max: 10 };

impl Replica {
    pub(super) fn asked(&mut self, ask: AskId, question: Question) {
        let command = match question {
            Question::Break(order) => Command::Break(order),
            Question::EndSession { session, now } => {
                if self.may_be_ended(ask, session, now) {
                    let origin = Origin::EndOrder { ask, now };
                    self.queue.push_back(Proposal::new(Command::ExpireSession { session }, origin));
                }
                return;
            }
            Question::SetLimit { name, limit } => Command::SetLimit { name, limit },
            Question::Change(change) => return self.change_asked(ask, change),
            Question::Transfer { to } => return self.transfer_asked(ask, to),
            question => return self.rounds.ask(PendingRead::Question(ask, question)),
        };
        self.queue.push_back(Proposal::new(command, Origin::Ask(ask)));
    }

    /// Judges an operator's order to end a session. If the session may be ended, nothing is acknowledged for
    /// it from here on, so that its client relies on no lease that the order ends (P5). Otherwise the order
    /// is answered.
    pub(super) fn may_be_ended(&mut self, ask: AskId, session: SessionId, now: bool) -> bool {
        if !now && self.is_attached(session) {
            let attached = Answer::SessionEnded(v1::EndSessionResult::Attached);
            self.outputs.push(Output::Answer(ask, attached));
            return false;
        }
        if let Some(lease) = self.book.lease_mut(session) {
            lease.ending = true;
        }
        true
    }

    pub(super) fn answer(&mut self, ask: AskId, question: Question) {
        let answer = match question {
            Question::Describe { name, page } => {
                let lock = Some(self.lock(&name, page));
                Answer::Described(v1::DescribeResponse { lock })
            }
            Question::List { prefix, max, after } => Answer::Listed(self.list(prefix.as_ref(), max, after)),
            Question::Sessions { max, after } => Answer::Sessions(self.list_sessions(max, after)),
            Question::CheckToken { name, token } => Answer::Checked(self.check_token(&name, token)),
            Question::Watch { prefix } => return self.watch(ask, prefix),
            Question::Backup => return self.want_snapshot(ask),
            Question::Members => Answer::Members(self.members_status()),
            // These never wait for a quorum read: `asked` proposes the operators' commands, and `handle`
            // answers `Status` and `Load`.
            Question::Break(_)
            | Question::EndSession { .. }
            | Question::SetLimit { .. }
            | Question::Change(_)
            | Question::Transfer { .. }
            | Question::Status
            | Question::Load { .. } => return,
        };
        self.outputs.push(Output::Answer(ask, answer));
    }

    pub(super) fn status(&self) -> v1::StatusResponse {
        let role = match self.lead.term() {
            // The engine may have learned of a later term in this turn, before this replica has stepped down.
            Some(term) if term == self.engine.term() => v1::Role::Leader,
            _ if self.engine.is_candidate() => v1::Role::Candidate,
            _ => v1::Role::Follower,
        };
        v1::StatusResponse {
            node: self.config.node,
            role: role.into(),
            leader: self.engine.leader(),
            term: self.engine.term(),
            applied: self.applied.index,
            committed: self.engine.committed(),
            snapshot: self.snapshots.stored(),
            last_token: self.table.last_token(),
            sessions: self.table.usage_in_all().sessions,
            requests: self.table.request_count() as u64,
            streams: self.streams.len() as u64,
            rules: self.table.rules(),
            members: self.member_list(),
            removed: self.members.removed.keys().copied().collect(),
            ..v1::StatusResponse::default()
        }
    }

    pub(super) fn load(&mut self, prefixes: &[LockName], segments: usize) -> Load {
        let status = self.status();
        let leads = status.role() == v1::Role::Leader;
        let asked = prefixes.iter().take(PREFIXES_MAX).map(|prefix| self.table.load_of(prefix, segments));
        let known: BTreeSet<&LockName> = prefixes.iter().take(PREFIXES_MAX).collect();
        let others = self.table.loads(segments, PREFIX_PLACES_MAX).into_iter();
        let others = others.filter(|other| !known.contains(&other.prefix));
        let loads: Vec<_> = asked.chain(others).take(PREFIXES_MAX).collect();
        let names = loads.iter().map(|load| &load.prefix);
        let oldest = self.oldest.search(&self.table, OLDEST_PLACES, segments, names);
        let with_oldest = |load: PrefixLoad| {
            let oldest = self.oldest.of(&load.prefix);
            (load, oldest)
        };
        let answering = status.members.iter().filter(|it| it.answers || it.node == self.config.node).count();
        Load {
            leads,
            leader: status.leader,
            term: status.term,
            applied: status.applied,
            committed: status.committed,
            last_token: status.last_token,
            usage: self.table.usage_in_all(),
            cached_names: self.table.cached_names() as u64,
            prefixes: loads.into_iter().map(with_oldest).collect(),
            members: status.members.len() as u64,
            answering: if leads { answering as u64 } else { 0 },
            oldest,
            activity: self.activity.clone(),
        }
    }

    /// Returns one page. The work per page is bounded even if the table is large, since other requests wait
    /// meanwhile.
    fn list(&self, prefix: Option<&LockName>, max: usize, after: u64) -> v1::ListResponse {
        let (mut locks, mut cursor, mut visited, mut bytes) = (Vec::new(), Some(after), 0, 0);
        while let Some(from) = cursor
            && locks.len() < max
            && visited < VISITS_PER_PAGE
            && bytes < PAGE_BYTES_MAX
        {
            let visits = VISITS_PER_STEP.min(max - locks.len());
            let (part, next) = self.table.names_in_part(prefix, from, visits);
            for name in part {
                let lock = self.lock(&name, LISTED);
                bytes += lock.encoded_len();
                locks.push(lock);
            }
            visited += visits;
            cursor = next;
        }
        v1::ListResponse { locks, next_after: cursor.unwrap_or(0) }
    }

    fn list_sessions(&self, max: usize, after: u64) -> v1::ListSessionsResponse {
        let mut following = self.table.sessions_after(SessionId(after));
        let sessions: Vec<v1::Session> = following
            .by_ref()
            .take(max)
            .map(|session| {
                let lease = self.book.lease(session.id);
                let left = lease.map_or(Duration::ZERO, |it| it.deadline.saturating_sub(self.clock.now()));
                v1::Session {
                    id: session.id.0,
                    label: session.label.into(),
                    identity: session.identity.into(),
                    ttl_ms: session.ttl_ms,
                    lock_delay_ms: session.lock_delay_ms,
                    linger_ms: session.linger_ms,
                    requests: session.requests as u64,
                    attached: self.is_attached(session.id),
                    left_ms: millis(left),
                }
            })
            .collect();
        let more = following.next().is_some();
        let next_after = sessions.last().filter(|_| more).map_or(0, |session| session.id);
        v1::ListSessionsResponse { sessions, next_after }
    }

    fn is_attached(&self, session: SessionId) -> bool {
        self.book.lease(session).is_some_and(|lease| lease.may_be_attached(self.clock.now()))
    }

    fn check_token(&self, name: &LockName, token: u64) -> v1::CheckTokenResponse {
        let (status, live) = match self.table.check_token(name, token) {
            TokenStatus::Current => (v1::TokenStatus::Current, Vec::new()),
            TokenStatus::NotCurrent { live } => (v1::TokenStatus::NotCurrent, live),
            TokenStatus::NeverIssued => (v1::TokenStatus::NeverIssued, Vec::new()),
        };
        let live = live.into_iter().map(Token::get).collect();
        v1::CheckTokenResponse { status: status.into(), live }
    }

    pub(super) fn lock(&self, name: &LockName, page: Page) -> v1::Lock {
        let description = self.table.describe(name, page);
        let last = description.holds.last().filter(|_| description.has_more).map(|hold| hold.token.get());
        let waiters = description.waiters.into_iter().map(|waiter| {
            let (label, identity) = self.client(waiter.owner.0);
            v1::Waiter {
                session: waiter.owner.0.0,
                label,
                identity,
                mode: mode_number(waiter.mode).into(),
                subtree: waiter.subtree,
                meta: waiter.meta.into(),
                waiting_for_ms: waiter.since.until(self.wall).map(millis),
                since_unix_ms: waiter.since.0,
            }
        });
        v1::Lock {
            name: name.to_string(),
            waiters: waiters.collect(),
            waiter_count: description.waiter_count as u64,
            permits: description.limit.map(|(limit, _)| limit),
            permits_stored: description.limit.is_some_and(|(_, stored)| stored),
            hold_count: description.hold_count as u64,
            next_holds_after: last.unwrap_or(0),
            holds: description.holds.into_iter().map(|hold| self.hold(hold)).collect(),
        }
    }

    fn hold(&self, hold: HoldInfo) -> v1::Hold {
        let session = hold.owner.map_or(SessionId(0), |(session, _)| session);
        let (label, identity) = self.client(session);
        let mut message = v1::Hold {
            session: session.0,
            label,
            identity,
            token: hold.token.get(),
            mode: mode_number(hold.mode).into(),
            subtree: hold.subtree,
            state: v1::HoldState::Held.into(),
            slot: hold.slot,
            held_for_ms: hold.since.until(self.wall).map(millis),
            since_unix_ms: hold.since.0,
            cached: hold.caching.is_held(),
            recalled: hold.caching == lockkeeper_core::Caching::Recalled,
            spare_tokens: hold.spare_tokens,
            value: hold.value.into(),
            meta: hold.meta.into(),
            ..v1::Hold::default()
        };
        match hold.state {
            HoldState::Held => {}
            HoldState::Revoked { reason, by } => {
                message.state = v1::HoldState::Revoked.into();
                message.break_reason = reason.into();
                message.break_by = by.into();
            }
            HoldState::Closed { ms: delay } => {
                message.state = v1::HoldState::Closed.into();
                let left =
                    self.book.closed_until(hold.token).map(|until| until.saturating_sub(self.clock.now()));
                message.closed_for_ms = millis(left.unwrap_or(ms(delay)));
            }
        }
        message
    }

    /// The label and the identity of a session's client; both empty if it isn't live.
    pub(super) fn client(&self, session: SessionId) -> (String, String) {
        let session = self.table.session(session);
        session.map(|session| (session.label.into(), session.identity.into())).unwrap_or_default()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
