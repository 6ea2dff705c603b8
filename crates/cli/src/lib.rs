//! What the `lockkeeper` binary shares with its own tests. Not an interface for others: the library is the
//! package `lockkeeper`.
//!
//! Reading order: [`args`] what can be typed, [`settings`] what it comes to, [`commands`] what is done, [`exit`]
//! how it ends, [`guardian`] why a job never outlives its lock.

pub mod args;
pub mod commands;
pub mod exit;
pub mod guardian;
pub mod output;
pub mod settings;
