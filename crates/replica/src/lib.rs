//! One node of the lock service, pure: consensus, table, deadlines, and the layout of what it keeps on disk.
//!
//! Time, randomness, disk and network are handed in, so that production and the simulator run the same code.

pub mod disk;
