//! Fault tests with real processes under load from the library: nodes are killed, stopped, and deprived of
//! their disk.
//!
//! Each test has its own nodes, ports and directories, and ends its processes by process id. The tests of
//! disks need root (to mount) and a C compiler (for a shim around `fdatasync`); if one is missing, they fail
//! with a message. P1 to P12 in comments are the promises of `docs/SAFETY.md`.

mod cluster;
mod crashes;
mod directory;
pub(crate) mod disks;
mod kept;
mod load;
mod power;
mod server;
mod snapshots;
mod stalls;
