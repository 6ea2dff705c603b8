//! One node of the lock service as a deterministic state machine: Raft, lock table, lease deadlines, and the
//! on-disk format.
//!
//! Clock, randomness, disk and network are injected, so production and the simulator run the same code. Rule
//! ids in comments: P1 to P12 are in `docs/SAFETY.md`, all others (M2, R3, …) in `docs/table-rules.md`.
//!
//! # Code map
//!
//! - `replica/mod.rs`, `event.rs`: a *turn* (one iteration of the replica's loop), its inputs and outputs
//! - `engine/mod.rs`: the consensus, and the calls that it must not receive
//! - `replica/lead.rs`, `replica/quorum_reads.rs`, `replica/expiry.rs`: becoming the leader, ReadIndex
//!   rounds, the two steps of an expiry
//! - `bootstrap/mod.rs`: how nodes without data form one cluster, and the admission of peers
//! - `replica/checks.rs`: how nodes compare their tables, and which node stops
//! - `members.rs`, `replica/change.rs`, `replica/install.rs`: membership changes, and snapshots for followers
//!   that lag
//! - `replica/streams.rs`, `replica/calls.rs`: the requests of sessions, by streams and by calls
//! - `replica/quotas.rs`, `replica/propose.rs`: the limits of clients, and batching
//! - `storage/mod.rs`, `storage/record.rs`: the files of a node, and when it refuses to start
//! - `disk/memory.rs`: the simulated disk, which loses and tears writes and fails
//! - `tests/cluster`: each of these as a trace, message by message
//!
//! # Invariants
//!
//! - raft-rs' types stay in `engine`; bytes from peers never reach its parser.
//! - Output that depends on a write is not sent before the proof of that write's durability is returned
//!   (P10).
//! - A cluster of one node is the same code without peers.

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
pub mod storage;
mod summary;

pub use engine::{ELECTION_TICKS, Persisted, Write};
pub use event::{
    Answer, AskId, CallId, CallRequest, Difference, Event, LostEntries, Output, Question, Received,
    Requester, SessionCall, SessionPoll, SnapshotStep, StreamCloseCause, StreamId,
};
pub use load::{Activity, Load, wait_of};
pub use members::{Change, Members, NODES_MAX, Rejected};
pub use replica::{
    Config, ENDS_PER_PART, ExpiredSession, Fatal, ITEMS_PER_PIECE, Recovered, Replica, TAIL_BYTES, TICK,
    TURN_VISITS_MAX,
};
