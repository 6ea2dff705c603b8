//! The lock service as a process: a replica with its disk, its threads and its gRPC interface.
//!
//! Responsible for time, threads, sockets and files around the replica, which is pure and makes all
//! decisions. Three threads:
//!
//! | thread | does |
//! | --- | --- |
//! | the caller of [`run()`] | all client connections (`front`); opening, accepting and handshakes of peer connections |
//! | `lockkeeper-replica` | the replica's turns, including log writes and I/O on peer sockets (`node`, `peers`) |
//! | `lockkeeper-disk` | snapshots, spare segments, removals (`disk_worker`) |
//!
//! In addition, each snapshot that is sent to or received from another node has a thread while it is
//! transferred (`peers/bulk.rs`), and backups are read on the runtime's blocking threads
//! (`front/calls/backup.rs`).
//!
//! # Code map
//!
//! - `run.rs`, `data.rs`: how a node starts and stops
//! - `node.rs`: a turn of the replica, and the effect of a failed write
//! - `reports.rs`, `leadership.rs`: what that thread logs
//! - `inbox/mod.rs`, `inbox/fair_queue.rs`: the queues between the threads, and how clients are served in
//!   turn
//! - `front/mod.rs`: clients, by gRPC and HTTP; `front/pump.rs` sends answers
//! - `front/transport/mod.rs`: connections, their limits, and what "has arrived" means (P9)
//! - `front/callers/mod.rs`, `access/mod.rs`: who a caller is, and whether it may; `access/quotas.rs`: limits
//!   of clients
//! - `front/sessions/mod.rs`: streams of sessions, and sessions without a stream
//! - `front/calls/mod.rs`: questions to the replica; `front/calls/forward/mod.rs`: calls at a follower
//! - `front/http/mod.rs`: HTTP, for the interface of the package `lockkeeper-http`
//! - `peers/mod.rs`: connections between nodes, and their threads
//! - `tls/mod.rs`, `files.rs`: TLS on both ports; the reload of certificates, tokens and permissions
//! - `traces.rs`, `observe.rs`: stages of an acquire, metrics
//! - `audit.rs`, `refusals.rs`: the audit trail, and which refusals are in it
//! - `disk.rs`, `disk_worker.rs`, `disk_space.rs`: the real disk
//! - `process.rs`: this process's use of the machine, for metrics
//!
//! Promises in comments (P9) are defined in `docs/SAFETY.md`, other rules (M2, T1) in `docs/table-rules.md`.
//!
//! # Invariants
//!
//! - A data directory has one owner; the error of a second process names the owner's pid.
//! - No single request of a stream has a task, a channel or an allocation of its own.
//! - A failed write or sync of the log ends the process; it is never retried (P10).
//! - `linger` starts only when FIN, RST, END_STREAM, RST_STREAM or the end of TLS was read from the client. A
//!   bare FIN under TLS counts: it is all that a killed process leaves.
//! - With TLS, the drain barrier takes a socket for empty only if its TLS layer has nothing more in the same
//!   read.
//! - What a caller may do is decided once, by the node that terminates its connection. A passed-on identity
//!   is believed only from a certificate of a node of the cluster.
//! - A node is accepted by the name in its certificate, never by a host name; both sides check it against the
//!   hello.
//! - A message of a caller without an identity is read only by the health service, up to 4 KiB.
//! - A trace never affects a lock: its context is no part of the command, the log or the table. The replica
//!   stays without a clock: its thread measures around it.

pub mod access;
mod audit;
pub mod backup;
mod clock;
mod data;
pub mod disk;
mod disk_space;
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
mod process;
mod refusals;
mod reports;
mod run;
mod scheduled_backups;
mod tls;
mod traces;

pub use error::{FileError, ServeError};
pub use file_limit::raise_file_limit;
pub use front::LEADER_METADATA;
pub use options::{
    CONNECTIONS_MAX, ELECTION_TIMEOUT, HttpListen, IDLE_TIMEOUT, MetricsPage, SNAPSHOT_AFTER, ServerOptions,
};
pub use run::{Running, run};
pub use scheduled_backups::BackupSchedule;
pub use tls::{CertificateNames, NodeName, TlsFiles};
pub use traces::{AcquireTrace, TraceSink, TraceStage};
