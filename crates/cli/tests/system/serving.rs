//! The commands with the `lockkeeper://` service, and how holds and tokens survive a restart.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{CommandExt, TestDir, wait_until};

/// The events of `watch --json`. The process is killed on drop.
struct Watching {
    log: std::path::PathBuf,
    child: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Watching {
    fn start(test: &TestDir) -> Self {
        let log = test.path("watch.log");
        let mut child = test
            .lockkeeper(["watch", "--json"])
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { log, child, lines }
    }

    /// Reads up to the next event of this kind.
    fn until(&mut self, event: &str) -> Value {
        loop {
            let Some(line) = self.lines.next() else {
                panic!("it ended: {}", std::fs::read_to_string(&self.log).unwrap())
            };
            let line = line.unwrap();
            let said: Value = serde_json::from_str(&line).unwrap();
            if said["event"] == event {
                return said;
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A queue of deploys: of those that wait only the newest is left, and runs without the option are.
#[test]
fn newer_run_takes_the_place_of_older_ones_that_wait() {
    let (test, _node) = TestDir::new().served();
    let mut holder = test.holder("deploy/web", &["--latest"]);
    let plain = test.lockkeeper(["run", "deploy/web", "--", "true"]).started();
    test.wait_for_waiters("deploy/web", 1);
    let run = |label| {
        let words = ["run", "--latest", "--label", label, "deploy/web", "--", "echo", label];
        test.lockkeeper(words).started()
    };
    let first = run("first");
    test.wait_for_waiters("deploy/web", 2);
    let second = run("second");
    first.ended().is_one_line(exit::BUSY, &["`deploy/web` is left to a newer run", "second"]);
    test.wait_for_waiters("deploy/web", 2);
    assert!(holder.child_mut().try_wait().unwrap().is_none(), "it holds, and goes on");
    holder.signal(Signal::SIGTERM);
    assert_eq!(plain.ended().code, 0, "it has not asked for it");
    let last = second.ended();
    assert_eq!((last.code, last.out.as_str()), (0, "second\n"), "{last:?}");
}

#[test]
fn holders_waiters_and_sessions_are_listed() {
    let (test, node) = TestDir::new().served();
    assert_eq!(test.ran("ls").out, "");
    assert_eq!(test.ran("sessions --json").out, "[]\n");
    let holder = test.holder("orders/42", &["--meta", "ticket=5"]);
    let waiter = test.lockkeeper(["run", "--ttl", "10s", "orders/42", "--", "true"]).started();
    test.wait_for_waiters("orders/42", 1);
    let too_many = test.ran("run --max-waiters 1 orders/42 -- true");
    too_many.is_one_line(exit::BUSY, &["`orders/42` is busy"]);
    let held = &test.shown("orders/42")["holds"][0];
    assert_eq!((&held["token"], &held["meta"]), (&json!(holder.token), &json!("ticket=5")));
    assert!(held["held_for_ms"].is_u64() && held["label"].as_str().unwrap().ends_with(": sh"), "{held}");
    let text = test.ran("show orders/42").out;
    for words in ["orders/42", &holder.token.to_string(), "ticket=5", "1. in the queue"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let sessions: Value = serde_json::from_str(&test.ran("sessions --json").out).unwrap();
    let of = |ttl: u64| {
        let found = sessions.as_array().unwrap().iter().find(|session| session["ttl_ms"] == ttl);
        found.unwrap_or_else(|| panic!("no session with a ttl of {ttl} ms: {sessions}"))
    };
    assert_eq!((&of(30_000)["requests"], &of(30_000)["attached"]), (&json!(1), &json!(true)));
    assert!(of(10_000)["left_ms"].as_u64().unwrap() <= 10_000, "{sessions}");
    let table = test.ran("sessions").out;
    assert!(table.starts_with("ID ") && table.lines().count() == 3, "{table}");
    let is_holder = |line: &str| line.contains(": sh ") && line.contains(" 30s ");
    assert!(table.lines().any(is_holder), "{table}");
    let check = |token: u64| test.ran(&format!("check-token orders/42 {token}"));
    assert_eq!((check(holder.token).code, check(holder.token).out.as_str()), (0, "current\n"));
    assert_eq!(check(holder.token - 1).code, i32::from(exit::NO));
    assert_eq!(check(holder.token + 1).out, "never issued\n");

    let ended = test.ran(&format!("break orders/42 --token {} --reason test --wait 1m", holder.token));
    assert_eq!((ended.code, ended.err.as_str(), ended.out.as_str()), (0, "", "its hold has ended\n"));
    let audited = format!("break of `orders/42`, token {}, by ", holder.token);
    assert!(node.log().contains(&audited) && node.log().contains(": \"test\""), "{}", node.log());
    holder.ended().is_one_line(exit::LOST, &["`orders/42`", "broke it: \"test\""]);
    waiter.ended().is_silent_success();
    wait_until("all is free", || test.ran("ls").out.is_empty());
}

#[test]
fn watch_prints_state_changes_and_vacancies_across_a_restart() {
    let (test, node) = TestDir::new().served();
    let first = test.holder("a", &[]);
    let mut watching = Watching::start(&test);
    let state = watching.until("state");
    assert_eq!((&state["name"], &state["lock"]["holds"][0]["token"]), (&json!("a"), &json!(first.token)));
    watching.until("synced");
    let second = test.holder("b", &[]);
    assert_eq!(watching.until("changed")["name"], "b");
    second.signal(Signal::SIGTERM);
    let vacant = watching.until("vacant");
    assert_eq!((&vacant["name"], &vacant["lock"]), (&json!("b"), &Value::Null));

    let listening = node.listening();
    node.kill();
    assert!(watching.until("interrupted")["error"].is_string());
    let node = test.serve(&listening);
    watching.until("synced");
    // Locks that no longer exist after the restart are reported as vacant.
    node.kill();
    std::fs::remove_dir_all(test.path("data")).unwrap();
    let _node = test.serve(&listening);
    watching.until("interrupted");
    assert_eq!(watching.until("vacant")["name"], "a");
    watching.until("synced");
    let said = std::fs::read_to_string(test.path("watch.log")).unwrap();
    assert_eq!(said, "", "all is in the events");
}

#[test]
fn killed_node_keeps_holds_queue_and_token_counter() {
    let (test, node) = TestDir::new().served();
    let holder = test.holder("x", &[]);
    let script = "echo $LOCKKEEPER_TOKEN";
    let waiter = test.lockkeeper(["run", "x", "--", "sh", "-c", script]).started();
    test.wait_for_waiters("x", 1);
    let listening = node.listening();
    node.kill();
    let _node = test.serve(&listening);
    let shown = test.shown("x");
    assert_eq!((&shown["holds"][0]["token"], &shown["waiter_count"]), (&json!(holder.token), &json!(1)));
    assert_eq!(test.ran("run --try x -- true").code, i32::from(exit::BUSY));
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.ended().code, 143);
    let ended = waiter.ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.trim().parse::<u64>().unwrap() > shown["holds"][0]["token"].as_u64().unwrap());
}

#[test]
fn lock_of_a_killed_holder_is_free_after_its_ttl() {
    let (test, _node) = TestDir::new().served();
    let holder = test.holder("x", &["--ttl", "1s"]);
    holder.signal(Signal::SIGKILL);
    let next = test.ran("run --wait 30s x -- true");
    assert_eq!((next.code, next.err.as_str()), (0, ""));
}

#[test]
fn tokens_rise_after_the_data_directory_is_deleted() {
    let (test, node) = TestDir::new().served();
    let token = || {
        let ended = test.lockkeeper(["run", "x", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]).ended();
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.out.trim().parse::<u64>().unwrap()
    };
    let before = token();
    let listening = node.listening();
    assert_eq!(node.stopped(Signal::SIGTERM).code, 0);
    std::fs::remove_dir_all(test.path("data")).unwrap();
    let _node = test.serve(&listening);
    assert!(token() > before);
}

#[test]
fn stored_permit_limit_applies_to_all_requests() {
    let (test, _node) = TestDir::new().served();
    assert_eq!(test.ran("set-limit gpu 1 --json").out, "{\"name\":\"gpu\",\"permits\":1}\n");
    let _first = test.holder("gpu", &["--permit=3"]);
    assert_eq!(test.ran("run --try --permit=3 gpu -- true").code, i32::from(exit::BUSY));
    assert_eq!(test.shown("gpu")["permits"], 1);
    assert_eq!(test.ran("set-limit gpu 2").code, 0);
    assert_eq!(test.ran("run --try --permit gpu -- true").code, 0);
    test.ran("set-limit gpu 0").is_one_line(exit::USAGE, &["0", "65536"]);
    assert_eq!(test.ran("set-limit gpu none").code, 0);
}

/// Without waiting for the end of the ttl, but not if the lock must stay closed when its holder dies.
#[test]
fn guardian_frees_the_lock_of_a_killed_wrapper_once_the_job_has_ended() {
    let (test, _node) = TestDir::new().served();
    let options = ["--ttl", "10m", "--grace", "1s"];
    let holder = test.holder("x", &options);
    let delayed = test.holder("y", &[&options[..], &["--lock-delay", "1m"]].concat());
    holder.signal(Signal::SIGKILL);
    delayed.signal(Signal::SIGKILL);
    let next = test.ran("run --wait 1m x -- true");
    assert_eq!(next.code, 0, "{next:?}");
    assert_eq!(test.ran("run --try y -- true").code, i32::from(exit::BUSY));
}

#[test]
fn with_linger_the_lock_of_a_killed_wrapper_is_free_before_its_ttl_has_passed() {
    let (test, _node) = TestDir::new().served();
    let long = ["--ttl", "10m", "--grace", "1s", "--linger"];
    let holder = test.holder("x", &[&long[..], &["2s"]].concat());
    holder.signal(Signal::SIGKILL);
    let next = test.ran("run --wait 1m x -- true");
    assert_eq!(next.code, 0, "{next:?}");
    let short = test.lockkeeper([&["run"], &long[..], &["1s", "x", "--", "true"]].concat()).ended();
    short.is_one_line(exit::USAGE, &["--linger is 1s", "(2s)"]);
}

#[test]
fn doctor_reports_node_status_and_warnings() {
    let (test, node) = TestDir::new().served();
    let ended = test.ran("doctor --json");
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let said: Value = serde_json::from_str(&ended.out).unwrap();
    let here = &said["nodes"][0];
    assert_eq!((&here["role"], &here["answers"]), (&json!("leader"), &json!(true)), "{said}");
    assert_eq!(here["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(said["warnings"], json!([]));
    for words in ["APPLIED", "SESSIONS", "leader"] {
        assert!(test.ran("doctor").out.contains(words), "no {words:?}");
    }
    assert_eq!(test.ran("sessions --json").out, "[]\n", "its own session is closed");
    // The second node of the address list does not exist.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ended = test.ran(&format!("doctor {},{gone}", node.url()));
    assert_eq!(ended.code, i32::from(exit::OK), "the only member answers: {ended:?}");
    let warning = ended.out.lines().find(|line| line.starts_with("warning: ")).unwrap();
    assert!(warning.contains(&gone.to_string()) && warning.contains("leave it out"), "{warning}");
}

#[test]
fn bench_measures_the_service() {
    let (test, _node) = TestDir::new().served();
    for workload in ["uncontended", "handoff", "keepalive"] {
        let ended = test.ran(&format!("bench --workload {workload} --clients 8 --seconds 1 --json"));
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{workload}");
        let said: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!((&said["clients"], &said["connections"]), (&json!(8), &json!(4)));
        match workload {
            "uncontended" => assert!(said["pairs_per_s"].as_f64().unwrap() > 0.0, "{said}"),
            "handoff" => assert!(said["handoff_us"]["p50"].as_f64().unwrap() > 0.0, "{said}"),
            _ => assert_eq!(said["pairs_per_s"], Value::Null),
        }
    }
    assert_eq!(test.ran("ls").out, "", "nothing is left");
    // Ctrl-C ends the measurement, and what was measured is printed.
    for options in ["", " --processes --clients 2"] {
        let endless = test.lockkeeper(format!("bench --seconds 3600{options}").split(' ')).started();
        wait_until("it measures", || test.ran("ls").out.contains("lockkeeper-bench/0"));
        endless.signal(Signal::SIGINT);
        let ended = endless.ended();
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
        assert!(ended.out.contains("pairs of acquire and release a second"), "{ended:?}");
        assert_eq!(test.ran("sessions --json").out, "[]\n", "no worker is left");
    }
    let endless = test.lockkeeper("bench --seconds 3600".split(' ')).started();
    wait_until("it measures", || test.ran("ls").out.contains("lockkeeper-bench/0"));
    endless.signal(Signal::SIGINT);
    let ended = endless.ended();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    for words in
        ["uncontended, 1 client on 1 connection", "pairs of acquire and release a second", "P99", "acquire "]
    {
        assert!(ended.out.contains(words), "no {words:?} in {}", ended.out);
    }
    assert!(ended.out.lines().any(|line| line.starts_with("  < ") && line.contains('#')), "{}", ended.out);
}
