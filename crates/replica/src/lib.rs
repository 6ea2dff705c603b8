//! One node of the lock service as a deterministic state machine: Raft, lock table, lease deadlines, and the on-disk
//! format.
//!
//! Clock, randomness, disk and network are injected, so production and the simulator run the same code. Rule ids in
//! comments: P1 to P12 are in `docs/SAFETY.md`, all others (M2, R3, …) in `docs/table-rules.md`.
//!
//! Reading order: [`event`] (inputs and outputs), [`replica`] (one turn of the event loop), `deadlines` (the
//! leader's timers), `engine` (raft-rs), [`storage`] (log and snapshots on disk).

pub mod bootstrap;
mod deadlines;
pub mod disk;
mod engine;
pub mod event;
mod lease;
pub mod load;
mod members;
pub mod mutant;
pub mod replica;
pub mod restore;
mod since;
pub mod storage;

pub use engine::{ELECTION_TICKS, Persisted, Write};
pub use event::{
    Answer, AskId, Difference, Event, LostEntries, Output, Question, Received, SnapshotStep,
    StreamCloseCause, StreamId,
};
pub use load::{Activity, Load};
pub use members::{Change, Members, NODES_MAX, Rejected};
pub use replica::{
    Config, ENDS_PER_PART, Fatal, ITEMS_PER_PIECE, Recovered, Replica, TAIL_BYTES, TICK, TURN_VISITS_MAX,
};
