//! Clients with wrong clocks: only the database's clock counts.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use lockkeeper_rig::{Number, Shim};

use crate::row::support::{SECOND, client, holder, rows, server, token, until};

/// Environment variable with a URL: makes a copy of this test binary hold a lock there until its standard
/// input ends.
const HOLD: &str = "LOCKKEEPER_ROW_HOLD";

fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_clock_a_day_off_excludes_and_is_excluded() {
    let server = server();
    let locks = client(&server.url(), "right").await;
    for off in [86_400, -86_400] {
        let folder = tempfile::tempdir().unwrap();
        let shim = Shim::new(folder.path());
        shim.set(Number::AheadSec, off);
        let mut wrong = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "row::clocks::the_process_with_the_wrong_clock", "--nocapture"])
            .env(HOLD, rows(&server.url()))
            .envs(shim.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(wrong.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.find_map(|line| Some(line.split_once("holding ")?.1.to_owned())).expect("it holds");
        let (its_token, its_clock) = said.split_once(' ').unwrap();
        let (its_token, its_clock): (u64, u64) = (its_token.parse().unwrap(), its_clock.parse().unwrap());
        assert!(its_clock.abs_diff(seconds()) > 80_000, "its clock is wrong");
        let floor: u64 = server.psql("SELECT lockkeeper.row_floor(clock_timestamp())").parse().unwrap();
        assert!(floor.abs_diff(its_token) < 3_600_000_000, "its token is by the database's clock");
        assert!(locks.mutex("clock").try_acquire().await.unwrap().is_none());
        let until_when = "SELECT date_part('epoch', held_until) FROM lockkeeper.row_lease";
        let first: f64 = server.psql(until_when).parse().unwrap();
        until("it is renewed for longer than its ttl", async || {
            (server.psql(until_when).parse::<f64>().unwrap() > first + 2.0).then_some(())
        })
        .await;
        assert_eq!(holder(&locks, "clock").await.token.unwrap().get(), its_token);
        drop(wrong.stdin.take());
        let next = locks.mutex("clock").acquire().await.unwrap();
        assert!(token(&next) > its_token);
        next.release().await.unwrap();
        assert!(wrong.wait().unwrap().success());
    }
}

/// Main function of the process with the wrong clock; does nothing unless `HOLD` is set.
#[test]
fn the_process_with_the_wrong_clock() {
    let Ok(url) = std::env::var(HOLD) else { return };
    let locks = lockkeeper::blocking::Locks::connect(&url).unwrap();
    let held = locks.mutex("clock").ttl(2 * SECOND).acquire().unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "holding {} {}", held.token_hint().unwrap().get(), seconds())
        .and_then(|()| out.flush())
        .unwrap();
    let _ = std::io::stdin().read(&mut [0]).unwrap();
    held.release().unwrap();
}
