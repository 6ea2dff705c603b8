//! One Redis.

use std::path::Path;
use std::process::Command;
use std::thread;

use lockkeeper_rig::Redis;

use crate::{DURABLE, listens, lives, until};

#[test]
fn durable_redis_keeps_its_data_after_a_kill_and_a_default_one_does_not() {
    for (settings, after) in [(DURABLE, "7"), (&[], "")] {
        let redis = Redis::with(settings);
        redis.cli(&["SET", "k", "7"]);
        let port = redis.port();
        redis.kill();
        assert!(!listens(port));
        assert!(redis.try_cli(&["PING"]).unwrap_err().contains("refused"));
        redis.start_again();
        assert_eq!((redis.port(), redis.cli(&["GET", "k"]).as_str()), (port, after));
        redis.cli(&["SET", "k", "8"]);
        redis.restart();
        assert_eq!(redis.cli(&["GET", "k"]) == "8", !after.is_empty());
        redis.wipe();
        assert_eq!(redis.cli(&["GET", "k"]), "");
    }
}

#[test]
fn a_dropped_redis_is_gone_with_its_folder() {
    let redis = Redis::with(DURABLE);
    let (port, pid) = (redis.port(), redis.pid().unwrap());
    let folder = redis.cli(&["CONFIG", "GET", "dir"]).lines().last().unwrap().to_owned();
    assert!(lives(pid) && listens(port) && Path::new(&folder).is_dir());
    drop(redis);
    assert!(!lives(pid) && !listens(port) && !Path::new(&folder).exists());
}

#[test]
fn stopped_redis_answers_after_cont() {
    let redis = Redis::start();
    redis.stop();
    // The kernel still accepts the connection, but the server doesn't answer.
    assert!(listens(redis.port()));
    thread::scope(|scope| {
        let answer = scope.spawn(|| redis.cli(&["PING"]));
        until("redis-cli waits", || answer.is_finished() || redis_cli_waits(redis.port()));
        assert!(!answer.is_finished(), "a stopped server has answered");
        redis.cont();
        assert_eq!(answer.join().unwrap(), "PONG");
    });
    redis.stop();
    redis.kill();
    redis.start_again();
    redis.stop();
}

/// Whether the kernel has received bytes for the server at `port` that the server hasn't read.
fn redis_cli_waits(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!("0100007F:{port:04X}");
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|words| {
        words.get(1) == Some(&local.as_str()) && words[3] == "01" && !words[4].ends_with(":00000000")
    })
}

#[test]
fn redis_requires_its_password_and_cli_presents_it() {
    let redis = Redis::with(&["--requirepass", "s3cret", "--user", "alice", "on", ">pw", "~jobs/*", "+get"]);
    assert_eq!(redis.cli(&["PING"]), "PONG");
    assert_eq!(redis.url_as("alice", "pw"), format!("redis://alice:pw@127.0.0.1:{}", redis.port()));
    let alice = |command: &[&str]| {
        redis.try_cli(&[&["--user", "alice", "--pass", "pw", "--no-auth-warning"], command].concat())
    };
    assert_eq!(alice(&["GET", "jobs/1"]), Ok(String::new()));
    assert!(alice(&["GET", "other"]).unwrap_err().contains("NOPERM"));
}

#[test]
fn replica_has_writes_from_before_and_after_its_start() {
    let redis = Redis::start();
    redis.cli(&["SET", "before", "1"]);
    let replica = redis.replica();
    assert_eq!(replica.cli(&["GET", "before"]), "1");
    redis.cli(&["SET", "after", "2"]);
    until("it has come", || replica.cli(&["GET", "after"]) == "2");
    assert!(replica.try_cli(&["SET", "k", "v"]).unwrap_err().contains("READONLY"));
}

#[test]
fn redis_with_tls_is_trusted_by_its_authority_only() {
    let redis = Redis::with_tls_and(DURABLE);
    assert_eq!(redis.cli(&["SET", "k", "7"]), "OK");
    redis.kill();
    redis.start_again();
    assert_eq!(redis.cli(&["GET", "k"]), "7");
    assert_eq!(redis.url(), format!("rediss://127.0.0.1:{}", redis.port()));
    let ask = |args: &[&str]| {
        let mut cli = Command::new("redis-cli");
        let port = redis.port().to_string();
        cli.args(["-h", "localhost", "-p", &port]).args(args).arg("PING").output().unwrap()
    };
    let said = |args: &[&str]| String::from_utf8(ask(args).stdout).unwrap();
    let (ca, stranger) = (redis.ca().to_str().unwrap(), redis.stranger_ca().to_str().unwrap());
    assert_eq!(said(&["--tls", "--cacert", ca]), "PONG\n");
    assert_eq!(said(&["--tls", "--cacert", stranger]), "");
    assert_eq!(said(&[]), "", "it speaks without TLS too");
}

#[test]
fn clock_step_affects_one_redis_only_and_expires_its_keys() {
    let (redis, other) = (Redis::with_clock_and(DURABLE), Redis::start());
    let seconds = |redis: &Redis| -> i64 { redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap() };
    let ahead = || {
        let (before, here, after) = (seconds(&other), seconds(&redis), seconds(&other));
        (here - after..=here - before).contains(&redis.clock().ahead())
    };
    assert!(ahead());
    redis.cli(&["SET", "k", "v", "EX", "1000"]);
    redis.clock().step(900);
    assert!(ahead() && redis.clock().ahead() == 900);
    assert_eq!(redis.cli(&["GET", "k"]), "v");
    redis.clock().step(-1900);
    assert!(ahead() && redis.clock().ahead() == -1000);
    let left: i64 = redis.cli(&["TTL", "k"]).parse().unwrap();
    assert!(left > 1900, "{left}");
    redis.kill();
    redis.start_again();
    assert!(ahead());
    redis.clock().step(2500);
    assert_eq!(redis.cli(&["GET", "k"]), "");
}
