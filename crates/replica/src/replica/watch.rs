//! Watches: the initial state in parts, then the state of each lock that has changed. Several changes of a
//! lock may be sent as one.

use std::collections::BTreeMap;

use lockkeeper_core::LockName;
use lockkeeper_wire::v1::{self, watch_response::What};

use super::Replica;
use super::questions::LISTED;
use crate::event::{Answer, AskId, Output};

/// Table slots visited for one part of a watch's initial state: some milliseconds at most.
const PLACES_PER_TURN: usize = 512;
/// Maximum number of descriptions of changed locks per call of `Replica::take_outputs`, for all watches
/// together. The other locks stay marked as changed; if such a lock changes once more, it is described once
/// for both changes.
const CHANGES_PER_TURN: usize = 512;

/// A watch call in progress.
pub(super) struct Watcher {
    ask: AskId,
    prefix: Option<LockName>,
    /// Cursor of the next part of the initial state; `None` once all of it was sent.
    state_from: Option<u64>,
    /// The last part of the initial state was sent and is not read yet.
    is_unread: bool,
}

impl Watcher {
    /// The names that the watch shows for these changes: those at and below the prefix. After changes above
    /// the prefix it shows the prefix, since a subtree hold above covers it; the rest of such a lock is none
    /// of the watcher's business.
    fn shown<'changes>(&'changes self, changes: &'changes [LockName]) -> Vec<&'changes LockName> {
        let Some(prefix) = &self.prefix else { return changes.iter().collect() };
        let is_inside = |name: &&LockName| prefix == *name || prefix.is_above(name.as_str());
        let mut shown: Vec<&LockName> = changes.iter().filter(is_inside).collect();
        if !shown.contains(&prefix) && changes.iter().any(|name| name.is_above(prefix.as_str())) {
            shown.push(prefix);
        }
        shown
    }
}

impl Replica {
    pub(super) fn watch(&mut self, ask: AskId, prefix: Option<LockName>) {
        self.watchers.push(Watcher { ask, prefix, state_from: Some(0), is_unread: false });
        self.table.watch(true);
    }

    /// Whether a watch has initial state or changes to be sent.
    pub(super) fn has_untold_watcher(&self) -> bool {
        let is_due = |watcher: &Watcher| watcher.state_from.is_some() && !watcher.is_unread;
        self.table.has_changes() || self.watchers.iter().any(is_due)
    }

    pub(super) fn watch_read(&mut self, ask: AskId) {
        if let Some(watcher) = self.watchers.iter_mut().find(|watcher| watcher.ask == ask) {
            watcher.is_unread = false;
        }
    }

    /// Sends the next part of the initial state to the first watch that is ready for it: one part per call,
    /// for all watches together. Parts and changes describe a lock as it is when they are sent, so no part is
    /// older than a change sent before it.
    pub(super) fn tell_states(&mut self) {
        let mut watchers = std::mem::take(&mut self.watchers);
        let mut unsynced = watchers.iter_mut().filter(|watcher| !watcher.is_unread);
        let unsynced = unsynced.find_map(|watcher| Some((watcher.state_from?, watcher)));
        if let Some((from, watcher)) = unsynced {
            let (names, next) = self.table.names_in_part(watcher.prefix.as_ref(), from, PLACES_PER_TURN);
            let state = names.iter().map(|name| What::State(self.lock(name, LISTED)));
            let synced = next.is_none().then_some(What::Synced(v1::WatchSynced {}));
            let told: Vec<v1::WatchResponse> = state.chain(synced).map(response).collect();
            watcher.state_from = next;
            watcher.is_unread = !told.is_empty();
            if !told.is_empty() {
                self.outputs.push(Output::Answer(watcher.ask, Answer::Watched(told)));
            }
        }
        self.watchers = watchers;
    }

    /// Handles a cancelled call or watch.
    pub(super) fn dropped(&mut self, ask: AskId) {
        self.rounds.forget(ask);
        self.snapshots.forget(ask);
        self.watchers.retain(|watcher| watcher.ask != ask);
        self.table.watch(!self.watchers.is_empty());
    }

    pub(super) fn end_watches(&mut self) {
        let leader = self.engine.leader();
        let gone = self.watchers.drain(..);
        self.outputs.extend(gone.map(|watcher| Output::Answer(watcher.ask, Answer::NotLeader { leader })));
        self.table.watch(false);
    }

    pub(super) fn tell_watchers(&mut self) {
        if self.watchers.is_empty() {
            return;
        }
        let max = (CHANGES_PER_TURN / self.watchers.len()).max(1);
        let changes: Vec<LockName> = self.table.take_changes(max);
        // Each lock is described once, for all watches.
        let mut described: BTreeMap<&LockName, v1::WatchResponse> = BTreeMap::new();
        for watcher in &self.watchers {
            let changed = watcher.shown(&changes).into_iter();
            let describe = |name| response(What::Changed(self.lock(name, LISTED)));
            let told: Vec<v1::WatchResponse> =
                changed.map(|name| described.entry(name).or_insert_with(|| describe(name)).clone()).collect();
            if !told.is_empty() {
                self.outputs.push(Output::Answer(watcher.ask, Answer::Watched(told)));
            }
        }
    }
}

fn response(what: What) -> v1::WatchResponse {
    v1::WatchResponse { what: Some(what) }
}
