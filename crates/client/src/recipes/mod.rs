//! Recipes: constructions that are often built on locks.

mod election;
mod follow;
mod partitions;
mod striped;

pub use election::{Election, Leader, LeaderWatch};
pub use partitions::{Partition, PartitionMember, Partitions};
pub use striped::Striped;
