//! `torture` with real lock services: lost updates without a fence, with a check on writes, and with `enter`.
//!
//! The steps of each fault have a fixed order, so the figures that the tests compare do not depend on timing.
//! In one cycle of `pause` or `cut` a holder stalls three times. (1) It resumes after the next holder has
//! read and before that one writes: the hole of a fence that checks writes only. (2) It resumes after the
//! next holder has written. (3) It resumes before it checks its hold, and gives up.

use std::path::PathBuf;

use lockkeeper_cli::exit;
use lockkeeper_rig::{Postgres, Redis};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{CommandExt, Ended, TestDir, wait_until};

impl TestDir {
    /// Runs one cycle of the faults in `options` on this test's lock service, with a ledger in the test
    /// directory.
    fn torture(&self, options: &str) -> Ended {
        let ledgers = self.ledgers();
        std::fs::create_dir_all(&ledgers).unwrap();
        let short = "--ttl 1s --pause 1200ms --duration 1s --json";
        let line = format!("torture --resource file://{} {short} {options}", ledgers.display());
        self.ran(&line)
    }

    fn ledgers(&self) -> PathBuf {
        self.path("ledgers")
    }

    /// Runs one cycle and returns its figures. Asserts the exit code and that nothing is left behind.
    #[track_caller]
    fn tortured(&self, options: &str, code: u8) -> Figures {
        let ended = self.torture(options);
        assert_eq!((ended.code, ended.err.as_str()), (i32::from(code), ""), "{ended:?}");
        assert_eq!(std::fs::read_dir(self.ledgers()).unwrap().count(), 0, "a ledger is left");
        Figures(serde_json::from_str(&ended.out).unwrap())
    }
}

#[derive(Debug)]
struct Figures(Value);

impl Figures {
    #[track_caller]
    fn of(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_else(|| panic!("{field}: {self:?}"))
    }

    #[track_caller]
    fn injected(&self, fault: &str) -> u64 {
        self.0["injected"][fault].as_u64().unwrap_or_else(|| panic!("{fault}: {self:?}"))
    }
}

/// The pause exceeds the lease, and tokens are not checked: a holder that resumes overwrites the updates of
/// others, or its own update is overwritten.
#[track_caller]
fn loses_without_a_fence(test: &TestDir) {
    let figures = test.tortured("--fence none --faults pause", exit::NO);
    assert_eq!((figures.injected("pause"), figures.injected("held_through")), (3, 0), "{figures:?}");
    // Stall 1 (see the top of this file) loses the stalled holder's update. Stall 2 loses at least one update
    // that the next holder wrote.
    assert!(figures.of("lost") >= 2, "{figures:?}");
    assert!(figures.of("overlaps") >= 2, "{figures:?}");
    assert!(figures.of("gave_up") >= 1, "{figures:?}");
    assert_eq!((figures.of("stale_rejected"), figures.of("token_regressions")), (0, 0), "{figures:?}");
    let handover = &figures.0["handover_ms"];
    assert!(handover["max"].as_f64().unwrap() >= handover["p50"].as_f64().unwrap(), "{figures:?}");
    assert!(figures.0["verdict"].as_str().unwrap().starts_with("LOST"), "{figures:?}");
}

/// The fence refuses the stalled holder's write after the next holder's write (stall 2), but not the one
/// before (stall 1, the hole).
#[track_caller]
fn loses_less_with_a_check_on_writes(test: &TestDir) {
    let figures = test.tortured("--fence write --faults pause", exit::NO);
    assert_eq!((figures.injected("pause"), figures.injected("held_through")), (3, 0), "{figures:?}");
    assert_eq!(figures.of("lost"), 1, "{figures:?}");
    assert!(figures.of("stale_rejected") >= 1, "{figures:?}");
    assert!(figures.0["verdict"].as_str().unwrap().contains("enter before you read"), "{figures:?}");
}

/// The fence refuses both late writes of stalled holders: before the next holder has written (the hole), and
/// after. Kills lose no update either.
#[track_caller]
fn never_loses_with_enter(test: &TestDir) {
    let figures = test.tortured("--fence enter --faults pause,kill", exit::OK);
    let injected = (figures.injected("pause"), figures.injected("kill"), figures.injected("held_through"));
    assert_eq!(injected, (3, 3, 0), "{figures:?}");
    assert_eq!((figures.of("lost"), figures.of("token_regressions")), (0, 0), "{figures:?}");
    assert!(figures.of("stale_rejected") >= 2, "{figures:?}");
    assert!(figures.of("overlaps") >= 2, "they believe that they hold, all the same: {figures:?}");
    assert!(figures.of("acknowledged") > 0, "{figures:?}");
}

/// A Redis whose settings permit fencing.
fn redis() -> (Redis, TestDir) {
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = format!("{}?fencing=counter", redis.url());
    (redis, TestDir::new().over(&url))
}

#[test]
fn our_service_loses_updates_without_a_fence() {
    let (test, _node) = TestDir::new().served();
    loses_without_a_fence(&test);
}

#[test]
fn our_service_loses_one_update_with_a_check_on_writes() {
    let (test, _node) = TestDir::new().served();
    loses_less_with_a_check_on_writes(&test);
}

/// Cached locks lose nothing either: a stalled or killed holder has a token for each of its sections.
#[test]
fn our_service_loses_no_update_with_cached_locks() {
    let (test, _node) = TestDir::new().served();
    let figures = test.tortured("--fence enter --faults pause,kill --cached", exit::OK);
    assert_eq!((figures.injected("pause"), figures.injected("kill")), (3, 3), "{figures:?}");
    assert_eq!((figures.of("lost"), figures.of("token_regressions")), (0, 0), "{figures:?}");
    assert!(figures.of("acknowledged") > 0, "{figures:?}");
}

#[test]
fn our_service_loses_no_update_with_enter() {
    let (test, _node) = TestDir::new().served();
    never_loses_with_enter(&test);
}

#[test]
fn redis_loses_updates_without_a_fence() {
    let (_redis, test) = redis();
    loses_without_a_fence(&test);
}

#[test]
fn redis_loses_one_update_with_a_check_on_writes() {
    let (_redis, test) = redis();
    loses_less_with_a_check_on_writes(&test);
}

#[test]
fn redis_loses_no_update_with_enter() {
    let (_redis, test) = redis();
    never_loses_with_enter(&test);
}

#[test]
fn file_locks_are_held_through_a_pause() {
    let test = TestDir::new();
    let figures = test.tortured("--fence none --faults pause,kill", exit::OK);
    let injected = (figures.injected("pause"), figures.injected("kill"), figures.injected("held_through"));
    assert_eq!(injected, (3, 3, 3), "every pause, and no kill, is held through: {figures:?}");
    assert_eq!((figures.of("lost"), figures.of("overlaps")), (0, 0), "{figures:?}");
    assert_eq!(figures.0["ttl_ms"], Value::Null, "{figures:?}");
}

/// A database prepared for locks, and a test directory with it as the lock service.
fn postgres() -> (Postgres, TestDir) {
    let server = Postgres::start();
    let test = TestDir::new().over(&format!("{}?lock=session", server.url()));
    let made = test.bare(["postgres", "init", &server.url()]).ended();
    assert_eq!(made.code, 0, "{made:?}");
    (server, test)
}

#[track_caller]
fn holds_through_a_pause(test: &TestDir) {
    let paused = test.tortured("--fence none --faults pause", exit::OK);
    assert_eq!((paused.injected("pause"), paused.injected("held_through")), (3, 3), "{paused:?}");
    assert_eq!((paused.of("lost"), paused.of("overlaps")), (0, 0), "{paused:?}");
}

#[track_caller]
fn is_cut_off(test: &TestDir) {
    let cut = test.tortured("--fence none --faults cut", exit::NO);
    assert_eq!((cut.injected("cut"), cut.injected("held_through")), (3, 0), "{cut:?}");
    assert!(cut.of("lost") >= 2, "{cut:?}");

    let fenced = test.tortured("--fence enter --faults cut", exit::OK);
    assert_eq!((fenced.injected("cut"), fenced.injected("held_through")), (3, 0), "{fenced:?}");
    assert_eq!((fenced.of("lost"), fenced.of("token_regressions")), (0, 0), "{fenced:?}");
    assert!(fenced.of("stale_rejected") >= 2, "{fenced:?}");
}

#[test]
fn session_locks_are_held_through_a_pause() {
    let (_server, test) = postgres();
    holds_through_a_pause(&test);
}

#[test]
fn disconnected_session_lock_loses_updates_without_a_fence_only() {
    let (_server, test) = postgres();
    is_cut_off(&test);
}

#[test]
fn redlock_loses_updates_and_cannot_be_fenced() {
    let nodes = [Redis::start(), Redis::start(), Redis::start()];
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let test = TestDir::new().over(&format!("redlock://{}", hosts.join(",")));
    for fence in ["write", "enter"] {
        let ended = test.torture(&format!("--fence {fence}"));
        ended
            .is_json_error(exit::USAGE, &[&format!("--fence {fence}"), "not possible", "redlock", "counter"]);
    }
    let figures = test.tortured("--fence none --faults pause", exit::NO);
    assert_eq!((figures.injected("pause"), figures.injected("held_through")), (3, 0), "{figures:?}");
    assert!(figures.of("lost") >= 2, "{figures:?}");
    assert_eq!(figures.0["token_regressions"], Value::Null, "{figures:?}");
}

#[test]
fn stopped_lock_server_causes_its_holder_to_lose_the_lock() {
    let (redis, test) = redis();
    let pid = redis.pid().unwrap();
    let figures = test.tortured(&format!("--fence none --faults server --server-pid {pid}"), exit::NO);
    assert_eq!((figures.injected("server"), figures.injected("held_through")), (2, 0), "{figures:?}");
    assert!(figures.of("lost") >= 2, "{figures:?}");
    assert_eq!(redis.cli(&["PING"]).trim(), "PONG", "it goes on");
}

#[test]
fn impossible_options_are_refused_before_the_run() {
    let test = TestDir::new();
    test.torture("--faults cut")
        .is_json_error(exit::USAGE, &["--faults cut", "file:", "--faults pause,kill"]);
    test.torture("--locks memory:").is_json_error(exit::USAGE, &["memory:", "process"]);
    test.torture("--faults server").is_json_error(exit::USAGE, &["--server-pid"]);
    test.ran("torture --resource file:///tmp --pause 2x").is_one_line(exit::USAGE, &["2x", "2m"]);
    test.ran("torture --resource file:///tmp --pause 1e9x-ttl")
        .is_one_line(exit::USAGE, &["1e9x-ttl", "100"]);
    test.torture("--workers 1").is_json_error(exit::USAGE, &["1", "2..=64"]);
    test.ran("torture").is_one_line(exit::USAGE, &["--resource"]);
    test.ran("torture --worker").is_one_line(exit::INTERNAL, &["no orders"]);
    let own = std::process::id();
    for (resource, words) in [
        ("file:///nowhere/at/all", vec!["/nowhere/at/all", "no directory"]),
        ("ftp://host", vec!["ftp", "no resource"]),
        ("nonsense", vec!["nonsense", "scheme"]),
    ] {
        let line = format!("torture --resource {resource} --server-pid {own}");
        let ended = test.ran(&line);
        assert!(ended.code == i32::from(exit::USAGE) || ended.code == i32::from(exit::CANNOT_CREATE));
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
        assert!(words.iter().all(|word| ended.err.contains(word)), "{ended:?}");
    }
}

/// The child processes of `parent`.
fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn interrupted_run_reports_and_leaves_nothing() {
    let test = TestDir::new();
    std::fs::create_dir(test.ledgers()).unwrap();
    let resource = format!("file://{}", test.ledgers().display());
    let mut running =
        test.lockkeeper(["torture", "--resource", &resource, "--duration", "1h", "--json"]).started();
    let conductor = running.child_mut().id();
    let ledger = || {
        let mut entries = std::fs::read_dir(test.ledgers()).unwrap().flatten();
        let text = entries.find(|entry| entry.path().extension().is_none());
        text.and_then(|entry| std::fs::read_to_string(entry.path()).ok()).unwrap_or_default()
    };
    // There are more lines than workers, so one worker has written twice, and its first update is
    // acknowledged.
    wait_until("the workers write", || ledger().lines().count() > 3);
    let workers = children(conductor);
    assert_eq!(workers.len(), 3);
    running.signal(Signal::SIGINT);
    let ended = running.ended();
    let figures: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&figures["interrupted"], &figures["lost"]), (&Value::Bool(true), &0.into()), "{ended:?}");
    assert!(figures["acknowledged"].as_u64().unwrap() > 0, "{ended:?}");
    for worker in workers {
        assert!(!PathBuf::from(format!("/proc/{worker}")).exists(), "worker {worker} is left");
    }
    assert_eq!(std::fs::read_dir(test.ledgers()).unwrap().count(), 0, "a ledger is left");
}

#[test]
fn workers_end_with_a_killed_conductor() {
    let test = TestDir::new();
    std::fs::create_dir(test.ledgers()).unwrap();
    let resource = format!("file://{}", test.ledgers().display());
    let mut command = test.lockkeeper(["torture", "--resource", &resource, "--duration", "1h"]);
    // A killed conductor can't clean up, so its files must be in the test directory, which is removed.
    let mut running = command.env("TMPDIR", test.path("")).started();
    let conductor = running.child_mut().id();
    wait_until("there are workers", || children(conductor).len() == 3);
    let workers = children(conductor);
    drop(running);
    wait_until("the workers are gone", || {
        workers.iter().all(|worker| !PathBuf::from(format!("/proc/{worker}")).exists())
    });
}

#[test]
fn keep_prints_the_locations_and_the_report_is_text() {
    let test = TestDir::new();
    std::fs::create_dir(test.ledgers()).unwrap();
    let resource = format!("file://{}", test.ledgers().display());
    let words = ["torture", "--resource", &resource, "--faults", "kill", "--duration", "1s", "--keep"];
    let ended = test.lockkeeper(words).ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains("verdict") && ended.out.contains("nothing was lost"), "{ended:?}");
    let kept = ended.err.lines().find(|line| line.contains("kept: ")).unwrap();
    let logs = PathBuf::from(kept.rsplit("logs ").next().unwrap());
    assert!(std::fs::read_dir(&logs).unwrap().count() >= 6, "three workers, three in their place");
    std::fs::remove_dir_all(logs).unwrap();
    assert!(std::fs::read_dir(test.ledgers()).unwrap().count() >= 1);
}

#[test]
fn ledger_in_redis_is_fenced_and_removed() {
    let (redis, test) = redis();
    let tortured = |fence: &str, code: u8| {
        let line = format!(
            "torture --resource {} --fence {fence} --faults pause --pause 1200ms --duration 1s --json",
            redis.url()
        );
        let ended = test.ran(&line);
        assert_eq!((ended.code, ended.err.as_str()), (i32::from(code), ""), "{ended:?}");
        Figures(serde_json::from_str(&ended.out).unwrap())
    };
    let checked = tortured("write", exit::NO);
    assert_eq!(checked.of("lost"), 1, "{checked:?}");
    assert!(checked.of("stale_rejected") >= 1, "{checked:?}");
    let entered = tortured("enter", exit::OK);
    assert_eq!(entered.of("lost"), 0, "{entered:?}");
    assert!(entered.of("stale_rejected") >= 2, "{entered:?}");
    // The token counters belong to the lock service, and expire by themselves.
    let left = redis.cli(&["KEYS", "*"]);
    assert!(left.lines().all(|key| key.ends_with(":lockkeeper:token")), "{left}");
}

#[test]
fn ledger_in_postgres_is_fenced_and_removed() {
    let server = Postgres::start();
    let (_redis, test) = redis();
    let line = |fence: &str| {
        let resource = server.url();
        format!(
            "torture --resource {resource} --fence {fence} --faults pause --pause 1200ms --duration 1s --json"
        )
    };
    test.ran(&line("enter")).is_json_error(exit::USAGE, &["lockkeeper_fence", "SCHEMA_SQL"]);
    server.psql(lockkeeper_fence::postgres::SCHEMA_SQL);
    let tortured = |fence: &str, code: u8| {
        let ended = test.ran(&line(fence));
        assert_eq!((ended.code, ended.err.as_str()), (i32::from(code), ""), "{ended:?}");
        Figures(serde_json::from_str(&ended.out).unwrap())
    };
    let checked = tortured("write", exit::NO);
    assert_eq!(checked.of("lost"), 1, "{checked:?}");
    assert!(checked.of("stale_rejected") >= 1, "{checked:?}");
    let entered = tortured("enter", exit::OK);
    assert_eq!(entered.of("lost"), 0, "{entered:?}");
    assert!(entered.of("stale_rejected") >= 2, "{entered:?}");
    let left = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'lockkeeper-torture%'";
    assert_eq!(server.psql(left).trim(), "0");
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper_fence.marks").trim(), "0");
}
