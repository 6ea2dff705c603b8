//! What followers that lag will need: entries that stay in memory for them.
//!
//! Without this a snapshot that takes three seconds on its way would arrive at a leader which has let go of what comes
//! after it, and the next one too: a node that never catches up.

use std::collections::BTreeMap;

use super::Progress;

/// Entries that are kept for followers that lag, in bytes: some ten seconds of the heaviest load. Beyond it they need
/// another snapshot.
pub(super) const PIN_BYTES_MAX: usize = 256 << 20;
/// A follower that is silent for so many ticks is not waited for any more: a minute.
const SILENT_TICKS_MAX: u32 = 3_000;
/// Stands for whoever a snapshot is being taken for.
const NOBODY: u64 = 0;

#[derive(Default)]
pub(super) struct Lag {
    /// For each follower that is waited for: the entry after which it needs everything.
    needs: BTreeMap<u64, u64>,
    /// For how many ticks it was not heard.
    silent: BTreeMap<u64, u32>,
}

impl Lag {
    /// A snapshot at this index is begun, for one or several that need it.
    pub(super) fn begun(&mut self, index: u64) {
        self.needs.insert(NOBODY, index);
        self.silent.insert(NOBODY, 0);
    }

    /// The snapshot at this index is on its way to `node`.
    pub(super) fn sent(&mut self, node: u64, index: u64) {
        self.needs.remove(&NOBODY);
        self.needs.insert(node, index);
        self.silent.insert(node, 0);
    }

    /// Once a tick, with where the followers are; `first` is the entry before the first that is still there.
    pub(super) fn tick(&mut self, progress: &[Progress], first: u64) {
        let takes_part = |node: u64| node == NOBODY || progress.iter().any(|it| it.node == node);
        self.needs.retain(|node, _| takes_part(*node));
        self.silent.retain(|node, _| takes_part(*node));
        for it in progress {
            let silent = self.silent.entry(it.node).or_insert(SILENT_TICKS_MAX);
            *silent = if it.was_heard { 0 } else { silent.saturating_add(1) };
            match self.needs.get_mut(&it.node) {
                Some(after) => *after = it.matched.max(*after),
                None if it.was_heard => drop(self.needs.insert(it.node, it.matched)),
                None => {}
            }
        }
        if let Some(silent) = self.silent.get_mut(&NOBODY) {
            *silent = silent.saturating_add(1);
        }
        let silent = &self.silent;
        let is_waited_for = |node| silent.get(&node).is_none_or(|silent| *silent < SILENT_TICKS_MAX);
        self.needs.retain(|node, after| *after >= first && is_waited_for(*node));
    }

    /// This node does not lead.
    pub(super) fn forget(&mut self) {
        self.needs.clear();
        self.silent.clear();
    }

    /// Everything after this entry is needed.
    pub(super) fn least(&self) -> Option<u64> {
        self.needs.values().min().copied()
    }

    /// For how many ticks a follower was not heard.
    pub(super) fn silent(&self, node: u64) -> u32 {
        self.silent.get(&node).copied().unwrap_or(SILENT_TICKS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(node: u64, matched: u64, was_heard: bool) -> Progress {
        Progress {
            node,
            matched,
            was_heard,
            is_active: was_heard,
            is_learner: false,
            waits_for_snapshot: false,
        }
    }

    #[test]
    fn what_comes_after_a_snapshot_stays_from_its_begin_until_its_follower_has_it() {
        let mut lag = Lag::default();
        lag.begun(1_000);
        lag.tick(&[at(2, 5_000, true), at(3, 7, true)], 900);
        assert_eq!(lag.least(), Some(1_000), "what the third lacks is gone, and only the snapshot helps");
        lag.sent(3, 1_000);
        lag.tick(&[at(2, 6_000, true), at(3, 7, true)], 900);
        assert_eq!(lag.least(), Some(1_000));
        lag.tick(&[at(2, 6_000, true), at(3, 1_500, true)], 1_000);
        assert_eq!(lag.least(), Some(1_500), "it goes on by the log");
    }

    #[test]
    fn nobody_is_waited_for_who_is_silent_for_a_minute_or_gone() {
        let mut lag = Lag::default();
        lag.sent(3, 50);
        let (heard, silent) = ([at(2, 80, true), at(3, 0, true)], [at(2, 80, true), at(3, 0, false)]);
        for _ in 1..SILENT_TICKS_MAX {
            lag.tick(&silent, 40);
        }
        assert_eq!(lag.least(), Some(50));
        lag.tick(&heard, 40);
        lag.tick(&silent, 40);
        assert_eq!(lag.least(), Some(50), "it was heard again");
        lag.tick(&[at(2, 80, true)], 40);
        assert_eq!(lag.least(), Some(80), "it was removed");
        lag.sent(3, 50);
        for _ in 0..2 * SILENT_TICKS_MAX {
            lag.tick(&silent, 0);
        }
        assert_eq!(lag.least(), Some(80), "it stays given up");
    }

    #[test]
    fn what_is_gone_is_not_waited_for() {
        let mut lag = Lag::default();
        lag.sent(3, 50);
        lag.tick(&[at(3, 0, true)], 51);
        assert_eq!(lag.least(), None, "it needs another snapshot");
    }
}
