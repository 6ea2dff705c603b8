//! What passes does not end a command that waits or holds, and its reason is reported.

use std::io::{BufRead, BufReader};

use lockkeeper_cli::exit;
use lockkeeper_rig::{Postgres, Redis};
use nix::sys::signal::Signal;

use crate::support::{CommandExt, TestDir, json_file, wait_until};

/// A Redis for the user `app` with the password `one`.
fn redis() -> (Redis, TestDir) {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "app", "on", ">one", "~*", "&*", "+@all"]);
    let test = TestDir::new().over(&redis.url_as("app", "one"));
    (redis, test)
}

/// Waits until Redis has refused a command with this code.
fn wait_until_refused(redis: &Redis, code: &str) {
    wait_until("it is refused", || {
        redis.cli(&["INFO", "errorstats"]).contains(&format!("errorstat_{code}:"))
    });
}

#[test]
fn run_with_wait_goes_on_when_the_server_has_memory_again_and_says_what_it_waits_for() {
    let (redis, test) = redis();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let run = test.lockkeeper(["run", "--wait", "60s", "x", "--", "true"]).started();
    wait_until_refused(&redis, "OOM");
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let ended = run.ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("OOM") && ended.err.contains("; trying again"), "{ended:?}");
    // It says what it was refused with, and not that the lock is busy.
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let status = test.path("status");
    let words = ["run", "--wait", "300ms", "--status-file", status.to_str().unwrap(), "x", "--", "true"];
    let ended = test.lockkeeper(words).ended();
    assert_eq!(ended.code, i32::from(exit::UNAVAILABLE), "{ended:?}");
    assert!(ended.err.contains("refused: NOREPLICAS"), "{ended:?}");
    let status = json_file(&status);
    assert_eq!(status["outcome"], "failed", "{status}");
    assert!(status["error"].as_str().unwrap().contains("refused: NOREPLICAS"), "{status}");
}

#[test]
fn refused_renewals_are_reported_at_once_and_as_the_reason_of_the_loss() {
    let (redis, test) = redis();
    let status = test.path("status");
    let words = ["run", "--ttl", "2s", "--status-file", status.to_str().unwrap(), "x", "--", "sleep", "60"];
    let run = test.lockkeeper(words).started();
    wait_until("it is held", || redis.cli(&["EXISTS", "x"]) == "1");
    redis.cli(&["ACL", "SETUSER", "app", "-evalsha", "-eval"]);
    let ended = run.ended();
    assert_eq!(ended.code, i32::from(exit::LOST), "{ended:?}");
    let said = ["its lease is not renewed: ", "its lease is about to end without a renewal: "];
    for said in said {
        let line = ended.err.lines().find(|line| line.contains(said)).unwrap_or_else(|| panic!("{ended:?}"));
        assert!(line.contains("refused: NOPERM"), "{ended:?}");
    }
    let status = json_file(&status);
    assert_eq!(status["lost"], "expired", "{status}");
    assert!(status["error"].as_str().unwrap().contains("refused: NOPERM"), "{status}");
}

#[test]
fn elect_goes_on_when_the_password_is_right_again() {
    let (redis, test) = redis();
    redis.cli(&["ACL", "SETUSER", "app", "<one"]);
    let elect = test.lockkeeper(["elect", "--once", "x", "--", "true"]).started();
    let refused = || redis.cli(&["ACL", "LOG"]).contains("auth");
    wait_until("it is refused", refused);
    redis.cli(&["ACL", "SETUSER", "app", ">one"]);
    let ended = elect.ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("WRONGPASS") && ended.err.contains("; trying again"), "{ended:?}");
}

#[test]
fn elect_and_partitions_go_on_when_the_server_has_connections_again() {
    let server = Postgres::start();
    server.psql("CREATE ROLE app LOGIN CONNECTION LIMIT 0");
    let made = TestDir::new().bare(["postgres", "init", &server.url(), "--role", "app"]).ended();
    assert_eq!(made.code, 0, "{made:?}");
    let test = TestDir::new().over(&format!("{}?lock=row", server.url_as("app")));
    let mut elect = test.lockkeeper(["elect", "--once", "x", "--", "true"]).started();
    let mut group = test.lockkeeper(["partitions", "g", "1", "--", "touch", "part"]).started();
    let said = [&mut elect, &mut group].map(|command| {
        let mut said = BufReader::new(command.child_mut().stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("has no connection left") && line.ends_with("; trying again\n"), "{line}");
        // Further lines must find a reader.
        said
    });
    server.psql("ALTER ROLE app CONNECTION LIMIT -1");
    let ended = elect.ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    wait_until("the partition's command runs", || test.path("part").exists());
    group.signal(Signal::SIGTERM);
    assert_eq!(group.ended().code, 143);
    drop(said);
}
