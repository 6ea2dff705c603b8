//! One node of the lock service, pure: consensus, table, deadlines, and the layout of what it keeps on disk.
//!
//! Time, randomness, disk and network are handed in, so that production and the simulator run the same code.
//!
//! Reading order: [`event`] (what goes in and comes out), [`replica`] (a turn), `book` (deadlines), `engine` (raft-rs),
//! [`storage`] (what is kept on disk).

mod book;
pub mod disk;
mod engine;
pub mod event;
pub mod founder;
mod lease;
mod members;
pub mod mutant;
pub mod replica;
pub mod restore;
mod since;
pub mod storage;

pub use engine::{ELECTION_TICKS, Persisted, Write};
pub use event::{
    Answer, AskId, Difference, Event, LostEntries, Output, Question, Received, SnapshotStep, StreamId,
};
pub use members::{Change, Members, NODES_MAX, Rejected};
pub use replica::{
    Config, ENDS_PER_PART, Fatal, ITEMS_PER_PIECE, Recovered, Replica, TAIL_BYTES, TICK, TURN_VISITS_MAX,
};
