//! C6: a try is not busy while nothing but idle cached holds is in its way. Whether a hold is idle, only its
//! client knows; whatever else is in the way is in the table.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::snapshot::{Caching, Phase, RequestState};
use lockkeeper_core::{LockName, ModeKind, Seq, Snapshot, limits};

use super::CheckResult;
use crate::clock::{MS, Nanos};

/// Beyond this time a try may be busy, since the holders did not answer. Clocks differ by less.
const WAIT_MAX: Nanos = limits::TRY_WAIT_MS * MS * 9 / 10;

/// Identifies a try: client, life, and key.
pub(crate) type TryId = (usize, u64, u64);

pub(crate) struct OpenTry {
    pub(crate) names: Vec<LockName>,
    pub(crate) subtree: bool,
    pub(crate) kind: ModeKind,
    /// The label of its session, and its seq there once it was sent: so that it is not taken for another.
    pub(crate) label: String,
    pub(crate) seq: Option<Seq>,
    pub(crate) asked: Nanos,
    /// Something else than an idle hold was in its way since it was asked.
    pub(crate) saw_use: bool,
}

#[derive(Default)]
pub(crate) struct Tries(BTreeMap<TryId, OpenTry>);

/// Whether one of the names is the other, or below it with its subtree.
fn covers(name: &LockName, subtree: bool, other: &LockName) -> bool {
    let below = || other.as_str().strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'));
    name == other || (subtree && below())
}

impl OpenTry {
    fn conflicts(&self, request: &RequestState) -> bool {
        // A waiter is in the way in any mode: it came first.
        let waits = matches!(request.phase, Phase::Waiting { .. });
        let are_shared = request.mode == ModeKind::Shared && self.kind == ModeKind::Shared;
        (waits || !are_shared)
            && self.names.iter().any(|own| {
                let meets = |other: &LockName| {
                    covers(own, self.subtree, other) || covers(other, request.subtree, own)
                };
                request.names.iter().any(meets)
            })
    }

    fn is_own(&self, request: &RequestState, snapshot: &Snapshot) -> bool {
        let Some((session, seq)) = request.owner else { return false };
        let label = snapshot.sessions.iter().find(|it| it.id == session).map(|it| &*it.label);
        Some(seq) == self.seq && label == Some(&self.label)
    }
}

impl Tries {
    pub(crate) fn begin(&mut self, id: TryId, it: OpenTry) {
        self.0.insert(id, it);
    }

    pub(crate) fn sent(&mut self, id: TryId, seq: Seq) {
        if let Some(it) = self.0.get_mut(&id) {
            it.seq = Some(seq);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// To be called after each command.
    pub(super) fn follow(&mut self, after: &Snapshot) {
        self.look(after, |request| request.caching.is_held());
    }

    /// To be called after each event, with the first tokens of the cached holds that are idle.
    pub(super) fn look_at_clients(&mut self, now: &Snapshot, idle: &BTreeSet<u64>) {
        self.look(now, |request| {
            let token = match &request.phase {
                Phase::Held { token, .. } => token.get(),
                _ => return false,
            };
            request.caching.is_held() && idle.contains(&token)
        });
    }

    fn look(&mut self, now: &Snapshot, is_idle: impl Fn(&RequestState) -> bool) {
        for it in self.0.values_mut().filter(|it| !it.saw_use) {
            let in_way = |request: &&RequestState| {
                it.conflicts(request)
                    && !is_idle(request)
                    && !(request.caching == Caching::Try && it.is_own(request, now))
            };
            it.saw_use = now.requests.iter().any(|request| in_way(&request));
        }
    }

    /// To be called when a try has ended; `is_busy`: by this answer.
    pub(crate) fn end(&mut self, now: Nanos, id: TryId, is_busy: bool) -> CheckResult {
        let Some(it) = self.0.remove(&id) else { return Ok(()) };
        if !is_busy || it.saw_use || now > it.asked + WAIT_MAX {
            return Ok(());
        }
        let names = it.names;
        Err(("C6", format!("{id:?} tries {names:?}, and is busy though nobody uses them: the hold is idle")))
    }
}
