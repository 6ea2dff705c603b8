//! Real processes and real faults: nodes that are killed, stopped, and robbed of their disk, under load of the library.
//!
//! Each test has nodes, ports and directories of its own, and ends what it started by process id. The tests of disks
//! need root (a mount) and a C compiler (a shim before `fdatasync`); where one is missing they fail and say so.
#![cfg(target_os = "linux")]

mod cluster;
mod crashes;
mod directory;
mod disks;
mod kept;
mod load;
mod server;
mod snapshots;
mod stalls;
