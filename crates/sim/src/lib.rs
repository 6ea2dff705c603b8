//! A small world in one thread under virtual time: a cluster and its clients, faults by seed, and an oracle that holds
//! everything against the promises.
//!
//! Each node is the production replica on the production log, the clients are the production machine and carrier; the
//! disk, the network, the clocks and chance are simulated. A seed decides everything, so a run repeats byte for byte.
//!
//! Reading order: [`world`](run) (what happens), `node/mod.rs`, `peers.rs` and `chores.rs`, `client/mod.rs` and `client/job.rs` (who takes part),
//! `hand.rs`, `crowd.rs`, `queued.rs`, `net.rs`, `scenario.rs`, `oracle/mod.rs` (what must be true), [`mutants`] (what must be found).

mod bulk;
mod chores;
mod client;
mod clock;
mod core;
mod crowd;
mod dice;
mod hand;
pub mod mutants;
mod net;
mod node;
mod oracle;
mod peers;
mod queued;
mod resource;
mod scenario;
mod tell;
mod trace;
mod world;

pub use oracle::{Failure, Seen};
pub use tell::told;
pub use world::{Report, run};
