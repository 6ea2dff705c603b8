//! `file:`, on a temporary directory; a crash is a `kill -9` of a real process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::{BreakOrder, LockName, Locks};
use lockkeeper_contract::Subject;
use tempfile::TempDir;

/// Environment variable that makes a copy of this test binary hold a lock until it is killed: `url name
/// keep_closed_s lock_delay_s`.
const HOLD: &str = "LOCKKEEPER_CONTRACT_HOLD";

struct File(TempDir);

impl File {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("file://{}/locks", self.0.path().display())
    }
}

impl Subject for File {
    fn scheme(&self) -> &'static str {
        "file"
    }

    async fn client(&self, label: &str) -> Locks {
        Locks::connect_as(&self.url(), label).await.unwrap()
    }

    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let order = format!("{} {name} {} {}", self.url(), keep_closed.as_secs(), lock_delay.as_secs());
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "contract::the_process_that_is_killed", "--nocapture"])
            .env(HOLD, order)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("holding")), "the holder ended without holding");
        holder.kill().unwrap();
        holder.wait().unwrap();
    }

    /// By an operator's break, which notifies the holder; its library releases the lock. No other process can
    /// end a flock.
    async fn take_away(&self, _label: &str, name: &str) {
        let locks = self.client("operator").await;
        let name: LockName = name.parse().unwrap();
        let token = locks.inspect(&name).await.unwrap().holds[0].token.unwrap();
        let order =
            BreakOrder { name, token, reason: "taken away".into(), by: "the suite".into(), now: false };
        locks.break_hold(order).await.unwrap();
    }

    fn stall(&self, _duration: Duration) -> bool {
        false
    }

    /// There is no service to restart.
    async fn restart(&self) {}

    async fn wipe(&self) {
        std::fs::remove_dir_all(self.0.path().join("locks")).unwrap();
    }
}

/// Main function of the process that is killed; does nothing unless `HOLD` is set.
#[test]
fn the_process_that_is_killed() {
    let Ok(order) = std::env::var(HOLD) else { return };
    let [url, name, keep_closed, lock_delay] = order.split(' ').collect::<Vec<_>>()[..] else {
        panic!("`{order}` is not an order")
    };
    let seconds = |text: &str| Duration::from_secs(text.parse().unwrap());
    let locks = lockkeeper::blocking::Locks::connect(url).unwrap();
    let lock = locks.mutex(name).keep_closed(seconds(keep_closed)).lock_delay(seconds(lock_delay));
    let _held = lock.acquire().unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "holding").and_then(|()| out.flush()).unwrap();
    loop {
        std::thread::park();
    }
}

lockkeeper_contract::contract! {
    file => File::new(), page "../../../docs/backends/file.md" column 1;
}
