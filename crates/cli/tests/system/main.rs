//! The program with what a plain `cargo test` leaves out: clusters, long waits, servers of others, browsers,
//! root, faults of disks and networks under load. `cargo xtask test -p lockkeeper-cli` installs what these
//! tests need.

mod access;
mod backups;
mod browser;
mod cached;
mod cluster;
mod deadlocks;
mod directories;
mod dist;
mod electing;
#[cfg(target_os = "linux")]
mod faults;
mod forming;
mod gate;
mod go_client;
mod grace;
mod health;
mod http;
mod java;
mod json;
mod metrics;
#[path = "../command/node.rs"]
#[allow(dead_code, reason = "shared with the tests of `command`")]
mod node;
#[path = "../command/once/scenario.rs"]
mod once;
mod others;
mod packaging;
mod partitions;
mod reach;
mod refusals;
mod serving;
mod stored;
#[path = "../command/support.rs"]
#[allow(dead_code, reason = "shared with the tests of `command`")]
mod support;
mod tls;
mod torture;
mod traces;
