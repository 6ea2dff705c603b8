//! `ls`, `show`, `watch`, `break`, `check-token`, `doctor`, `bench`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{CommandExt, TestDir};

#[test]
fn ls_and_show_list_holders_and_waiters() {
    let test = TestDir::new();
    test.ran("ls").is_one_line(0, &["no locks in use"]);
    assert_eq!(test.ran("ls --json").out, "[]\n");
    let holder = test.holder("orders/42", &["--meta", "ticket=5"]);
    let _waiter = test.lockkeeper(["run", "orders/42", "--", "true"]).started();
    test.wait_for_waiters("orders/42", 1);
    let _other = test.holder("other", &[]);

    let shown = test.shown("orders/42");
    let held = &shown["holds"][0];
    assert_eq!(held["token"], holder.token);
    assert_eq!((&held["mode"], &held["state"]), (&json!("exclusive"), &json!("held")));
    assert_eq!(held["meta"], "ticket=5");
    assert!(held["label"].as_str().unwrap().contains("pid"), "{held}");
    assert!(held["held_for_ms"].is_u64(), "{held}");
    assert_eq!(shown["waiters"][0]["mode"], "exclusive");

    let text = test.ran("show orders/42").out;
    for words in ["orders/42", &holder.token.to_string(), "ticket=5", "1. in the queue"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let listed: Value = serde_json::from_str(&test.ran("ls orders --json").out).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "only what is below the prefix");
    let table = test.ran("ls").out;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "TOKEN", "MODE", "OWNER", "HELD", "FOR", "WAITING", "NOTE"]);
    assert_eq!(rows[1][..3], ["orders/42", &holder.token.to_string(), "exclusive"], "{table}");
    assert!(rows[1].ends_with(&["1", "ticket=5"]) && rows[2][0] == "other" && rows.len() == 3, "{table}");
    let column = |words: &str| table.lines().map(|line| line.find(words)).collect::<Vec<_>>();
    assert_eq!(column("exclusive")[1], column("exclusive")[2], "aligned: {table}");
    assert_eq!(column("MODE")[0], column("exclusive")[1], "aligned with the header: {table}");
}

#[test]
fn check_token_reports_current_not_current_and_never_issued() {
    let test = TestDir::new();
    let holder = test.holder("x", &[]);
    let ask = |token: u64| {
        let ended = test.ran(&format!("check-token x {token} --json"));
        let said: Value = serde_json::from_str(&ended.out).unwrap();
        (ended.code, said["status"].as_str().unwrap().to_owned(), said["live_tokens"].clone())
    };
    assert_eq!(ask(holder.token), (0, "current".to_owned(), json!([])));
    assert_eq!(ask(holder.token - 1), (1, "not-current".to_owned(), json!([holder.token])));
    assert_eq!(ask(holder.token + 1), (1, "never-issued".to_owned(), json!([])));
}

#[test]
fn break_applies_only_to_the_hold_with_the_given_token() {
    let test = TestDir::new();
    let holder = test.holder("x", &[]);
    let ended = test.ran(&format!("break x --token {} --reason test", holder.token - 1));
    ended.is_one_line(exit::NO, &["not held with that token", &holder.token.to_string()]);
    let missing = test.ran("break x --reason test");
    missing.is_one_line(exit::USAGE, &["--token", "`lockkeeper show NAME` prints the tokens"]);
    let ended = test.ran(&format!("break x --token {} --reason test --now", holder.token));
    ended.is_one_line(exit::USAGE, &["only the kernel ends a flock", "kill -9"]);
    assert_eq!(test.shown("x")["holds"][0]["state"], "held");
}

#[test]
fn watch_prints_state_then_changes_and_vacancies() {
    let test = TestDir::new();
    let first = test.holder("a", &[]);
    let mut watching = test.lockkeeper(["watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let said = next();
    assert_eq!((&said["event"], &said["name"]), (&json!("state"), &json!("a")));
    assert_eq!(next()["event"], "synced");
    let _second = test.holder("b", &[]);
    let said = next();
    assert_eq!((&said["event"], &said["name"]), (&json!("changed"), &json!("b")));
    let mut as_text = test.lockkeeper(["watch", "b"]).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(as_text.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let (time, text) = line.split_once("  ").unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && text.starts_with("b  token"), "{line}");
    as_text.kill().unwrap();
    as_text.wait().unwrap();
    first.signal(Signal::SIGTERM);
    // A poll after the hold's end, but before the removal of its record, prints a `changed` event first.
    let vacant = std::iter::repeat_with(next).find(|said| said["event"] == "vacant").unwrap();
    assert_eq!(vacant["name"], "a");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(watching.id()).unwrap());
    nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
    assert_eq!(watching.wait().unwrap().code(), Some(0));
}

#[test]
fn doctor_reports_capabilities_and_tests_the_service() {
    let test = TestDir::new();
    for url in [test.url(), "memory:".to_owned()] {
        let ended = test.ran(&format!("doctor {url} --json"));
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
        let said: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(said["abilities"].as_object().unwrap().len(), 18);
        assert_eq!(said["promises"].as_object().unwrap().len(), 12);
        assert!(said["token"].as_u64().unwrap() > 0 && said["acquire_us"].is_u64(), "{said}");
        let text = test.ran(&format!("doctor {url}")).out;
        for words in ["excludes", "tokens", "P1 ", "P12"] {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
    }
}

#[test]
fn bench_json_has_all_fields_for_every_workload() {
    let test = TestDir::new();
    for workload in ["uncontended", "cached", "handoff", "keepalive", "memory"] {
        let line =
            format!("bench --locks memory: --workload {workload} --clients 2 --seconds 1 --held 500 --json");
        let ended = test.ran(&line);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
        let said: Value = serde_json::from_str(&ended.out).unwrap();
        for field in ["pairs_per_s", "handoffs_per_s", "cpu_us_per_pair", "bytes_per_lock"] {
            assert!(said.get(field).is_some(), "no {field} in {said}");
        }
        for (field, parts) in
            [("acquire_us", &["p50", "p99"][..]), ("release_us", &["p50"]), ("handoff_us", &["p50", "p99"])]
        {
            for part in parts {
                assert!(said[field].get(part).is_some(), "no {field}.{part} in {said}");
            }
        }
        let measured = match workload {
            "uncontended" | "cached" => &said["pairs_per_s"],
            "handoff" => &said["handoff_us"]["p99"],
            "memory" => &said["bytes_per_lock"],
            _ => &said["clients"],
        };
        assert!(measured.as_f64().unwrap() > 0.0, "{said}");
    }
}

#[test]
fn bench_processes_measure_handoffs() {
    let test = TestDir::new();
    let ended = test.ran("bench --workload handoff --processes --clients 3 --seconds 1 --json");
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let said: Value = serde_json::from_str(&ended.out).unwrap();
    assert!(said["handoffs_per_s"].as_f64().unwrap() > 0.0, "{said}");
}

#[test]
fn service_only_commands_are_refused_for_other_backends() {
    let test = TestDir::new();
    for line in ["sessions", "set-limit gpu 3"] {
        test.ran(line).is_one_line(exit::USAGE, &["only our own service", "lockkeeper://"]);
    }
    test.ran("set-limit gpu many").is_one_line(exit::USAGE, &["'many'", "`none`"]);
}
