//! A deterministic simulator: a cluster and its clients in one thread under virtual time, with faults, and an
//! oracle that checks every promise.
//!
//! Each node is the production replica on the production log; clients are the production state machine and
//! carrier. Disk, network, clocks and randomness are simulated. A seed determines everything, so a run
//! repeats byte for byte.
//!
//! Reading order: [`world`](run) (the events), `node/mod.rs`, `peers.rs`, `disk_worker.rs`, `client/mod.rs`
//! and `client/job.rs` (the nodes and clients), `raw_client.rs`, `crowd.rs` and `crowd_client.rs` (a client
//! that sends frames directly), `net.rs`, `scenario.rs`, `oracle/mod.rs` (the checks), [`mutants`] (rules
//! left out on purpose, which the checks must find). Promises in comments (P9) are defined in
//! `docs/SAFETY.md`, other rules (M2, R3) in `docs/table-rules.md`.
//!
//! - The oracle only observes; nothing in the simulated world depends on it.
//! - No package of the product depends on this one, or on the library's feature `simulation`.
//! - `crates/replica/src/mutant.rs` and `mutants.rs` define the planted bugs that must be found.

mod bulk;
mod client;
mod clock;
mod core;
mod crowd;
mod crowd_client;
mod disk_worker;
pub mod mutants;
mod net;
mod node;
mod oracle;
mod peers;
mod raw_client;
mod report_text;
mod resource;
mod rng;
mod scenario;
mod trace;
mod world;

pub use oracle::{BrokenPromise, Coverage};
pub use report_text::report_text;
pub use world::{RunReport, run};
