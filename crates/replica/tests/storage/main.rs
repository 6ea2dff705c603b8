//! What a node keeps on disk, on a disk that loses, tears, fails and is damaged: promise P10.

mod backups;
mod crashes;
mod damage;
mod faults;
mod log;
mod support;
