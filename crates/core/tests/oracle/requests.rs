//! Names, conflicts, permits and grants (N1–N3, G1–G3, L1–L4, Q1–Q2, D4, T3).

use lockkeeper_core::limits;
use lockkeeper_core::snapshot::{Caching, LimitState, Phase, RequestState};
use lockkeeper_core::{
    Acquire, Cycle, Effect, Fingerprint, Grant, IfBusy, LockName, Mode, ModeKind, PermitGrant, Rejection,
    Reply, Seq, SessionId, Slot, Ticket, Token,
};

use super::{Oracle, ReportedEffects, token_of};

/// N1: a set in byte order; with `subtree`, names below another one are dropped.
fn n1_merge(names: &[LockName], subtree: bool) -> Vec<LockName> {
    let mut set: Vec<LockName> = Vec::new();
    for name in names {
        let covered = subtree && names.iter().any(|other| other.is_above(name.as_str()));
        if !covered && !set.contains(name) {
            set.push(name.clone());
        }
    }
    set.sort();
    set
}

/// N2: a name of one equals a name of the other, or covers it as a subtree.
pub(super) fn n2_overlap(one: &RequestState, other: &RequestState) -> bool {
    one.names.iter().any(|a| {
        other.names.iter().any(|b| {
            a == b || (one.subtree && a.is_above(b.as_str())) || (other.subtree && b.is_above(a.as_str()))
        })
    })
}

/// N2: whether two requests conflict, whoever owns them (N3). Two permit requests don't conflict here;
/// `permits_are_out` counts them.
pub(super) fn n2_conflict(one: &RequestState, other: &RequestState) -> bool {
    let side_by_side =
        one.mode == other.mode && (one.mode == ModeKind::Shared || one.mode == ModeKind::Permit);
    n2_overlap(one, other) && !side_by_side
}

pub(super) fn is_waiting(request: &RequestState) -> bool {
    matches!(request.phase, Phase::Waiting { .. })
}

/// A hold that belongs to a session (B1: this includes revoked holds).
fn is_live_hold(request: &RequestState) -> bool {
    matches!(request.phase, Phase::Held { .. } | Phase::Revoked { .. })
}

/// N1, N2, L2, M1, C1: the checks of an acquire that don't depend on the table.
fn refused_content(acquire: &Acquire) -> Option<Rejection> {
    let (names, value, meta) = (acquire.names.len(), acquire.value.len(), acquire.meta.len());
    if names == 0 || names > limits::NAMES_PER_REQUEST_MAX {
        return Some(Rejection::NameCount { count: names });
    }
    if acquire.subtree && acquire.mode.kind() == ModeKind::Permit {
        return Some(Rejection::PermitSubtree);
    }
    if let Mode::Permit { of: Some(of) } = acquire.mode
        && !(1..=limits::PERMITS_MAX).contains(&of)
    {
        return Some(Rejection::PermitCount { of });
    }
    if acquire.keep_closed_ms > limits::KEEP_CLOSED_MS_MAX {
        return Some(Rejection::KeepClosed { ms: acquire.keep_closed_ms });
    }
    if value > limits::VALUE_BYTES_MAX {
        return Some(Rejection::ValueTooLong { bytes: value });
    }
    if meta > limits::META_BYTES_MAX {
        return Some(Rejection::MetaTooLong { bytes: meta });
    }
    let (spare, holding) = (acquire.spare_tokens, acquire.holding.len());
    if spare > limits::SPARE_TOKENS_MAX {
        return Some(Rejection::SpareTokens { asked: spare });
    }
    if spare > 0 && (acquire.mode != Mode::Exclusive || acquire.keep_closed_ms > 0) {
        return Some(Rejection::NotCacheable); // C1
    }
    (holding > limits::HOLDING_MAX).then_some(Rejection::HoldingCount { count: holding })
}

impl Oracle {
    /// R7, beginning with the content.
    pub(crate) fn acquire(&mut self, mut acquire: Acquire, reported: &mut ReportedEffects) -> Reply {
        if self.state.rules < limits::RULES_WITH_CACHED_HOLDS {
            (acquire.spare_tokens, acquire.holding) = (0, Box::default());
        }
        if let Some(why) = refused_content(&acquire) {
            return Reply::Refused(why);
        }
        let (at_most_ms, waiters_max) = match acquire.if_busy {
            IfBusy::Fail | IfBusy::Wait { at_most_ms: Some(0), .. } => (None, None), // Q2
            IfBusy::Wait { at_most_ms, waiters_max } => (Some(at_most_ms), waiters_max),
        };
        let mut request = RequestState {
            ticket: Ticket(self.state.last_ticket + 1),
            owner: Some((acquire.session, acquire.seq)),
            fingerprint: Fingerprint::of_acquire(&acquire),
            names: n1_merge(&acquire.names, acquire.subtree),
            mode: acquire.mode.kind(),
            subtree: acquire.subtree,
            keep_closed_ms: acquire.keep_closed_ms,
            value: acquire.value,
            meta: acquire.meta,
            since: self.state.clock, // E3
            caching: Caching::None,
            spare_tokens: 0,
            holding: acquire.holding,
            phase: Phase::Waiting { at_most_ms: at_most_ms.flatten() },
        };
        let asked = match acquire.mode {
            Mode::Permit { of } => Some(of),
            Mode::Exclusive | Mode::Shared => None,
        };
        if let Some(why) = asked.and_then(|of| self.l3_limit_is_refused(&request, of)) {
            return Reply::Refused(why);
        }
        if let Some(why) = self.limits_of_requests(&request) {
            return Reply::Refused(why);
        }
        let implied = asked.flatten();
        if self.may_be_granted(&request, &implied) {
            let ticket = request.ticket;
            self.enter(request, implied);
            return Reply::Granted(self.grant(ticket, acquire.spare_tokens));
        }
        let is_try = at_most_ms.is_none() || self.q3_is_too_long(&request, waiters_max);
        if is_try && self.c6_only_cached_holds_block(&request, &implied) {
            request.caching = Caching::Try;
            request.phase = Phase::Waiting { at_most_ms: Some(limits::TRY_WAIT_MS) };
        } else if is_try {
            let holder = self.q1_holder(&request, &implied);
            return Reply::Busy { holder, queued_ahead: self.q1_position(&request) };
        }
        if let Some(name) = self.m1_full_queue(&request) {
            return Reply::Refused(Rejection::TooManyWaiters { name });
        }
        request.holding = self.k1_declared(&request);
        if self.k2_closes_a_cycle(&request) {
            self.refused = Some(request);
            return Reply::Refused(Rejection::Deadlock { cycle: Cycle::default() });
        }
        self.enter(request.clone(), implied);
        self.c4_recall(request.ticket, reported);
        self.queued(&request)
    }

    /// Adds a live request: it takes its ticket and, if no limit is in force, implies one by its number of
    /// permits (L3).
    fn enter(&mut self, request: RequestState, implied: Option<u32>) {
        self.state.last_ticket = request.ticket.0;
        if request.mode == ModeKind::Permit {
            for name in &request.names {
                if self.in_force(name).is_none() {
                    let limit = implied.expect("a permit request without a limit was refused (L2)");
                    self.state.limits.push(LimitState { name: name.clone(), limit, stored: false });
                }
            }
        }
        self.state.requests.push(request);
    }

    /// L3: the limit in force: the stored one, else the one that the first live permit request implied.
    fn in_force(&self, name: &LockName) -> Option<&LimitState> {
        self.state.limits.iter().find(|limit| limit.name == *name)
    }

    /// L2, L3: a stored limit overrides the requested number, and an implied one must equal it; without a
    /// limit the request must have a number.
    fn l3_limit_is_refused(&self, request: &RequestState, of: Option<u32>) -> Option<Rejection> {
        request.names.iter().find_map(|name| match (self.in_force(name), of) {
            (None, None) => Some(Rejection::NoLimit { name: name.clone() }),
            (Some(known), Some(asked)) if !known.stored && known.limit != asked => {
                Some(Rejection::LimitMismatch { name: name.clone(), have: known.limit, asked })
            }
            _ => None,
        })
    }

    /// L3: an implied limit ends with the last permit request of its name.
    pub(crate) fn l3_forget_implied_limits(&mut self) {
        let requests = &self.state.requests;
        self.state.limits.retain(|limit| {
            limit.stored
                || requests.iter().any(|r| r.mode == ModeKind::Permit && r.names.contains(&limit.name))
        });
    }

    /// R7: requests per session, closed holds (D4), tokens left (T3). The 4 GiB of M1 are not modelled.
    fn limits_of_requests(&self, request: &RequestState) -> Option<Rejection> {
        let session = request.owner.map(|(session, _)| session);
        let own = self.state.requests.iter().filter(|r| r.owner.map(|(s, _)| s) == session).count();
        if own >= limits::REQUESTS_PER_SESSION_MAX {
            return Some(Rejection::TooManyRequests);
        }
        let closes = |r: &&RequestState| r.keep_closed_ms > 0 || matches!(r.phase, Phase::Closed { .. });
        if request.keep_closed_ms > 0
            && self.state.requests.iter().filter(closes).count() >= limits::CLOSED_HOLDS_MAX
        {
            return Some(Rejection::TooManyClosedHolds);
        }
        (self.state.last_token >= limits::TOKEN_MAX).then_some(Rejection::TokensExhausted)
    }

    /// Q3: as many requests as the limit wait for one of the names; counted for each exact name.
    fn q3_is_too_long(&self, request: &RequestState, waiters_max: Option<u32>) -> bool {
        let waiters = |name: &LockName| {
            self.state.requests.iter().filter(|r| is_waiting(r) && r.names.contains(name)).count()
        };
        self.state.rules >= limits::RULES_WITH_QUEUE_LIMIT
            && waiters_max.is_some_and(|max| request.names.iter().any(|name| waiters(name) >= max as usize))
    }

    /// M1: the first name that has the maximum number of waiters; counted for each exact name.
    fn m1_full_queue(&self, request: &RequestState) -> Option<LockName> {
        let waiters = |name: &&LockName| {
            self.state.requests.iter().filter(|r| is_waiting(r) && r.names.contains(name)).count()
        };
        request.names.iter().find(|name| waiters(name) >= limits::WAITERS_PER_NAME_MAX).cloned()
    }

    /// The grant rule: no conflict with a hold, a closed hold, or an earlier waiter.
    fn may_be_granted(&self, request: &RequestState, implied: &Option<u32>) -> bool {
        self.in_the_way(request).all(|other| !n2_conflict(request, other))
            && request.names.iter().all(|name| !self.permits_are_out(request, name, implied))
    }

    /// All holds, closed holds and earlier waiters, except the request itself.
    fn in_the_way<'a>(&'a self, request: &'a RequestState) -> impl Iterator<Item = &'a RequestState> {
        self.state.requests.iter().filter(|other| {
            other.ticket != request.ticket && (!is_waiting(other) || other.ticket < request.ticket)
        })
    }

    /// Permits: holds + closed holds (L1) + earlier waiting permits + 1 > limit, or too many of them wait
    /// (M2).
    pub(super) fn permits_are_out(
        &self,
        request: &RequestState,
        name: &LockName,
        implied: &Option<u32>,
    ) -> bool {
        if request.mode != ModeKind::Permit {
            return false;
        }
        let (waiting, held): (Vec<_>, Vec<_>) = self
            .in_the_way(request)
            .filter(|r| r.mode == ModeKind::Permit && r.names.contains(name))
            .partition(|r| is_waiting(r));
        let limit = self.in_force(name).map(|limit| limit.limit).or(*implied).expect("it has a limit (L2)");
        waiting.len() > self.permit_waiters_passed_max || held.len() + waiting.len() + 1 > limit as usize
    }

    /// Q1: the session of the conflicting live hold with the lowest token.
    fn q1_holder(&self, request: &RequestState, implied: &Option<u32>) -> Option<SessionId> {
        let full: Vec<&LockName> =
            request.names.iter().filter(|name| self.permits_are_out(request, name, implied)).collect();
        self.state
            .requests
            .iter()
            .filter(|r| is_live_hold(r))
            .filter(|r| {
                n2_conflict(request, r)
                    || (r.mode == ModeKind::Permit && full.iter().any(|name| r.names.contains(name)))
            })
            .min_by_key(|r| token_of(r))
            .and_then(|r| r.owner)
            .map(|(session, _)| session)
    }

    /// Q1: earlier waiters whose names overlap, not counting pairs of shared requests.
    fn q1_position(&self, request: &RequestState) -> u64 {
        self.state
            .requests
            .iter()
            .filter(|other| is_waiting(other) && other.ticket < request.ticket)
            .filter(|other| n2_overlap(request, other))
            .filter(|other| !(request.mode == ModeKind::Shared && other.mode == ModeKind::Shared))
            .count() as u64
    }

    /// L4: the reply to a queued request contains the limits in force.
    pub(crate) fn queued(&self, request: &RequestState) -> Reply {
        let limits = match request.mode {
            ModeKind::Permit => request.names.iter().map(|name| self.limit_of(name)).collect(),
            ModeKind::Exclusive | ModeKind::Shared => Vec::new(),
        };
        Reply::Queued { position: self.q1_position(request), limits }
    }

    fn limit_of(&self, name: &LockName) -> u32 {
        self.in_force(name).expect("a live permit request has a limit (L3)").limit
    }

    /// L4: a grant contains slot and limit in force of each name.
    pub(crate) fn l4_permits(&self, request: &RequestState) -> Vec<PermitGrant> {
        let (Phase::Held { slots, .. } | Phase::Revoked { slots, .. }) = &request.phase else {
            return Vec::new();
        };
        let names = request.names.iter();
        names.zip(slots).map(|(name, &slot)| PermitGrant { slot, limit: self.limit_of(name) }).collect()
    }

    /// G1: one pass over the waiters in ticket order.
    pub(crate) fn g1_one_pass_of_grants(&mut self, reported: &mut ReportedEffects) {
        let mut tickets: Vec<Ticket> =
            self.state.requests.iter().filter(|r| is_waiting(r)).map(|r| r.ticket).collect();
        tickets.sort();
        for ticket in tickets {
            let tokens_left = self.state.last_token < limits::TOKEN_MAX; // T3: else waiters stay
            let waiter = self.state.requests.iter().find(|r| r.ticket == ticket).expect("it waits");
            if tokens_left && self.may_be_granted(waiter, &None) {
                let (session, seq) = waiter.owner.expect("a waiter has an owner");
                let grant = self.grant(ticket, 0);
                reported.granted(ticket, Effect::Granted { session, seq, grant });
            }
        }
    }

    /// G1, L1: counter + 1, and per name the lowest slot that no hold and no closed hold has.
    /// C2: a block of tokens, unless there are not as many left.
    fn grant(&mut self, ticket: Ticket, spare_tokens: u32) -> Grant {
        self.state.last_token += 1;
        let token = Token::new(self.state.last_token).expect("tokens were left (T3)");
        let at = self.state.requests.iter().position(|r| r.ticket == ticket).expect("it is live");
        let request = &self.state.requests[at];
        let slots = match request.mode {
            ModeKind::Permit => request.names.iter().map(|name| self.l1_lowest_free_slot(name)).collect(),
            ModeKind::Exclusive | ModeKind::Shared => Vec::new(),
        };
        let last = token.get() + u64::from(spare_tokens);
        let request = &mut self.state.requests[at];
        if spare_tokens > 0 && last <= limits::TOKEN_MAX {
            (request.spare_tokens, request.caching) = (spare_tokens, Caching::Cached);
            self.state.last_token = last;
        } else {
            request.caching = Caching::None;
        }
        request.holding = Box::default();
        self.state.requests[at].phase = Phase::Held { token, slots };
        self.state.requests[at].since = self.state.clock; // E3
        let request = &self.state.requests[at];
        Grant { token, permits: self.l4_permits(request), spare_tokens: request.spare_tokens }
    }

    fn l1_lowest_free_slot(&self, name: &LockName) -> Slot {
        let taken: Vec<Slot> = self.state.requests.iter().filter_map(|r| slot_of(r, name)).collect();
        (0..).find(|slot| !taken.contains(slot)).expect("fewer holds than numbers")
    }

    /// Returns a hold of the session that may be changed, else the reply. `Revoked` takes precedence (G2).
    pub(super) fn own_hold(&mut self, session: SessionId, target: Seq) -> Result<&mut RequestState, Reply> {
        let found = self.state.requests.iter_mut().find(|r| r.owner == Some((session, target)));
        match found {
            Some(request) => match request.phase {
                Phase::Held { .. } => Ok(request),
                Phase::Revoked { token, .. } => Err(Reply::Revoked { token }),
                Phase::Waiting { .. } | Phase::Closed { .. } => {
                    Err(Reply::Refused(Rejection::NotHeld { target }))
                }
            },
            None => Err(Reply::Refused(Rejection::NotHeld { target })),
        }
    }

    /// G2: the whole hold becomes shared; a permit is refused.
    pub(crate) fn g2_downgrade(&mut self, session: SessionId, target: Seq) -> Reply {
        match self.own_hold(session, target) {
            Err(reply) => reply,
            Ok(hold) if hold.mode == ModeKind::Permit => Reply::Refused(Rejection::WrongMode { target }),
            Ok(hold) => {
                hold.mode = ModeKind::Shared;
                hold.caching = Caching::None; // C5
                Reply::Done
            }
        }
    }

    /// G3: for any hold of the session. A value that is too long is refused before the target is checked.
    pub(crate) fn g3_set_value(&mut self, session: SessionId, target: Seq, value: Box<[u8]>) -> Reply {
        if value.len() > limits::VALUE_BYTES_MAX {
            return Reply::Refused(Rejection::ValueTooLong { bytes: value.len() });
        }
        match self.own_hold(session, target) {
            Err(reply) => reply,
            Ok(hold) => {
                hold.value = value;
                Reply::Done
            }
        }
    }
}

/// The slot that a hold or closed hold has at a name (L1).
pub(super) fn slot_of(request: &RequestState, name: &LockName) -> Option<Slot> {
    let (Phase::Held { slots, .. } | Phase::Revoked { slots, .. } | Phase::Closed { slots, .. }) =
        &request.phase
    else {
        return None;
    };
    let at = request.names.iter().position(|own| own == name)?;
    slots.get(at).copied()
}
