//! Retention of log entries in memory for lagging followers.
//!
//! Without retention, a leader would have dropped the entries after a snapshot by the time that the follower
//! has received the snapshot (three seconds later, for instance). The follower would then need the next
//! snapshot, and never catch up. And each restarted follower would need a snapshot.

use std::collections::BTreeMap;

use super::Progress;

/// Maximum bytes of entries kept for followers that are being sent a snapshot: some ten seconds of the
/// heaviest load. A follower that needs more gets another snapshot.
const SNAPSHOT_BYTES_MAX: usize = 256 << 20;
/// For other followers that lag, this multiple of the default retention is kept. A follower that needs more
/// gets a snapshot.
const TAILS_MAX: usize = 16;
/// After this many ticks (a minute) without a message from a follower, no entries are kept for it.
const SILENT_TICKS_MAX: u32 = 3_000;
/// The id that stands for all followers that need the snapshot in progress, until it is sent to one of them.
const NOBODY: u64 = 0;

/// Retains the entries after `after`, up to `bytes_max` in total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pin {
    pub(super) after: u64,
    pub(super) bytes_max: usize,
}

#[derive(Default)]
pub(super) struct Lag {
    /// The default retention, in bytes.
    keep: usize,
    /// For each follower that entries are kept for: the index after which it needs all entries, and whether
    /// that is the index of a snapshot for it.
    needs: BTreeMap<u64, (u64, bool)>,
    /// Ticks since the engine's record of responding followers (`was_heard`) last contained each follower.
    silent: BTreeMap<u64, u32>,
}

impl Lag {
    pub(super) fn new(keep: usize) -> Self {
        Self { keep, ..Self::default() }
    }

    /// To be called when a snapshot at this index was begun for one or more followers.
    pub(super) fn begun(&mut self, index: u64) {
        self.needs.insert(NOBODY, (index, true));
        self.silent.insert(NOBODY, 0);
    }

    /// To be called when the snapshot at this index is being sent to `node`.
    pub(super) fn sent(&mut self, node: u64, index: u64) {
        self.needs.remove(&NOBODY);
        self.needs.insert(node, (index, true));
        self.silent.insert(node, 0);
    }

    /// To be called at every tick, with the followers' progress; `first` is the index before the first entry
    /// in memory.
    pub(super) fn tick(&mut self, progress: &[Progress], first: u64) {
        let takes_part = |node: u64| node == NOBODY || progress.iter().any(|it| it.node == node);
        self.needs.retain(|node, _| takes_part(*node));
        self.silent.retain(|node, _| takes_part(*node));
        for it in progress {
            let silent = self.silent.entry(it.node).or_insert(SILENT_TICKS_MAX);
            *silent = if it.was_heard { 0 } else { silent.saturating_add(1) };
            match self.needs.get_mut(&it.node) {
                Some(need) if it.matched > need.0 => *need = (it.matched, false),
                Some(_) => {}
                None if it.was_heard => drop(self.needs.insert(it.node, (it.matched, false))),
                None => {}
            }
        }
        if let Some(silent) = self.silent.get_mut(&NOBODY) {
            *silent = silent.saturating_add(1);
        }
        let silent = &self.silent;
        let is_waited_for = |node| silent.get(&node).is_none_or(|silent| *silent < SILENT_TICKS_MAX);
        self.needs.retain(|node, (after, _)| *after >= first && is_waited_for(*node));
    }

    /// To be called when this node does not lead: clears the state.
    pub(super) fn forget(&mut self) {
        self.needs.clear();
        self.silent.clear();
    }

    /// The retention for followers that are being sent a snapshot, and for the others.
    pub(super) fn pins(&self) -> [Option<Pin>; 2] {
        let least = |by_snapshot| {
            let needs = self.needs.values().filter(|(_, by)| *by == by_snapshot);
            needs.map(|(after, _)| *after).min()
        };
        let lag = self.keep.saturating_mul(TAILS_MAX);
        [
            least(true).map(|after| Pin { after, bytes_max: SNAPSHOT_BYTES_MAX }),
            least(false).map(|after| Pin { after, bytes_max: lag }),
        ]
    }

    /// Ticks since the engine's record of responding followers last contained this one.
    pub(super) fn silent(&self, node: u64) -> u32 {
        self.silent.get(&node).copied().unwrap_or(SILENT_TICKS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The indices after which entries are kept: for followers that are being sent a snapshot, and for the
    /// others.
    fn kept(lag: &Lag) -> (Option<u64>, Option<u64>) {
        let [snapshot, other] = lag.pins();
        (snapshot.map(|pin| pin.after), other.map(|pin| pin.after))
    }

    fn at(node: u64, matched: u64, was_heard: bool) -> Progress {
        Progress {
            node,
            matched,
            committed: 0,
            was_heard,
            is_active: was_heard,
            is_learner: false,
            waits_for_snapshot: false,
        }
    }

    #[test]
    fn entries_after_a_snapshot_are_kept_until_its_follower_has_them() {
        let mut lag = Lag::default();
        lag.begun(1_000);
        lag.tick(&[at(2, 5_000, true), at(3, 7, true)], 900);
        assert_eq!(
            kept(&lag),
            (Some(1_000), Some(5_000)),
            "what the third lacks is gone: only a snapshot helps"
        );
        lag.sent(3, 1_000);
        lag.tick(&[at(2, 6_000, true), at(3, 7, true)], 900);
        assert_eq!(kept(&lag), (Some(1_000), Some(6_000)));
        lag.tick(&[at(2, 6_000, true), at(3, 1_500, true)], 1_000);
        assert_eq!(kept(&lag), (None, Some(1_500)), "it goes on by the log");
    }

    #[test]
    fn silent_or_removed_follower_is_not_waited_for() {
        let mut lag = Lag::default();
        lag.sent(3, 50);
        let (heard, silent) = ([at(2, 80, true), at(3, 0, true)], [at(2, 80, true), at(3, 0, false)]);
        for _ in 1..SILENT_TICKS_MAX {
            lag.tick(&silent, 40);
        }
        assert_eq!(kept(&lag).0, Some(50));
        lag.tick(&heard, 40);
        lag.tick(&silent, 40);
        assert_eq!(kept(&lag).0, Some(50), "it was heard again");
        lag.tick(&[at(2, 80, true)], 40);
        assert_eq!(kept(&lag), (None, Some(80)), "it was removed");
        lag.sent(3, 50);
        for _ in 0..2 * SILENT_TICKS_MAX {
            lag.tick(&silent, 0);
        }
        assert_eq!(kept(&lag), (None, Some(80)), "it stays given up");
    }

    #[test]
    fn dropped_entries_are_not_waited_for() {
        let mut lag = Lag::default();
        lag.sent(3, 50);
        lag.tick(&[at(3, 0, true)], 51);
        assert_eq!(kept(&lag), (None, None), "it needs another snapshot");
    }
}
