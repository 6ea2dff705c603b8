//! The lock service as a process: a replica with its disk, its threads and its gRPC interface.
//!
//! Responsible for time, threads, sockets and files around the pure replica, which decides everything. Three threads:
//!
//! | thread | does |
//! | --- | --- |
//! | the caller's of [`run()`] | all connections of clients (`front`), and how those of peers come about |
//! | `lockkeeper-replica` | the replica's turns, and log and peers' sockets inline (`node`, `peers`) |
//! | `lockkeeper-disk` | snapshots, spare segments, removals (`chores`) |
//!
//! Reading order: [`run()`], `node`, `inbox` (between the threads), `peers`, `front`.

pub mod backup;
mod chores;
mod clock;
mod data;
pub mod disk;
mod error;
mod front;
mod inbox;
mod leadership;
mod node;
mod observe;
mod options;
mod peers;
mod run;

pub use error::ServeError;
pub use front::LEADER_METADATA;
pub use options::{CONNECTIONS_MAX, ELECTION_TIMEOUT, Options, SNAPSHOT_AFTER};
pub use run::{Running, run};
