//! Several nodes, turn by turn and message by message: who leads, what is acknowledged, who takes part.

mod batches;
mod checks;
mod elections;
mod harness;
mod hostile;
#[path = "../single/items.rs"]
mod items;
mod leases;
mod members;
mod snapshots;
mod transfer;
