//! How a node starts from the data on its disk, and how it crashes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockkeeper_core::limits;
use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{self, Existing, LogOptions, OpenError, Opened};
use lockkeeper_replica::{Config, Members, Recovered, Replica, TICK};
use lockkeeper_wire::store::Founding;

use super::{Directory, EIO, NodeProcess, SimNode};
use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Core, Happening};
use crate::disk_worker::{Chores, read_table};
use crate::mutants::MutantLocation;

/// Segments are small, so that a run of some minutes fills several of them.
pub(super) const OPTIONS: LogOptions = LogOptions { segment_bytes: 16 << 10 };
/// The first token of the cluster is above this one, as if an earlier table had issued all tokens up to it
/// (T1).
pub(crate) const TOKENS_ABOVE: u64 = 1_000;

impl SimNode {
    fn config(&self, core: &Core) -> Config {
        Config {
            node: self.id,
            seed: self.seed,
            tokens_above: TOKENS_ABOVE,
            rules: self.rules,
            tick: TICK,
            tail_bytes: core.scenario.tail_bytes,
            snapshot_after: core.scenario.snapshot_after,
            turn_visits_max: core.scenario.budgets.turn_visits_max,
            ends_per_part: core.scenario.budgets.ends_per_part,
            mutant: match core.mutant {
                Some(MutantLocation::Replica(mutant)) => Some(mutant),
                _ => None,
            },
        }
    }

    pub(crate) fn start(&mut self, core: &mut Core) {
        self.run += 1;
        if self.run > 1 && core.dice.chance(40) {
            // At a restart, the node may get the newest binary.
            self.rules = limits::RULES_VERSION;
        }
        core.note(format_args!("node {} starts, run {}", self.id, self.run));
        match storage::open(&self.disk, OPTIONS) {
            Ok(Opened::Existing(existing)) => self.goes_on(core, existing),
            Ok(Opened::Empty) => self.begins(core),
            // The candidate record contains a promise: other nodes may have created the cluster with it, so
            // the record must not change.
            Ok(Opened::Candidate(kept)) if kept.nodes.iter().any(|it| !it.incarnation.is_empty()) => {
                self.forms(core, kept, false);
            }
            Ok(Opened::Candidate(kept)) => {
                let own = self.stands(core, kept.member.unwrap_or_default().incarnation);
                self.forms(core, own, true);
            }
            Err(error @ OpenError::Io { .. }) => {
                core.note(format_args!("node {} can't start: {error}", self.id));
                self.crash(core, false);
            }
            Err(error) => core.broken("P10", &format!("node {} refuses its own disk: {error}", self.id)),
        }
    }

    /// Starts the node on an empty disk, with a new incarnation; under the mutant `WipedNodeVotes`, with its
    /// old record.
    fn begins(&mut self, core: &mut Core) {
        let incarnation = core.dice.secret().to_vec();
        let is_alone = self.is_founder && core.scenario.nodes == 1 && !self.is_wiped;
        let forgets = self.record.clone().filter(|_| core.is(MutantLocation::WipedNodeVotes));
        let record = forgets.or_else(|| {
            let member = self.member(incarnation.clone());
            is_alone.then(|| Founding {
                cluster: vec![1; 16],
                node: self.id,
                incarnation: member.incarnation.clone(),
                members: vec![member],
                tokens_above: TOKENS_ABOVE,
                rules: self.rules,
            })
        });
        let Some(record) = record else {
            let own = self.stands(core, incarnation);
            return self.forms(core, own, true);
        };
        match storage::found(&self.disk, OPTIONS, &record) {
            Ok(existing) => self.goes_on(core, existing),
            Err(error @ OpenError::Io { .. }) => {
                core.note(format_args!("node {} can't be founded: {error}", self.id));
                self.crash(core, true);
            }
            Err(error) => core.broken("P10", &format!("node {} can't be founded: {error}", self.id)),
        }
    }

    /// Starts a member from its data.
    pub(super) fn goes_on(&mut self, core: &mut Core, existing: Existing<MemoryDisk>) {
        let Existing { founding, hard_state, entries, entry_bytes, log, mut leftovers, snapshot, snapshots } =
            existing;
        // From here on the mutant's disk skips syncs: it may lose entries of the log, but not the bootstrap
        // record.
        self.disk.lie(core.is(MutantLocation::SyncSkipped));
        let at = snapshot.as_ref().map_or((0, 0), |it| (it.head().index, it.head().term));
        let members = snapshot.as_ref().and_then(|it| it.head().members.clone());
        let members = members.map_or_else(|| Members::founded(&founding), Members::from);
        core.oracle.founded(core.now, self.id, self.rules, &founding);
        core.members_are(&members);
        let table = match read_table(snapshot, founding.rules, core.scenario.budgets) {
            Ok(table) => table,
            Err(why) => {
                let what = format!("node {}, the snapshot of entry {}: {why}", self.id, at.0);
                return core.broken("P10", &what);
            }
        };
        if let Err(error) = leftovers.run(&self.disk) {
            core.note(format_args!("node {}: old files stay: {error}", self.id));
        }
        core.oracle.recovered(core.now, self.id, at, &table, &hard_state, &entries);
        let recovered = Recovered {
            table,
            snapshot_index: at.0,
            snapshot_term: at.1,
            members: members.clone(),
            hard_state: Some(hard_state),
            entries,
            entry_bytes,
        };
        let config = self.config(core);
        let replica = match Replica::start(config, recovered, self.clock.duration(core.now)) {
            Ok(replica) => replica,
            Err(error) => {
                let what = format!("node {} can't go on from its log: {error}", self.id);
                return core.broken("P10", &what);
            }
        };
        self.record = Some(founding.clone());
        self.process = Some(NodeProcess {
            replica,
            directory: Directory::new(founding, members),
            log,
            chores: Chores::new(snapshots),
            sockets: BTreeMap::new(),
            reading: BTreeSet::new(),
            frames: VecDeque::new(),
            inbox: VecDeque::new(),
            barriers: Vec::new(),
            writes: VecDeque::new(),
            polls: super::Polls::default(),
            incoming: BTreeMap::new(),
            stopped_until: 0,
            loop_until: 0,
            unread_until: 0,
            read_before: None,
            arm: None,
            dies_in_write: false,
            is_stopping: false,
            loses_sent: false,
            has_sign: false,
            lost_entry: 0,
            turn_at: None,
            visits_before: 0,
        });
        core.node_listens(self.id);
        self.greet(core);
        self.turn_soon(core, core.now);
    }

    /// Ends the process, and restarts it after a pause. With `power` (a power cut), unsynced data may be lost
    /// or torn.
    pub(crate) fn crash(&mut self, core: &mut Core, power: bool) {
        let pause =
            if core.is_stormy { core.dice.spread(5 * MS, 2 * core.scenario.ttl_max) } else { 20 * MS };
        self.crash_for(core, power, pause);
    }

    /// As [`Self::crash`], with the given pause.
    pub(super) fn crash_for(&mut self, core: &mut Core, power: bool, pause: Nanos) {
        self.dies(core, power);
        core.after(pause, Happening::NodeStarts { node: self.id });
    }

    /// Ends the process, because the cluster refuses the node for good. A supervisor may restart it.
    pub(super) fn ends(&mut self, core: &mut Core) {
        self.dies(core, false);
        if core.is_stormy && core.dice.chance(60) {
            let pause = core.dice.spread(SECOND / 10, 5 * SECOND);
            core.after(pause, Happening::NodeStarts { node: self.id });
        }
    }

    /// Crashes the node, and replaces its disk by an empty one.
    pub(crate) fn wipe(&mut self, core: &mut Core) {
        self.crash(core, true);
        core.note(format_args!("the disk of node {} is lost", self.id));
        self.disk = MemoryDisk::new();
        self.is_wiped = !core.is(MutantLocation::WipedNodeVotes);
        core.oracle.wiped(self.id, self.is_wiped);
    }

    /// Removes the node from the run; it is never started again.
    pub(crate) fn retires(&mut self, core: &mut Core) {
        self.is_gone = true;
        if self.is_up() {
            self.dies(core, false);
        }
    }

    fn dies(&mut self, core: &mut Core, power: bool) {
        core.note(format_args!("node {} dies (power {power})", self.id));
        self.forming = None;
        if let Some(mut process) = self.process.take() {
            // A write in progress has reached the disk, but was not synced.
            while let Some(pending) = process.writes.pop_front() {
                self.disk.heal();
                self.disk.fail(Operation::Sync, 0, EIO);
                // The append fails, as intended: the process ended before the sync.
                let _ = process.log.append(pending.record());
            }
        }
        self.disk.heal();
        if power || core.is(MutantLocation::SyncSkipped) {
            let dice = &mut core.dice;
            self.disk.crash(|n| dice.below(n));
        } else {
            self.disk.restart();
        }
        let says_so = core.dice.chance(70);
        core.node_gone(self.id, self.run, says_so);
        core.links_gone(self.id, power);
        core.bulks_gone(self.id);
    }
}
