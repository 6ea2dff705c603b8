//! Each server starts, answers, recovers from kills and stops, and leaves nothing behind.

mod end;
mod groups;
mod mariadb;
mod network;
mod objects;
mod postgres;
mod redis;

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// Settings with which a Redis keeps all acknowledged writes.
const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Whether process `pid` exists and is not a zombie.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Polls until `is_so` returns true.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
