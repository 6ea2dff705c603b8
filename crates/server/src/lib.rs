//! The lock service as a process: a replica with its disk, its threads and its gRPC interface.
//!
//! Responsible for time, threads, sockets and files around the replica, which is pure and makes all decisions. Three
//! threads:
//!
//! | thread | does |
//! | --- | --- |
//! | the caller of [`run()`] | all client connections (`front`); opening, accepting and handshakes of peer connections |
//! | `lockkeeper-replica` | the replica's turns, including log writes and I/O on peer sockets (`node`, `peers`) |
//! | `lockkeeper-disk` | snapshots, spare segments, removals (`disk_worker`) |
//!
//! In addition, each snapshot that is sent to or received from another node has a thread while it is transferred
//! (`peers/bulk.rs`), and backups are read on the runtime's blocking threads (`front/backup.rs`).
//!
//! Reading order: [`run()`], `node`, `inbox` (the queues between the threads), `peers`, `front`, `tls`. Promises in comments
//! (P9) are defined in `docs/SAFETY.md`, other rules (M2, T1) in `docs/table-rules.md`.

pub mod access;
mod audit;
pub mod backup;
mod clock;
mod data;
pub mod disk;
mod disk_worker;
mod error;
mod file_limit;
mod files;
mod front;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hex;
mod inbox;
mod leadership;
mod node;
mod observe;
mod options;
mod peers;
mod run;
mod tls;
mod traces;

pub use error::ServeError;
pub use file_limit::raise_file_limit;
pub use files::FileError;
pub use front::LEADER_METADATA;
pub use options::{
    CONNECTIONS_MAX, ELECTION_TIMEOUT, HazardPlayer, HttpListen, IDLE_TIMEOUT, MetricsPage, PageFile,
    SNAPSHOT_AFTER, ServerOptions, TraceOfQuery,
};
pub use run::{Running, run};
pub use tls::{CertificateNames, NodeName, TlsFiles};
pub use traces::{AcquireTrace, TraceSink, TraceStage};
