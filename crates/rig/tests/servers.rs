//! Each server starts, answers, survives what is done to it, and leaves nothing behind.

use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_rig::{Postgres, Redis};

const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Whether process `pid` is there and not just waiting to be waited for.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Asks until it is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_durable_redis_has_its_data_after_a_kill_and_another_has_not() {
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
fn a_stopped_redis_answers_when_it_may_go_on() {
    let redis = Redis::start();
    redis.stop();
    // The system still takes the connection, the server doesn't answer.
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

/// Whether the system holds bytes for the server at `port` that it hasn't read.
fn redis_cli_waits(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!("0100007F:{port:04X}");
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|words| {
        words.get(1) == Some(&local.as_str()) && words[3] == "01" && !words[4].ends_with(":00000000")
    })
}

#[test]
fn a_password_is_asked_for_and_known_to_the_cli() {
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
fn a_replica_has_what_was_written_before_and_after_it_came() {
    let redis = Redis::start();
    redis.cli(&["SET", "before", "1"]);
    let replica = redis.replica();
    assert_eq!(replica.cli(&["GET", "before"]), "1");
    redis.cli(&["SET", "after", "2"]);
    until("it has come", || replica.cli(&["GET", "after"]) == "2");
    assert!(replica.try_cli(&["SET", "k", "v"]).unwrap_err().contains("READONLY"));
}

#[test]
fn postgres_has_its_data_after_a_kill_and_none_after_a_wipe() {
    let postgres = Postgres::with(&["max_connections=17"]);
    assert_eq!(postgres.psql("show max_connections"), "17");
    postgres.psql("create table t (n int); insert into t values (7)");
    let port = postgres.port();
    postgres.kill();
    assert!(!listens(port));
    postgres.start_again();
    assert_eq!((postgres.port(), postgres.psql("select n from t").as_str()), (port, "7"));
    postgres.restart();
    assert_eq!(postgres.psql("select n from t"), "7");
    assert!(postgres.try_psql("select 1/0").unwrap_err().contains("division by zero"));
    postgres.psql("create role worker login");
    assert!(postgres.try_psql_as("worker", "select * from t").unwrap_err().contains("permission denied"));
    postgres.wipe();
    assert_eq!(postgres.psql("select to_regclass('t') is null"), "t");
}

#[test]
fn a_killed_or_stopped_postgres_takes_its_backends_along() {
    let postgres = Postgres::start();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| postgres.try_psql("select pg_sleep(60)"));
        let count = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)'";
        until("it sleeps", || postgres.psql(count) == "1");
        let backend = "select pid from pg_stat_activity where query = 'select pg_sleep(60)'";
        let backend: u32 = postgres.psql(backend).parse().unwrap();
        postgres.stop();
        let state = std::fs::read_to_string(format!("/proc/{backend}/stat")).unwrap();
        assert!(state.contains(") T "), "{state}");
        postgres.cont();
        assert_eq!(postgres.psql(count), "1");
        postgres.kill();
        assert!(!lives(backend));
        assert!(sleeper.join().unwrap().is_err());
    });
}

#[test]
fn a_dropped_postgres_is_gone_with_its_folder_its_backends_and_its_shared_memory() {
    let pieces = || std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    for killed in [false, true] {
        let postgres = Postgres::start();
        let (port, pid) = (postgres.port(), postgres.pid().unwrap());
        let folder = postgres.psql("show data_directory");
        let file = std::fs::read_to_string(format!("{folder}/postmaster.pid")).unwrap();
        let piece = file.lines().nth(6).unwrap().split_whitespace().last().unwrap().to_owned();
        let is_there = || pieces().lines().any(|line| line.split_whitespace().nth(1) == Some(&piece));
        assert!(lives(pid) && listens(port) && is_there());
        if killed {
            postgres.kill();
        }
        drop(postgres);
        assert!(!lives(pid) && !listens(port) && !Path::new(&folder).exists() && !is_there());
    }
}
