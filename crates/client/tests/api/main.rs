//! The library as users call it, over memory and our own service.

mod blocking;
mod cached;
mod cancel;
mod cluster;
mod deadlocks;
mod histories;
mod memory;
mod partitions;
mod service;
