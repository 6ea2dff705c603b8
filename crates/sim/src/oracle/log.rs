//! The agreed log, whose entry at each index is fixed by the first node that applies it, and each node's copy
//! of the log. Checks that nodes apply the same entries, that no entry is lost from a disk, and that no term
//! has two leaders (P1, P10).

use std::collections::BTreeMap;

use lockkeeper_core::{Command, Table};
use lockkeeper_wire::{entry, store};

use super::CheckResult;
use crate::clock::Nanos;
use crate::core::Id;

type Wrong = (&'static str, String);

struct LoggedEntry {
    data: Vec<u8>,
    commands: Vec<Command>,
}

#[derive(Default)]
pub(crate) struct AgreedLog {
    /// All entries ever written by any node, by index and term.
    entries: BTreeMap<(u64, u64), LoggedEntry>,
    /// The term of the entry at each index, as first applied.
    agreed: BTreeMap<u64, u64>,
    /// For each term, the node that wrote the first entry of that term, and when. It had been elected by
    /// then.
    elected: BTreeMap<u64, (Id, Nanos)>,
}

impl AgreedLog {
    /// To be called when a node writes an entry. Returns the entry's commands if no node has written it
    /// before: then the node proposes it.
    fn written(&mut self, now: Nanos, node: Id, it: &store::Entry) -> Result<Option<&[Command]>, Wrong> {
        let at = (it.index, it.term);
        if let Some(known) = self.entries.get(&at) {
            return match known.data == it.data {
                true => Ok(None),
                false => Err(("P10", format!("node {node} writes another entry {} of term {}", at.0, at.1))),
            };
        }
        let (leader, _) = self.elected.entry(it.term).or_insert((node, now));
        if *leader != node {
            return Err(("P1", format!("nodes {leader} and {node} both lead in term {}", it.term)));
        }
        let known = LoggedEntry { data: it.data.to_vec(), commands: commands(it)? };
        Ok(Some(&self.entries.entry(at).or_insert(known).commands))
    }

    /// The term of the agreed entry at an index.
    pub(crate) fn agreed(&self, index: u64) -> Option<u64> {
        self.agreed.get(&index).copied()
    }

    pub(crate) fn agree(&mut self, index: u64, term: u64) {
        self.agreed.insert(index, term);
    }

    pub(crate) fn commands(&self, index: u64, term: u64) -> &[Command] {
        self.entries.get(&(index, term)).map_or(&[], |entry| entry.commands.as_slice())
    }

    /// The earliest election in a later term: term, node and time.
    pub(crate) fn elected_after(&self, term: u64) -> Option<(u64, Id, Nanos)> {
        let later = self.elected.range(term + 1..).min_by_key(|(_, (_, at))| *at);
        later.map(|(&term, &(node, at))| (term, node, at))
    }

    pub(crate) fn elections(&self) -> u64 {
        self.elected.len() as u64
    }
}

fn commands(it: &store::Entry) -> Result<Vec<Command>, Wrong> {
    if it.data.is_empty() || it.kind() == store::EntryKind::Members {
        return Ok(Vec::new());
    }
    entry::decode_batch(&it.data).map_err(|error| ("P10", error.to_string()))
}

/// One node's copy of the log.
#[derive(Default)]
pub(crate) struct Copy {
    /// The term of the entry at each index, as written (`written`) and as synced (`durable`). A snapshot
    /// contains the entries up to `base`.
    written: BTreeMap<u64, u64>,
    durable: BTreeMap<u64, u64>,
    base: u64,
    /// Index of a received snapshot that will replace this log once it is durable.
    installing: Option<u64>,
    hard_state: store::HardState,
    durable_state: store::HardState,
    pub(crate) applied: u64,
    /// The highest entry of which the node has applied at least one command.
    pub(crate) begun: u64,
    /// The applied index when the node's table was last compared with the oracle's.
    pub(crate) compared: u64,
}

impl Copy {
    /// The node's term, as last written.
    pub(crate) fn term(&self) -> u64 {
        self.hard_state.term
    }

    /// The term of the node's own entry at an index.
    pub(crate) fn at(&self, index: u64) -> Option<u64> {
        self.written.get(&index).copied()
    }

    /// Whether this node would still have the entry after a power cut now.
    pub(crate) fn is_durable(&self, index: u64, term: u64) -> bool {
        index <= self.base || self.durable.get(&index) == Some(&term)
    }

    /// To be called when a node begins to write a record. Returns the commands of the entries that no node
    /// has written before: these are proposals.
    pub(crate) fn wrote(
        &mut self,
        log: &mut AgreedLog,
        now: Nanos,
        node: Id,
        record: &store::Record,
    ) -> Result<Vec<Command>, Wrong> {
        let mut fresh = Vec::new();
        if let Some(first) = record.entries.first() {
            if first.index <= self.applied && self.installing.is_none() {
                return Err((
                    "P10",
                    format!("node {node} writes entry {} anew, though it had applied it", first.index),
                ));
            }
            self.written.split_off(&first.index);
        }
        if let Some(hard_state) = &record.hard_state {
            if hard_state.term < self.hard_state.term {
                return Err(("P10", format!("node {node} goes back to term {}", hard_state.term)));
            }
            self.hard_state = *hard_state;
        }
        for entry in &record.entries {
            if let Some(commands) = log.written(now, node, entry)? {
                fresh.extend_from_slice(commands);
            }
            self.written.insert(entry.index, entry.term);
        }
        Ok(fresh)
    }

    /// To be called when the node begins to replace its log by a received snapshot. The installation is
    /// complete when the next record is synced.
    pub(crate) fn installs(&mut self, at: u64) {
        self.installing = Some(at);
    }

    /// To be called when a record is durable.
    pub(crate) fn synced(&mut self, record: &store::Record) {
        if let Some(at) = self.installing.take() {
            self.durable.clear();
            self.written = record.entries.iter().map(|entry| (entry.index, entry.term)).collect();
            (self.base, self.applied, self.begun, self.compared) = (at, at, at, 0);
        }
        if let Some(first) = record.entries.first() {
            self.durable.split_off(&first.index);
        }
        self.durable.extend(record.entries.iter().map(|entry| (entry.index, entry.term)));
        if let Some(hard_state) = &record.hard_state {
            self.durable_state = *hard_state;
        }
    }

    /// P10: after a start, the snapshot, or the log after it, contains all synced entries unchanged, and term
    /// and vote are not older than the synced ones. Entries that were never written are an error, too.
    pub(crate) fn recovered(
        &mut self,
        log: &AgreedLog,
        node: Id,
        at: u64,
        hard_state: &store::HardState,
        found: &[store::Entry],
    ) -> CheckResult {
        let terms: BTreeMap<u64, u64> = found.iter().map(|entry| (entry.index, entry.term)).collect();
        for (index, term) in self.durable.range(at + 1..) {
            // Synced entries may be missing after a crash during an installation that the start has found
            // complete, or if the pending write has replaced them.
            if self.installing != Some(at) && terms.get(index) != Some(term) && !self.replaces(&terms, *index)
            {
                let what = match terms.get(index) {
                    Some(_) => "another",
                    None => "nothing",
                };
                return Err((
                    "P10",
                    format!(
                        "node {node} had synced entry {index} of term {term}, and a start finds {what} in its \
                         place: {:?}",
                        log.commands(*index, *term)
                    ),
                ));
            }
        }
        for entry in found {
            let known = log.entries.get(&(entry.index, entry.term));
            if known.is_none_or(|known| known.data != entry.data) {
                return Err(("P10", format!("node {node} finds entry {}, which nobody wrote", entry.index)));
            }
        }
        let lost = self.durable_state;
        let is_other = lost.vote != 0 && hard_state.vote != lost.vote;
        if hard_state.term < lost.term || (hard_state.term == lost.term && is_other) {
            return Err((
                "P10",
                format!("node {node} had synced {lost:?}, and a start finds {hard_state:?}"),
            ));
        }
        *self = Self {
            written: terms.clone(),
            durable: terms,
            base: at,
            installing: None,
            hard_state: *hard_state,
            durable_state: *hard_state,
            applied: at,
            begun: at,
            compared: at,
        };
        Ok(())
    }

    /// Whether the synced entry at `index` was replaced by a write that was in progress at the crash.
    fn replaces(&self, found: &BTreeMap<u64, u64>, index: u64) -> bool {
        // If so, the pending record reached the disk after all, and replaced everything from its first entry
        // on.
        let first = found.iter().find(|(index, term)| self.durable.get(index).is_some_and(|it| it != *term));
        first.is_some_and(|(&first, _)| {
            index >= first && found.range(first..).all(|(index, term)| self.written.get(index) == Some(term))
        })
    }

    /// Checks that the node's table equals the one that the agreed log produces.
    pub(crate) fn compare(&mut self, node: Id, table: &Table, expected: Option<u128>) -> CheckResult {
        self.compared = self.applied;
        if expected == Some(table.snapshot().digest()) {
            return Ok(());
        }
        Err(("P10", format!("at entry {} the table of node {node} is not what the log makes", self.applied)))
    }
}
