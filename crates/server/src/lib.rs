//! The lock service around a replica: what the world hands in.

pub mod disk;
