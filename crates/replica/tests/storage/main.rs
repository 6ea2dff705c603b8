//! The on-disk state of a node, on a disk that loses, tears and damages data and returns errors: promise P10.

mod backups;
mod crashes;
mod damage;
mod faults;
mod log;
mod support;
