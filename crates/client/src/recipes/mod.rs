//! Recipes: what is often built on locks.

mod election;

pub use election::{Election, Leader, LeaderWatch};
