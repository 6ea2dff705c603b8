//! How a node begins, on what its disk holds, and how it dies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockkeeper_replica::disk::memory::Operation;
use lockkeeper_replica::storage::{self, Existing, Opened, Options};
use lockkeeper_replica::{Config, Members, Recovered, Replica, TICK};
use lockkeeper_wire::store::{Founding, Member};

use super::{EIO, Node, Process};
use crate::chores::{Chores, read_table};
use crate::clock::{MS, Nanos};
use crate::core::{Core, Happening, Id};
use crate::mutants::Place;

/// Small, so that a run of some minutes fills several.
const SEGMENT_BYTES: u64 = 16 << 10;
/// The first token is above this one: what was here before may have issued all up to it (T1).
pub(crate) const TOKENS_ABOVE: u64 = 1_000;

/// Where a node serves clients.
pub(crate) fn client_address(node: Id) -> String {
    format!("node-{node}:{}", lockkeeper_wire::DEFAULT_PORT)
}

/// Whose address that is.
pub(crate) fn node_at(address: &str) -> Option<Id> {
    address.strip_prefix("node-")?.split(':').next()?.parse().ok()
}

impl Node {
    fn config(&self, core: &Core) -> Config {
        Config {
            node: self.id,
            seed: self.seed,
            tokens_above: TOKENS_ABOVE,
            tick: TICK,
            tail_bytes: core.scenario.tail_bytes,
            snapshot_after: core.scenario.snapshot_after,
            mutant: match core.mutant {
                Some(Place::Replica(mutant)) => Some(mutant),
                _ => None,
            },
        }
    }

    pub(crate) fn start(&mut self, core: &mut Core) {
        self.run += 1;
        core.note(format_args!("node {} starts, run {}", self.id, self.run));
        let options = Options { segment_bytes: SEGMENT_BYTES };
        let opened = storage::open(&self.disk, options).and_then(|opened| match opened {
            Opened::Existing(existing) => Ok(existing),
            Opened::Empty | Opened::Candidate(_) => {
                storage::found(&self.disk, options, &founding(self.id, core.scenario.nodes))
            }
        });
        let existing = match opened {
            Ok(existing) => existing,
            Err(error) if matches!(error, storage::OpenError::Io { .. }) => {
                core.note(format_args!("node {} can't start: {error}", self.id));
                return self.crash(core, false);
            }
            Err(error) => {
                return core.broken("P10", &format!("node {} refuses its own disk: {error}", self.id));
            }
        };
        let Existing { founding, hard_state, entries, log, mut leftovers, snapshot, snapshots } = existing;
        let at = snapshot.as_ref().map_or((0, 0), |it| (it.head().index, it.head().term));
        let members = snapshot.as_ref().and_then(|it| it.head().members.clone());
        let members = members.map_or_else(|| Members::founded(&founding), Members::from);
        let table = match read_table(snapshot) {
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
            members,
            hard_state: Some(hard_state),
            entries,
        };
        let config = self.config(core);
        let replica = match Replica::start(config, recovered, self.clock.duration(core.now)) {
            Ok(replica) => replica,
            Err(error) => {
                let what = format!("node {} can't go on from its log: {error}", self.id);
                return core.broken("P10", &what);
            }
        };
        self.process = Some(Process {
            replica,
            log,
            chores: Chores::new(snapshots),
            sockets: BTreeMap::new(),
            reading: BTreeSet::new(),
            frames: VecDeque::new(),
            inbox: VecDeque::new(),
            barriers: Vec::new(),
            writes: VecDeque::new(),
            incoming: BTreeMap::new(),
            stopped_until: 0,
            loop_until: 0,
            unread_until: 0,
            read_before: None,
            arm: None,
            dies_in_write: false,
            is_stopping: false,
            loses_sent: false,
            turn_at: None,
        });
        self.greet(core);
        self.turn_soon(core, core.now);
    }

    /// Links to the others are made by whoever sends on them.
    fn greet(&self, core: &mut Core) {
        core.node_listens(self.id);
        for to in self.others(core) {
            let pause = core.dice.spread(MS / 10, 20 * MS);
            core.dial(self.id, self.run, to, pause);
        }
    }

    /// The process dies, with all that was not synced; it starts again later.
    pub(crate) fn crash(&mut self, core: &mut Core, power: bool) {
        let pause =
            if core.is_stormy { core.dice.spread(5 * MS, 2 * core.scenario.ttl_max) } else { 20 * MS };
        self.crash_for(core, power, pause);
    }

    /// As [`Self::crash`], and starts again after a pause.
    pub(super) fn crash_for(&mut self, core: &mut Core, power: bool, pause: Nanos) {
        core.note(format_args!("node {} dies (power {power})", self.id));
        if let Some(mut process) = self.process.take() {
            // What was being written has reached the disk in part.
            while let Some(pending) = process.writes.pop_front() {
                self.disk.heal();
                self.disk.fail(Operation::Sync, 0, EIO);
                // It fails, as it must: the process is gone before the sync.
                let _ = process.log.append(pending.record());
            }
        }
        self.disk.heal();
        if power || core.is(Place::SyncSkipped) {
            let dice = &mut core.dice;
            self.disk.crash(|n| dice.below(n));
        } else {
            self.disk.restart();
        }
        let says_so = core.dice.chance(70);
        core.node_gone(self.id, self.run, says_so);
        core.links_gone(self.id, power);
        core.bulks_gone(self.id);
        core.after(pause, Happening::NodeStarts { node: self.id });
    }
}

/// The record of a cluster of so many nodes, as each of them has it.
fn founding(node: Id, nodes: u64) -> Founding {
    let member = |node: Id| Member {
        node,
        incarnation: vec![node as u8; 16],
        peer_address: format!("node-{node}:{}", lockkeeper_wire::DEFAULT_PEER_PORT),
        client_address: client_address(node),
    };
    Founding {
        cluster: vec![1; 16],
        node,
        incarnation: member(node).incarnation,
        members: (1..=nodes).map(member).collect(),
        tokens_above: TOKENS_ABOVE,
        rules: 1,
    }
}
