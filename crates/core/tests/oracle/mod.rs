//! A naive reference table: quadratic, without indexes, and simple enough to be checked by reading. Tests
//! compare the real table with it.
//!
//! To be read beside `docs/table-rules.md`: one small function per rule, named by the rule's number. It is
//! written from the rules alone, shares only names, basic types and limits with the table, and must not be
//! optimized. It does not model the 4 GiB of M1, and of the bounds of M2 only that on permits granted past
//! waiters.
#![allow(dead_code, reason = "each test binary uses its own part of the oracle")]

mod caching;
pub(crate) mod deadlock;
pub(crate) mod pair;
mod queries;
mod requests;
mod retries;

use lockkeeper_core::limits;
use lockkeeper_core::snapshot::{Caching, LimitState, Phase, RequestState, SessionState};
use lockkeeper_core::{
    Break, Command, Effect, Effects, End, Fingerprint, LockName, OpenSession, Rejection, Reply, Seq,
    SessionId, Snapshot, Ticket, Token,
};

/// The reference table. Its whole state is a snapshot: plain lists of sessions, requests and limits.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Oracle {
    state: Snapshot,
    /// The one bound of M2 that decides who may be granted: see `permits_are_out`.
    pub(crate) permit_waiters_passed_max: usize,
    /// The request that the last command would have queued, and that was refused as a deadlock (K2).
    pub(crate) refused: Option<RequestState>,
}

/// The status of a token at a name (B4), in the oracle's own type.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Checked {
    Current,
    NotCurrent(Vec<Token>),
    NeverIssued,
}

/// The effects of a command, each with its position in the order of E1.
#[derive(Default)]
pub(crate) struct ReportedEffects(Vec<((u8, Ticket, u8), Effect)>);

impl ReportedEffects {
    fn session_ended(&mut self, session: SessionId) {
        self.0.push(((0, Ticket(0), 0), Effect::SessionEnded { session }));
    }
    fn revoked(&mut self, ticket: Ticket, (session, seq): (SessionId, Seq), token: Token) {
        self.0.push(((1, ticket, 0), Effect::Revoked { session, seq, token }));
    }
    fn recalled(&mut self, ticket: Ticket, (session, seq): (SessionId, Seq)) {
        self.0.push(((2, ticket, 0), Effect::Recalled { session, seq }));
    }
    fn ended(&mut self, ticket: Ticket, (session, seq): (SessionId, Seq), end: End) {
        self.0.push(((3, ticket, 0), Effect::Ended { session, seq, end }));
    }
    fn closed(&mut self, ticket: Ticket, token: Token, ms: u64) {
        self.0.push(((3, ticket, 1), Effect::Closed { token, ms }));
    }
    fn granted(&mut self, ticket: Ticket, effect: Effect) {
        self.0.push(((4, ticket, 0), effect));
    }

    /// E1: sessions ended; revoked; recalled; ends and closed holds in ticket order, for one ticket the end
    /// first; grants in ticket order.
    fn e1_in_order(mut self, out: &mut Effects) {
        self.0.sort_by_key(|(place, _)| *place);
        out.extend(self.0.into_iter().map(|(_, effect)| effect));
    }
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Self::from_snapshot(&Snapshot { rules: limits::RULES_VERSION, ..Snapshot::default() })
    }

    pub(crate) fn from_snapshot(snapshot: &Snapshot) -> Self {
        let permit_waiters_passed_max = limits::PERMIT_WAITERS_PASSED_MAX;
        Self { state: snapshot.clone(), permit_waiters_passed_max, refused: None }
    }

    /// E2: the complete state in canonical order.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.state
    }

    fn e2_canonical_order(&mut self) {
        self.state.sessions.sort_by_key(|session| session.id);
        for session in &mut self.state.sessions {
            session.kept.sort_by_key(|kept| kept.seq);
        }
        self.state.requests.sort_by_key(|request| request.ticket);
        self.state.limits.sort_by(|a, b| a.name.cmp(&b.name));
    }

    pub(crate) fn apply(&mut self, command: Command, out: &mut Effects) -> Reply {
        let mut reported = ReportedEffects::default();
        self.refused = None;
        let reply = self.run(command, &mut reported);
        self.c6_judge_anew(&mut reported);
        self.g1_one_pass_of_grants(&mut reported);
        self.l3_forget_implied_limits();
        self.r3_forget_confirmed_answers();
        self.e2_canonical_order();
        reported.e1_in_order(out);
        reply
    }

    fn run(&mut self, command: Command, reported: &mut ReportedEffects) -> Reply {
        match command {
            Command::OpenSession(open) => self.s1_open(open),
            Command::CloseSession { session } => self.end_session(session, false, reported),
            Command::ExpireSession { session } => self.end_session(session, true, reported),
            Command::TimeOut { session, target } => self.w1_time_out(session, target, reported),
            Command::EndDelay { token } => self.d3_end_delay(token),
            Command::EndRevoked { token } => self.b1_end_revoked(token, reported),
            Command::Acquire(acquire) => {
                let (session, seq, done_through) = (acquire.session, acquire.seq, acquire.done_through);
                let fingerprint = Fingerprint::of_acquire(&acquire);
                self.numbered(session, seq, fingerprint, done_through, |oracle| {
                    oracle.acquire(acquire, reported)
                })
            }
            Command::Finish { session, seq, target, done_through } => {
                self.r4_finish(session, seq, target, done_through, reported)
            }
            Command::SetValue { session, seq, target, value, done_through } => {
                let fingerprint = Fingerprint::of_set_value(target, &value);
                self.numbered(session, seq, fingerprint, done_through, |oracle| {
                    oracle.g3_set_value(session, target, value)
                })
            }
            Command::Downgrade { session, seq, target, done_through } => {
                let fingerprint = Fingerprint::of_downgrade(target);
                self.numbered(session, seq, fingerprint, done_through, |oracle| {
                    oracle.g2_downgrade(session, target)
                })
            }
            Command::Settle { session, seq, target, done_through } => {
                let fingerprint = Fingerprint::of_settle(target);
                self.numbered(session, seq, fingerprint, done_through, |oracle| {
                    oracle.c5_settle(session, target)
                })
            }
            Command::SetLimit { name, limit } => self.l4_set_limit(name, limit),
            Command::Break(command) => self.break_hold(&command, reported),
            Command::RaiseTokens { above } => self.t3_raise_tokens(above),
            Command::RaiseRules { version } => self.v1_raise_rules(version),
            Command::SetClock { now } => {
                if self.state.rules >= 3 {
                    self.state.clock = now; // E3
                }
                Reply::Done
            }
            // The oracle never leaves a backlog.
            Command::Resume => Reply::Done,
        }
    }

    pub(crate) fn session(&mut self, id: SessionId) -> Option<&mut SessionState> {
        self.state.sessions.iter_mut().find(|session| session.id == id)
    }

    /// S1: a known secret finds its session, if the times are the same; ids count from 1 and are never
    /// reused. S4: unless it was opened by another identity.
    fn s1_open(&mut self, mut open: OpenSession) -> Reply {
        if self.state.rules < 2 {
            open.identity = "".into();
        }
        if let Some(known) = self.state.sessions.iter().find(|s| s.secret_hash == open.secret_hash) {
            if !known.identity.is_empty() && known.identity != open.identity {
                return Reply::Refused(Rejection::OtherIdentity { session: known.id });
            }
            let times = [
                ("ttl", known.ttl_ms, open.ttl_ms),
                ("lock-delay", known.lock_delay_ms, open.lock_delay_ms),
                ("linger", known.linger_ms, open.linger_ms),
            ];
            for (field, have, asked) in times {
                if have != asked {
                    return Reply::Refused(Rejection::OtherTerms { session: known.id, field, have, asked });
                }
            }
            return Reply::Opened { session: known.id };
        }
        if let Some(why) = self.m1_open_is_refused(&open) {
            return Reply::Refused(why);
        }
        self.state.last_session += 1;
        let id = SessionId(self.state.last_session);
        self.state.sessions.push(SessionState {
            id,
            secret_hash: open.secret_hash,
            ttl_ms: open.ttl_ms,
            lock_delay_ms: open.lock_delay_ms,
            linger_ms: open.linger_ms,
            label: open.label,
            identity: open.identity,
            highest: Seq(0),
            done_through: Seq(0),
            kept: Vec::new(),
        });
        Reply::Opened { session: id }
    }

    fn m1_open_is_refused(&self, open: &OpenSession) -> Option<Rejection> {
        if !(limits::TTL_MS_MIN..=limits::TTL_MS_MAX).contains(&open.ttl_ms) {
            return Some(Rejection::Ttl { ms: open.ttl_ms });
        }
        if open.lock_delay_ms > limits::LOCK_DELAY_MS_MAX {
            return Some(Rejection::LockDelay { ms: open.lock_delay_ms });
        }
        if open.linger_ms > open.ttl_ms {
            return Some(Rejection::Linger { ms: open.linger_ms, ttl_ms: open.ttl_ms });
        }
        if open.label.len() > limits::LABEL_BYTES_MAX {
            return Some(Rejection::TextTooLong { field: "label", bytes: open.label.len() });
        }
        if open.identity.len() > limits::LABEL_BYTES_MAX {
            return Some(Rejection::TextTooLong { field: "identity", bytes: open.identity.len() });
        }
        (self.state.sessions.len() >= limits::SESSIONS_MAX).then_some(Rejection::TooManySessions)
    }

    /// S2: the first answer is also `SessionGone`. S3: lock-delay applies only if the session expired.
    fn end_session(&mut self, id: SessionId, expired: bool, reported: &mut ReportedEffects) -> Reply {
        let Some(session) = self.session(id) else { return Reply::SessionGone };
        let lock_delay_ms = if expired { session.lock_delay_ms } else { 0 };
        reported.session_ended(id);
        self.state.sessions.retain(|session| session.id != id);
        let mine: Vec<Ticket> = self
            .state
            .requests
            .iter()
            .filter(|request| request.owner.is_some_and(|(owner, _)| owner == id))
            .map(|request| request.ticket)
            .collect();
        for ticket in mine {
            self.d1_end(ticket, lock_delay_ms, reported);
        }
        Reply::SessionGone
    }

    /// D1: a hold stays closed for max(`keep_closed`, lock-delay). D2: a waiter that ends leaves no closed
    /// hold.
    fn d1_end(&mut self, ticket: Ticket, lock_delay_ms: u64, reported: &mut ReportedEffects) {
        let request = self.state.requests.iter_mut().find(|r| r.ticket == ticket).expect("it is live");
        let ms = request.keep_closed_ms.max(lock_delay_ms);
        let held = match &request.phase {
            Phase::Held { token, slots } | Phase::Revoked { token, slots, .. } => {
                Some((*token, slots.clone()))
            }
            Phase::Waiting { .. } | Phase::Closed { .. } => None,
        };
        match held {
            Some((token, slots)) if ms > 0 => {
                request.owner = None;
                request.fingerprint = Fingerprint::default();
                request.value = Box::default();
                request.meta = Box::default();
                request.keep_closed_ms = 0; // `Phase::Closed` has its own `ms`
                request.phase = Phase::Closed { token, slots, ms };
                request.caching = Caching::None; // C6
                reported.closed(ticket, token, ms);
            }
            _ => self.forget(ticket),
        }
    }

    fn forget(&mut self, ticket: Ticket) {
        self.state.requests.retain(|request| request.ticket != ticket);
    }

    /// W1: ends only waits with a limit, never a hold.
    fn w1_time_out(&mut self, session: SessionId, target: Seq, reported: &mut ReportedEffects) -> Reply {
        if self.session(session).is_none() {
            return Reply::SessionGone;
        }
        let waits = |request: &&RequestState| {
            request.owner == Some((session, target))
                && matches!(request.phase, Phase::Waiting { at_most_ms: Some(_) })
        };
        if let Some(request) = self.state.requests.iter().find(waits).cloned() {
            self.forget(request.ticket);
            self.r3_keep_end(&request, End::TimedOut, None);
            reported.ended(request.ticket, (session, target), End::TimedOut);
        }
        Reply::Done
    }

    /// D3: ends only closed holds.
    fn d3_end_delay(&mut self, token: Token) -> Reply {
        self.state.requests.retain(|r| !matches!(r.phase, Phase::Closed { token: had, .. } if had == token));
        Reply::Done
    }

    /// B1: ends only revoked holds; `keep_closed` applies.
    fn b1_end_revoked(&mut self, token: Token, reported: &mut ReportedEffects) -> Reply {
        let revoked = self
            .state
            .requests
            .iter()
            .find(|r| matches!(r.phase, Phase::Revoked { token: had, .. } if had == token));
        if let Some(request) = revoked.cloned() {
            let (ticket, owner) = (request.ticket, request.owner.expect("a revoked hold has an owner"));
            self.r3_keep_end(&request, End::Broken, None);
            reported.ended(ticket, owner, End::Broken);
            self.d1_end(ticket, 0, reported);
        }
        Reply::Done
    }

    /// B1–B3. Reason and author are checked first.
    fn break_hold(&mut self, command: &Break, reported: &mut ReportedEffects) -> Reply {
        for (field, text) in [("reason", &command.reason), ("by", &command.by)] {
            if text.len() > limits::LABEL_BYTES_MAX {
                return Reply::Refused(Rejection::TextTooLong { field, bytes: text.len() });
            }
        }
        let hit = self
            .state
            .requests
            .iter_mut()
            .find(|r| c2_has_token(r, command.token.get()) && b3_covers(r, &command.name));
        let Some(request) = hit else {
            return Reply::NotCurrent { live: self.b4_live_tokens(&command.name) };
        };
        let (ticket, owner) = (request.ticket, request.owner);
        match (&request.phase, command.now) {
            (Phase::Waiting { .. }, _) => unreachable!("a waiter has no token (B3)"),
            (Phase::Closed { .. }, false) => return Reply::StillClosed,
            (Phase::Closed { .. }, true) => self.forget(ticket),
            (Phase::Revoked { .. }, false) => {}
            (Phase::Held { token, slots }, false) => {
                let (token, slots) = (*token, slots.clone());
                let (reason, by) = (command.reason.clone(), command.by.clone());
                request.phase = Phase::Revoked { token, slots, reason, by };
                request.caching = Caching::None; // C6
                reported.revoked(ticket, owner.expect("a hold has an owner"), token);
            }
            (Phase::Held { .. } | Phase::Revoked { .. }, true) => {
                let owner = owner.expect("a hold has an owner");
                let request = request.clone();
                self.forget(ticket);
                self.r3_keep_end(&request, End::Broken, None);
                reported.ended(ticket, owner, End::Broken);
            }
        }
        Reply::Done
    }

    /// B4: tokens of live, unrevoked holds that cover the name, ascending; without the bound of 64.
    fn b4_live_tokens(&self, name: &LockName) -> Vec<Token> {
        let mut live: Vec<Token> = self
            .state
            .requests
            .iter()
            .filter(|r| matches!(r.phase, Phase::Held { .. }) && b3_covers(r, name))
            .filter_map(token_of)
            .collect();
        live.sort();
        live
    }

    /// B4: status of a token.
    pub(crate) fn check_token(&self, name: &LockName, token: u64) -> Checked {
        if token == 0 || token > self.state.last_token {
            return Checked::NeverIssued;
        }
        let live = |r: &RequestState| matches!(r.phase, Phase::Held { .. }) && b3_covers(r, name);
        if self.state.requests.iter().any(|r| live(r) && c2_has_token(r, token)) {
            Checked::Current
        } else {
            Checked::NotCurrent(self.b4_live_tokens(name))
        }
    }

    /// L4: applies at once to all requests; `None` leaves the number in force while permit requests of the
    /// name live.
    fn l4_set_limit(&mut self, name: LockName, limit: Option<u32>) -> Reply {
        if let Some(of) = limit
            && !(1..=limits::PERMITS_MAX).contains(&of)
        {
            return Reply::Refused(Rejection::PermitCount { of });
        }
        let stored = self.state.limits.iter().filter(|l| l.stored).count();
        let entry = self.state.limits.iter_mut().find(|l| l.name == name);
        match (entry, limit) {
            (Some(entry), Some(_)) if !entry.stored && stored >= limits::STORED_LIMITS_MAX => {
                return Reply::Refused(Rejection::TooManyStoredLimits);
            }
            (None, Some(_)) if stored >= limits::STORED_LIMITS_MAX => {
                return Reply::Refused(Rejection::TooManyStoredLimits);
            }
            (Some(entry), Some(limit)) => (entry.limit, entry.stored) = (limit, true),
            (None, Some(limit)) => self.state.limits.push(LimitState { name, limit, stored: true }),
            (Some(entry), None) => entry.stored = false,
            (None, None) => {}
        }
        Reply::Done
    }

    /// T3: only raises, up to `RAISE_TOKENS_MAX`, or up to `TOKEN_MAX` in a table that has issued no token.
    fn t3_raise_tokens(&mut self, above: u64) -> Reply {
        let most = if self.state.last_token == 0 { limits::TOKEN_MAX } else { limits::RAISE_TOKENS_MAX };
        if above <= self.state.last_token {
            return Reply::Done;
        }
        if above > most {
            return Reply::Refused(Rejection::RaiseTooHigh { above });
        }
        self.state.last_token = above;
        Reply::Done
    }

    /// V1: only raises, up to the newest supported version.
    fn v1_raise_rules(&mut self, version: u32) -> Reply {
        if version > limits::RULES_VERSION {
            return Reply::Refused(Rejection::UnknownRules { version, known: limits::RULES_VERSION });
        }
        self.state.rules = self.state.rules.max(version);
        Reply::Done
    }
}

/// The token of a hold, a revoked hold or a closed hold.
pub(crate) fn token_of(request: &RequestState) -> Option<Token> {
    match request.phase {
        Phase::Waiting { .. } => None,
        Phase::Held { token, .. } | Phase::Revoked { token, .. } | Phase::Closed { token, .. } => Some(token),
    }
}

/// C2: whether a hold has this token: its first, or one of those after it.
fn c2_has_token(request: &RequestState, token: u64) -> bool {
    let spare = u64::from(request.spare_tokens);
    token_of(request).is_some_and(|first| (first.get()..=first.get() + spare).contains(&token))
}

/// B3: whether a request covers a name: by name, or as a subtree.
fn b3_covers(request: &RequestState, name: &LockName) -> bool {
    request.names.iter().any(|own| own == name || (request.subtree && own.is_above(name.as_str())))
}
