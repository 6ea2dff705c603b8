//! Between the table and its snapshot.

use super::Table;
use super::crowd::Limit;
use super::names::Counted;
use super::request::{Extras, Few, Owner, Request, Stage, insert};
use super::session::Session;
use crate::command::OpenSession;
use crate::limits;
use crate::name::LockName;
use crate::snapshot::{KeptAnswer, LimitState, Phase, RequestState, SessionState, Snapshot};
use crate::types::{ModeKind, Slot};

/// Why a snapshot is not one of a table. Nothing of it is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot does not describe a table: {0}; restore another one")]
pub struct SnapshotError(pub(crate) String);

fn refuse<T>(why: impl Into<String>) -> Result<T, SnapshotError> {
    Err(SnapshotError(why.into()))
}

impl Table {
    /// The whole table in canonical order (E2).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let sessions = self.sessions.iter().map(|(&id, session)| SessionState {
            id,
            secret_hash: session.secret_hash,
            ttl_ms: session.ttl_ms,
            lock_delay_ms: session.lock_delay_ms,
            linger_ms: session.linger_ms,
            label: session.label.clone(),
            highest: session.highest,
            done_through: session.done_through,
            kept: session
                .kept_answers()
                .map(|(seq, reply, until)| KeptAnswer { seq, reply: reply.clone(), until })
                .collect(),
        });
        let mut requests: Vec<RequestState> =
            self.requests.iter().map(|(_, request)| self.request_state(request)).collect();
        requests.sort_unstable_by_key(|request| request.ticket);
        let limit_state = |node: &super::names::Node| {
            node.here.limit().map(|limit| LimitState {
                name: LockName::trusted(&node.name),
                limit: limit.number,
                stored: limit.stored,
            })
        };
        let mut limits: Vec<LimitState> =
            self.names.all().filter_map(|(_, node)| limit_state(node)).collect();
        limits.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Snapshot {
            rules: self.rules,
            last_token: self.last_token,
            last_ticket: self.last_ticket,
            last_session: self.last_session,
            sessions: sessions.collect(),
            requests,
            limits,
        }
    }

    fn request_state(&self, request: &Request) -> RequestState {
        let extras = request.extras.as_deref();
        let slots = request.slots.as_slice().to_vec();
        RequestState {
            ticket: request.ticket,
            owner: request.owner.map(|owner| (owner.session, owner.seq)),
            names: request
                .nodes
                .as_slice()
                .iter()
                .map(|&node| LockName::trusted(&self.names.get(node).name))
                .collect(),
            mode: request.kind,
            subtree: request.subtree,
            keep_closed_ms: u64::from(request.keep_closed_ms),
            value: extras.map(|extras| extras.value.clone()).unwrap_or_default(),
            meta: extras.map(|extras| extras.meta.clone()).unwrap_or_default(),
            phase: match request.stage {
                Stage::Waiting { at_most_ms } => Phase::Waiting { at_most_ms },
                Stage::Held { token } => Phase::Held { token, slots },
                Stage::Revoked { token } => Phase::Revoked {
                    token,
                    slots,
                    reason: extras.map(|extras| extras.reason.clone()).unwrap_or_default(),
                    by: extras.map(|extras| extras.by.clone()).unwrap_or_default(),
                },
                Stage::Closed { token, ms } => Phase::Closed { token, slots, ms },
            },
        }
    }

    /// A table that goes on exactly where the snapshot was taken.
    ///
    /// # Errors
    /// [`SnapshotError`] if the snapshot contradicts itself.
    pub fn restore(snapshot: &Snapshot, hash_seed: u64) -> Result<Self, SnapshotError> {
        let mut table = Self::new(hash_seed);
        if snapshot.rules > limits::RULES_VERSION {
            return refuse(format!(
                "it needs rules version {}, the newest known here is {}",
                snapshot.rules,
                limits::RULES_VERSION
            ));
        }
        table.rules = snapshot.rules;
        table.last_token = snapshot.last_token;
        table.last_ticket = snapshot.last_ticket;
        table.last_session = snapshot.last_session;
        for state in &snapshot.sessions {
            table.restore_session(state)?;
        }
        for state in &snapshot.limits {
            let node = table.names.intern(state.name.as_str());
            let limit = Limit { number: state.limit, stored: state.stored };
            table.names.here_mut(node).imply_limit(limit, &table.requests);
            table.stored_limits += usize::from(state.stored);
        }
        for state in &snapshot.requests {
            table.restore_request(state)?;
        }
        Ok(table)
    }

    fn restore_session(&mut self, state: &SessionState) -> Result<(), SnapshotError> {
        if state.id.0 == 0 || state.id.0 > self.last_session {
            return refuse(format!("session {} is above the counter {}", state.id, self.last_session));
        }
        let mut session = Session::new(&OpenSession {
            secret_hash: state.secret_hash,
            ttl_ms: state.ttl_ms,
            lock_delay_ms: state.lock_delay_ms,
            linger_ms: state.linger_ms,
            label: state.label.clone(),
        });
        session.take_done_through(state.done_through);
        session.see(state.highest);
        for kept in &state.kept {
            session.keep(kept.seq, kept.reply.clone(), kept.until);
        }
        if self.by_secret.insert(state.secret_hash, state.id).is_some()
            || self.sessions.insert(state.id, session).is_some()
        {
            return refuse(format!("session {} appears twice", state.id));
        }
        Ok(())
    }

    fn restore_request(&mut self, state: &RequestState) -> Result<(), SnapshotError> {
        let ticket = state.ticket;
        if ticket.0 == 0 || ticket.0 > self.last_ticket || state.names.is_empty() {
            return refuse(format!("request with ticket {} is malformed", ticket.0));
        }
        let (stage, slots): (Stage, &[Slot]) = match &state.phase {
            Phase::Waiting { at_most_ms } => (Stage::Waiting { at_most_ms: *at_most_ms }, &[]),
            Phase::Held { token, slots } => (Stage::Held { token: *token }, slots),
            Phase::Revoked { token, slots, .. } => (Stage::Revoked { token: *token }, slots),
            Phase::Closed { token, slots, ms } => (Stage::Closed { token: *token, ms: *ms }, slots),
        };
        let is_hold = !matches!(stage, Stage::Waiting { .. });
        let slots_wanted = if is_hold && state.mode == ModeKind::Permit { state.names.len() } else { 0 };
        if slots.len() != slots_wanted || slots.iter().any(|&slot| slot >= limits::PERMITS_MAX) {
            return refuse(format!("request with ticket {} has the wrong permits", ticket.0));
        }
        if state.owner.is_none() != matches!(stage, Stage::Closed { .. }) {
            return refuse(format!("request with ticket {} has the wrong owner", ticket.0));
        }
        let extras = match &state.phase {
            Phase::Revoked { reason, by, .. } => Some((reason.clone(), by.clone())),
            _ => None,
        };
        let has_extras = extras.is_some() || !state.value.is_empty() || !state.meta.is_empty();
        let (reason, by) = extras.unwrap_or_default();
        let nodes: Few<_> = state.names.iter().map(|name| self.names.intern(name.as_str())).collect();
        let keep_closed_ms = u32::try_from(state.keep_closed_ms)
            .map_err(|_| SnapshotError(format!("keep_closed of {} ms", state.keep_closed_ms)))?;
        let id = insert(
            &mut self.requests,
            Request {
                ticket,
                owner: state.owner.map(|(session, seq)| Owner { session, seq }),
                nodes: nodes.clone(),
                slots: slots.iter().copied().collect(),
                kind: state.mode,
                subtree: state.subtree,
                keep_closed_ms,
                stage,
                extras: has_extras.then(|| {
                    Box::new(Extras { value: state.value.clone(), meta: state.meta.clone(), reason, by })
                }),
            },
        );
        if let Some((session, seq)) = state.owner {
            let Some(session) = self.sessions.get_mut(&session) else {
                return refuse(format!("request with ticket {} belongs to no live session", ticket.0));
            };
            if session.live.insert(seq, id).is_some() {
                return refuse(format!("two live requests have seq {seq}"));
            }
        }
        self.closing += usize::from(keep_closed_ms > 0 || matches!(stage, Stage::Closed { .. }));
        match stage {
            Stage::Revoked { token } => drop(self.revoked.insert(token, id)),
            Stage::Closed { token, .. } => drop(self.closed.insert(token, id)),
            Stage::Waiting { .. } | Stage::Held { .. } => {}
        }
        if !is_hold {
            self.queue(id);
            return Ok(());
        }
        let shared = state.mode == ModeKind::Shared;
        for (index, &node) in nodes.as_slice().iter().enumerate() {
            self.names.here_mut(node).add_hold(id, slots.get(index).copied(), &self.requests);
            self.names.count_above(node, Counted::Hold { shared }, 1);
        }
        Ok(())
    }
}
