//! Deadlocks (K1, K2), by a plain search over all requests.

use lockkeeper_core::snapshot::{Phase, RequestState};
use lockkeeper_core::{Cycle, CycleRequest, ModeKind, Snapshot, Token};

use super::requests::n2_conflict;
use super::{Oracle, c2_has_token, token_of};

impl Oracle {
    /// K1: only waits without limit for exclusive and shared holds declare anything, and only issued tokens.
    pub(crate) fn k1_declared(&self, request: &RequestState) -> Box<[Token]> {
        let issued = |token: &Token| token.get() <= self.state.last_token;
        match is_followed(request) {
            true => request.holding.iter().copied().filter(issued).collect(),
            false => Box::default(),
        }
    }

    /// K2: whether the new wait can be reached from itself.
    pub(crate) fn k2_closes_a_cycle(&self, new: &RequestState) -> bool {
        let mut reached = vec![new];
        let mut next = 0;
        while let Some(&from) = reached.get(next) {
            if self.k2_goes_on_after(from, new) {
                return true;
            }
            for to in &self.state.requests {
                if self.k2_goes_on_after(from, to) && !reached.contains(&to) {
                    reached.push(to);
                }
            }
            next += 1;
        }
        false
    }

    /// K2: whether a request can't go on before another one has ended: a wait before the holds and earlier
    /// waits that conflict with it, a hold before the waits that declare it.
    fn k2_goes_on_after(&self, one: &RequestState, other: &RequestState) -> bool {
        let is_held = |request: &RequestState| matches!(request.phase, Phase::Held { .. });
        let identity = |request: &RequestState| {
            let (owner, _) = request.owner.expect("it is live");
            self.state.sessions.iter().find(|session| session.id == owner).map(|session| &session.identity)
        };
        if is_held(one) {
            is_followed(other)
                && other.holding.iter().any(|token| c2_has_token(one, token.get()))
                && identity(one) == identity(other)
        } else {
            is_followed(one)
                && n2_conflict(one, other)
                && (is_held(other) || (is_followed(other) && other.ticket < one.ticket))
        }
    }
}

fn is_followed(request: &RequestState) -> bool {
    matches!(request.phase, Phase::Waiting { at_most_ms: None }) && request.mode != ModeKind::Permit
}

/// Whether a described cycle is one of the table: each of its requests goes on only after the next one, and
/// the last one after the refused one, which is the first.
pub(crate) fn is_cycle(now: &Snapshot, refused: &RequestState, cycle: &Cycle) -> bool {
    let oracle = Oracle::from_snapshot(now);
    let is_described = |request: &RequestState, described: &CycleRequest| {
        request.owner.is_some_and(|(session, _)| session == described.session)
            && request.names[0] == described.name
            && request.names.len() == described.names
            && token_of(request) == described.token
    };
    let Some((first, others)) = cycle.requests.split_first() else { return false };
    // Several waits of a session may have the same names, so a description may fit several requests.
    let mut last: Vec<&RequestState> = vec![refused];
    for described in others {
        let fitting = now.requests.iter().filter(|request| is_described(request, described));
        last = fitting
            .filter(|request| last.iter().any(|before| oracle.k2_goes_on_after(before, request)))
            .collect();
    }
    is_described(refused, first)
        && cycle.left_out == 0
        && last.iter().any(|last| oracle.k2_goes_on_after(last, refused))
}
