//! Watchers: the state of some locks first, then every change of them, grouped by turn.

use lockkeeper_core::LockName;
use lockkeeper_wire::v1::{self, watch_response::What};

use super::Replica;
use crate::event::{Answer, AskId, Output};

/// Waiters named in what a watcher is told.
const WAITERS_WATCHED: usize = 10;

/// Someone who wants to hear of every change.
pub(super) struct Watcher {
    ask: AskId,
    prefix: Option<LockName>,
}

impl Watcher {
    /// Below and at the prefix; and above it, since a subtree there covers it.
    fn cares_for(&self, name: &LockName) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| {
            prefix == name || prefix.is_above(name.as_str()) || name.is_above(prefix.as_str())
        })
    }
}

impl Replica {
    pub(super) fn watch(&mut self, ask: AskId, prefix: Option<LockName>) {
        let watcher = Watcher { ask, prefix };
        // Other watchers are told what has changed so far, before this one's state includes it.
        self.tell_watchers();
        let names = self.table.names_in_use(watcher.prefix.as_ref());
        let state = names.iter().map(|name| What::State(self.lock(name, WAITERS_WATCHED)));
        let told = state.chain([What::Synced(v1::WatchSynced {})]).map(response).collect();
        self.outputs.push(Output::Answer(ask, Answer::Watched(told)));
        self.watchers.push(watcher);
        self.table.watch(true);
    }

    /// Whoever asked is gone.
    pub(super) fn dropped(&mut self, ask: AskId) {
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
        let changes: Vec<LockName> = self.table.take_changes().collect();
        for watcher in &self.watchers {
            let changed = changes.iter().filter(|name| watcher.cares_for(name));
            let told: Vec<v1::WatchResponse> =
                changed.map(|name| response(What::Changed(self.lock(name, WAITERS_WATCHED)))).collect();
            if !told.is_empty() {
                self.outputs.push(Output::Answer(watcher.ask, Answer::Watched(told)));
            }
        }
    }
}

fn response(what: What) -> v1::WatchResponse {
    v1::WatchResponse { what: Some(what) }
}
