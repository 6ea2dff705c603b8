//! The program with what a plain `cargo test` leaves out: servers of others, browsers, root, faults of disks and networks under
//! load. `cargo xtask test -p lockkeeper-cli` installs what these tests need.

mod backups;
mod browser;
mod dist;
#[cfg(target_os = "linux")]
mod faults;
mod gate;
mod http;
mod metrics;
#[path = "../command/node.rs"]
#[allow(dead_code, reason = "shared with the tests of `command`")]
mod node;
#[path = "../command/once/scenario.rs"]
mod once;
mod others;
#[path = "../command/support.rs"]
#[allow(dead_code, reason = "shared with the tests of `command`")]
mod support;
mod torture;
mod traces;
