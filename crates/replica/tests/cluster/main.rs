//! Clusters of several nodes, driven turn by turn and message by message: elections, acknowledgements,
//! membership.

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
