//! Acquire, and changes of a hold's value and mode (R5–R7, N1, G2, G3, L2–L4).

use super::deadlock::Newcomer;
use super::names::NodeId;
use super::request::{Extras, Few, Owner, RequestEntry, RequestId, RequestStage, base_bytes};
use super::work::Budget;
use super::{Table, tell_recalls};
use crate::command::{Acquire, IfBusy};
use crate::cycle::Cycle;
use crate::limits;
use crate::name::LockName;
use crate::reply::{Effects, End, Rejection, Reply};
use crate::snapshot::Caching;
use crate::types::{Fingerprint, Mode, ModeKind, Seq, SessionId, Ticket};
use crate::validate::{self, AcquireContent};

impl Table {
    /// Checks in the order of rule R7.
    pub(super) fn acquire(&mut self, acquire: Acquire, out: &mut Effects) -> Reply {
        let (id, seq, fingerprint) = (acquire.session, acquire.seq, Fingerprint::of_acquire(&acquire));
        if let Err(answer) = self.take_seq(id, seq, fingerprint, acquire.done_through) {
            return answer;
        }
        let reply = match self.try_acquire(acquire, fingerprint, out) {
            Ok(live) => return live,
            Err(last) => last,
        };
        self.keep_own(id, seq, fingerprint, reply)
    }

    /// The checks that come first for every numbered command except `Finish`: session, `done_through`, seq
    /// and the limit of kept answers. `Err` is the reply to a command that is not executed.
    fn take_seq(
        &mut self,
        id: SessionId,
        seq: Seq,
        fingerprint: Fingerprint,
        done_through: Seq,
    ) -> Result<(), Reply> {
        let Some(mut session) = self.sessions.get_mut(id) else { return Err(Reply::SessionGone) };
        session.take_done_through(done_through);
        if seq <= session.highest {
            let kept = session.kept(seq).map(|(first, reply)| (first, reply.clone()));
            let live = session.live.get(&seq).copied();
            drop(session);
            let live = live.map(|live| (self.requests[live as usize].fingerprint, self.present_state(live)));
            return Err(match live.or(kept) {
                None => Reply::Finished(End::Gone),
                Some((first, _)) if first != fingerprint => Reply::Refused(Rejection::NumberTaken { seq }),
                Some((_, answer)) => answer,
            });
        }
        session.see(seq);
        if session.keeps_too_many() {
            return Err(Reply::Refused(Rejection::TooManyKeptAnswers));
        }
        Ok(())
    }

    /// Keeps a reply that ends the request at once, under the request's own seq (R3). The holder and the
    /// queue length of `Busy` are left out: they are informational, and the holder may differ between
    /// replicas, since the search for it visits a bounded number of names in an order that differs between
    /// replicas (M2). The cycle of a deadlock is left out because it is long.
    fn keep_own(&mut self, id: SessionId, seq: Seq, fingerprint: Fingerprint, reply: Reply) -> Reply {
        let kept = match &reply {
            Reply::Busy { .. } => Reply::Busy { holder: None, queued_ahead: 0 },
            Reply::Refused(Rejection::Deadlock { .. }) => {
                Reply::Refused(Rejection::Deadlock { cycle: Cycle::default() })
            }
            reply => reply.clone(),
        };
        if let Some(mut session) = self.sessions.get_mut(id) {
            session.keep(seq, fingerprint, kept, Some(seq));
        }
        reply
    }

    /// `Ok`: granted or queued. `Err`: a final answer.
    fn try_acquire(
        &mut self,
        mut acquire: Acquire,
        fingerprint: Fingerprint,
        out: &mut Effects,
    ) -> Result<Reply, Reply> {
        if self.rules < limits::RULES_WITH_CACHED_HOLDS {
            (acquire.spare_tokens, acquire.holding) = (0, Box::default());
        }
        AcquireContent::from(&acquire).check().map_err(Reply::Refused)?;
        let names = merge(acquire.names, acquire.subtree);
        let kind = acquire.mode.kind();
        if let Mode::Permit { of } = acquire.mode {
            self.check_limits(&names, of).map_err(Reply::Refused)?;
        }
        let session = self.sessions.get(acquire.session).ok_or(Reply::SessionGone)?;
        if session.live.len() >= limits::REQUESTS_PER_SESSION_MAX {
            return Err(Reply::Refused(Rejection::TooManyRequests));
        }
        if acquire.keep_closed_ms > 0 && self.closing >= limits::CLOSED_HOLDS_MAX {
            return Err(Reply::Refused(Rejection::TooManyClosedHolds));
        }
        let account = session.account;
        let base_bytes = base_bytes(&names);
        let content = acquire.value.len() + acquire.meta.len() + size_of_val(&*acquire.holding);
        let bytes = u64::from(base_bytes) + content as u64;
        if self.bytes() + bytes > limits::TABLE_BYTES_MAX {
            return Err(Reply::Refused(Rejection::TableFull));
        }
        if self.last_token >= limits::TOKEN_MAX {
            return Err(Reply::Refused(Rejection::TokensExhausted));
        }

        let nodes: Few<NodeId> = names.iter().map(|name| self.names.intern(name.as_str())).collect();
        let of = if let Mode::Permit { of } = acquire.mode { of } else { None };
        let wanted = Wanted { nodes: nodes.as_slice(), kind, subtree: acquire.subtree, of };
        let free = !self.is_blocked(&wanted, Ticket(u64::MAX));
        let wait = match acquire.if_busy {
            IfBusy::Wait { at_most_ms, waiters_max }
                if acquire.if_busy.may_wait() && !self.is_too_long(nodes.as_slice(), waiters_max) =>
            {
                Some(at_most_ms)
            }
            _ => None,
        };
        let is_put_off = !free && wait.is_none() && self.is_blocked_by_cached_only(&wanted);
        let at_most_ms = if is_put_off { Some(limits::TRY_WAIT_MS) } else { wait.flatten() };
        // What the caller holds matters only while it waits.
        let holding = if free { Box::default() } else { self.declared_by(acquire.holding, kind, at_most_ms) };
        let refusal = match (free, wait) {
            (true, _) => None,
            (false, None) if !is_put_off => Some(self.busy(&wanted)),
            (false, _) => self.full_queue(nodes.as_slice()).or_else(|| {
                let (session, holding, names) = (acquire.session, &*holding, &*names);
                let cycle = self.deadlock(&Newcomer { wanted, names, session, account, holding })?;
                Some(Reply::Refused(Rejection::Deadlock { cycle }))
            }),
        };
        if let Some(refusal) = refusal {
            nodes.as_slice().iter().for_each(|&node| self.names.forget_if_idle(node));
            return Err(refusal);
        }

        let ticket = self.next_ticket();
        let has_extras = !acquire.value.is_empty() || !acquire.meta.is_empty() || !holding.is_empty();
        let extras = has_extras.then(|| {
            Box::new(Extras { value: acquire.value, meta: acquire.meta, holding, ..Extras::default() })
        });
        let id = self.requests.insert(
            RequestEntry {
                ticket,
                owner: Some(Owner { session: acquire.session, seq: acquire.seq }),
                fingerprint,
                nodes,
                slots: Few::None,
                kind,
                subtree: acquire.subtree,
                keep_closed_ms: acquire.keep_closed_ms as u32,
                base_bytes,
                account,
                stage: RequestStage::Waiting { at_most_ms },
                caching: Caching::None,
                spare_tokens: 0,
                since: self.clock,
                extras,
            },
            &self.names,
        );
        self.closing += usize::from(acquire.keep_closed_ms > 0);
        if let Some(mut session) = self.sessions.get_mut(acquire.session) {
            session.live.insert(acquire.seq, id);
        }
        if let Some(of) = of {
            self.imply_limits(id, of);
        }
        if free {
            self.hold(id, acquire.spare_tokens);
        } else {
            self.queue(id);
            if is_put_off {
                self.set_caching(id, Caching::Try);
            }
            let mut recalls = Vec::new();
            self.recall(id, &mut Budget::new(self.work_max), &mut recalls);
            tell_recalls(recalls, out);
        }
        Ok(self.present_state(id))
    }

    /// Whether the queue of one of the names has reached the limit of a request (Q3).
    fn is_too_long(&self, nodes: &[NodeId], waiters_max: Option<u32>) -> bool {
        let Some(most) = waiters_max.filter(|_| self.rules >= limits::RULES_WITH_QUEUE_LIMIT) else {
            return false;
        };
        let waiters = |node| self.names.get(node).here.crowd().map_or(0, |crowd| crowd.waiting.len());
        nodes.iter().any(|&node| waiters(node) >= most as usize)
    }

    fn full_queue(&self, nodes: &[NodeId]) -> Option<Reply> {
        let full = nodes.iter().find(|&&node| {
            let crowd = self.names.get(node).here.crowd();
            crowd.is_some_and(|crowd| crowd.waiting.len() >= limits::WAITERS_PER_NAME_MAX)
        })?;
        Some(Reply::Refused(Rejection::TooManyWaiters { name: self.names.name(*full) }))
    }

    pub(super) fn set_value(
        &mut self,
        id: SessionId,
        seq: Seq,
        target: Seq,
        value: Box<[u8]>,
        done_through: Seq,
    ) -> Reply {
        let fingerprint = Fingerprint::of_set_value(target, &value);
        if let Err(answer) = self.take_seq(id, seq, fingerprint, done_through) {
            return answer;
        }
        let hold = validate::value(value.len()).map_err(Reply::Refused);
        let reply = match hold.and_then(|()| self.own_hold(id, target)) {
            Ok(hold) if self.would_overfill(hold, value.len()) => Reply::Refused(Rejection::TableFull),
            Ok(hold) => {
                self.requests.edit(hold, &self.names, |request| request.extras_mut().value = value);
                Reply::Done
            }
            Err(reply) => reply,
        };
        self.keep_own(id, seq, fingerprint, reply)
    }

    /// Whether a new value would exceed the table's size limit. A value that is not longer than the previous
    /// one never does.
    fn would_overfill(&self, hold: RequestId, value_bytes: usize) -> bool {
        let growth = self.growth(hold, value_bytes);
        growth > 0 && self.bytes() + growth > limits::TABLE_BYTES_MAX
    }

    fn growth(&self, hold: RequestId, value_bytes: usize) -> u64 {
        let before = self.requests[hold as usize].extras.as_ref().map_or(0, |extras| extras.value.len());
        value_bytes.saturating_sub(before) as u64
    }

    /// By how many bytes a new value would be longer than the present one; 0 if the session has no such hold.
    pub(super) fn value_growth(&self, id: SessionId, target: Seq, value_bytes: usize) -> u64 {
        self.own_hold(id, target).map_or(0, |hold| self.growth(hold, value_bytes))
    }

    pub(super) fn downgrade(
        &mut self,
        id: SessionId,
        seq: Seq,
        target: Seq,
        done_through: Seq,
        out: &mut Effects,
    ) -> Reply {
        self.change_hold(id, seq, target, Fingerprint::of_downgrade(target), done_through, |table, hold| {
            match table.requests[hold as usize].kind {
                ModeKind::Shared => Reply::Done,
                ModeKind::Permit => Reply::Refused(Rejection::WrongMode { target }),
                ModeKind::Exclusive => {
                    table.share(hold);
                    table.end_caching(hold, out);
                    Reply::Done
                }
            }
        })
    }

    /// Runs a numbered command that changes one of the session's live holds, and keeps its answer.
    pub(super) fn change_hold(
        &mut self,
        id: SessionId,
        seq: Seq,
        target: Seq,
        fingerprint: Fingerprint,
        done_through: Seq,
        change: impl FnOnce(&mut Self, RequestId) -> Reply,
    ) -> Reply {
        if let Err(answer) = self.take_seq(id, seq, fingerprint, done_through) {
            return answer;
        }
        let reply = match self.own_hold(id, target) {
            Ok(hold) => change(self, hold),
            Err(reply) => reply,
        };
        self.keep_own(id, seq, fingerprint, reply)
    }

    /// Returns the session's live hold with this seq, if it is not revoked.
    fn own_hold(&self, id: SessionId, target: Seq) -> Result<RequestId, Reply> {
        let not_held = Reply::Refused(Rejection::NotHeld { target });
        let session = self.sessions.get(id).ok_or(Reply::SessionGone)?;
        let &request = session.live.get(&target).ok_or(not_held.clone())?;
        match self.requests[request as usize].stage {
            RequestStage::Held { .. } => Ok(request),
            RequestStage::Revoked { token } => Err(Reply::Revoked { token }),
            RequestStage::Waiting { .. } | RequestStage::Closed { .. } => Err(not_held),
        }
    }
}

/// The fields of a request that decide conflicts. Built from an acquire before its request is stored, or from
/// a stored request.
pub(super) struct Wanted<'a> {
    pub(super) nodes: &'a [NodeId],
    pub(super) kind: ModeKind,
    pub(super) subtree: bool,
    /// For a permit: the number of permits of a name that the request states, the N of "one of N". Used only
    /// at names where no limit is in force.
    pub(super) of: Option<u32>,
}

/// Returns the set of names in byte order; with `subtree`, without names that another name of the set covers
/// (N1).
fn merge(mut names: Vec<LockName>, subtree: bool) -> Vec<LockName> {
    if names.len() == 1 {
        return names;
    }
    names.sort_unstable();
    names.dedup();
    if subtree {
        let all = names.clone();
        names.retain(|name| {
            !crate::name::ancestors(name.as_str())
                .any(|above| all.binary_search_by(|other| other.as_str().cmp(above)).is_ok())
        });
    }
    names
}
