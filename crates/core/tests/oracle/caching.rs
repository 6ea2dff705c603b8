//! Cached holds (C1–C6).

use lockkeeper_core::limits;
use lockkeeper_core::snapshot::{Caching, Phase, RequestState};
use lockkeeper_core::{End, Reply, Seq, SessionId, Ticket};

use super::requests::{is_waiting, n2_conflict, n2_overlap};
use super::{Oracle, ReportedEffects};

impl Oracle {
    /// C6: whether nothing but cached holds is in the way of a request: no waiter overlaps it, no other hold
    /// conflicts with it, and no permit is missing. Of a subtree, at most so many names below may be held.
    pub(crate) fn c6_only_cached_holds_block(&self, request: &RequestState, implied: &Option<u32>) -> bool {
        let others = || self.state.requests.iter().filter(|other| other.ticket != request.ticket);
        let waiter = |other: &&RequestState| is_waiting(other) && n2_overlap(request, other);
        let hold = |other: &&RequestState| !is_waiting(other) && n2_conflict(request, other);
        others().find(waiter).is_none()
            && others().filter(hold).all(|other| other.caching.is_held())
            && request.names.iter().all(|name| !self.permits_are_out(request, name, implied))
    }

    /// C4: a request that queues recalls the cached holds in its way.
    pub(crate) fn c4_recall(&mut self, waiter: Ticket, reported: &mut ReportedEffects) {
        let waiter = self.state.requests.iter().find(|r| r.ticket == waiter).expect("it waits").clone();
        for hold in &mut self.state.requests {
            if hold.caching == Caching::Cached && n2_conflict(&waiter, hold) {
                hold.caching = Caching::Recalled;
                reported.recalled(hold.ticket, hold.owner.expect("a cached hold has an owner"));
            }
        }
    }

    /// C5: the hold is an ordinary one from now on.
    pub(crate) fn c5_settle(&mut self, session: SessionId, target: Seq) -> Reply {
        match self.own_hold(session, target) {
            Err(reply) => reply,
            Ok(hold) => {
                hold.caching = Caching::None;
                Reply::Done
            }
        }
    }

    /// C6: a request that was put off is busy once something other than cached holds is in its way: a hold
    /// that was settled, downgraded, revoked or closed.
    pub(crate) fn c6_judge_anew(&mut self, reported: &mut ReportedEffects) {
        let tries = self.state.requests.iter().filter(|r| r.caching == Caching::Try);
        let over = tries.filter(|request| {
            let blocks = |other: &RequestState| {
                !is_waiting(other) && !other.caching.is_held() && n2_conflict(request, other)
            };
            self.state.requests.iter().any(blocks)
        });
        for request in over.cloned().collect::<Vec<_>>() {
            assert!(matches!(request.phase, Phase::Waiting { at_most_ms: Some(limits::TRY_WAIT_MS) }));
            self.forget(request.ticket);
            let owner = request.owner.expect("a waiter has an owner");
            self.r3_keep_end(&request, End::TimedOut, None);
            reported.ended(request.ticket, owner, End::TimedOut);
        }
    }
}
