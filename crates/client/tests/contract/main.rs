//! The contract suite, for the lock services that are no packages of their own.

mod memory;
mod service;
