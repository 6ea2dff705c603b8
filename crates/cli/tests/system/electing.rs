//! `elect` and `leader`.

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;

use crate::support::{CommandExt, Running, TestDir, wait_until};

/// Writes a line to the journal at its start, and another at SIGTERM: what, the token, and the time in ms.
const JOB: &str = r#"
note() { echo "$1 $LOCKKEEPER_TOKEN $(date +%s%3N)" >> journal; }
trap 'note ends; exit 0' TERM
note begins
while :; do sleep 0.02; done"#;

fn candidate(test: &TestDir, value: &str, options: &[&str], script: &str) -> Running {
    let words = [&["elect", "--value", value], options, &["shop", "--", "sh", "-c", script]].concat();
    test.lockkeeper(words).started()
}

/// What `leader --json` prints of the leader.
fn leader(test: &TestDir) -> serde_json::Value {
    let ended = test.ran("leader shop --json");
    let printed: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(printed["name"], "shop");
    let code = if printed["leader"].is_null() { exit::NO } else { exit::OK };
    assert_eq!((ended.code, ended.err.as_str()), (i32::from(code), ""));
    printed["leader"].clone()
}

fn wait_for_leader(test: &TestDir, value: &str) {
    wait_until("it leads", || leader(test)["value"] == value);
}

/// The lines of the journal: what, with which token, when in ms.
fn journal(test: &TestDir) -> Vec<(String, u64, u128)> {
    let text = std::fs::read_to_string(test.path("journal")).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let mut next = || words.next().unwrap();
        (next().to_owned(), next().parse().unwrap(), next().parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn stopped_leader_has_ended_before_the_next_one_leads_and_campaigns_again() {
    let (test, _node) = TestDir::new().served();
    let ended = test.ran("leader shop");
    assert_eq!((ended.code, ended.out.as_str()), (i32::from(exit::NO), "`shop`: nobody leads\n"));
    let watch = test.lockkeeper(["leader", "shop", "--watch"]).started();
    // The command is told to stop 900 ms before the end: its trap starts a program.
    let ttl = ["--ttl", "2s", "--grace", "900ms"];
    let first = candidate(&test, "first", &ttl, JOB);
    wait_for_leader(&test, "first");
    let second = candidate(&test, "second", &ttl, JOB);
    test.wait_for_waiters("shop", 1);
    wait_until("the command runs", || journal(&test).len() == 1);
    first.signal(Signal::SIGSTOP);
    wait_for_leader(&test, "second");
    wait_until("the second command runs", || journal(&test).len() == 3);
    let journal_so_far = journal(&test);
    let [(_, one, _), (ends, ended, ended_at), (begins, two, began_at)] = &journal_so_far[..] else {
        panic!("{journal_so_far:?}");
    };
    assert_eq!((ends.as_str(), begins.as_str(), ended), ("ends", "begins", one));
    assert!(two > one && began_at >= ended_at, "{journal_so_far:?}");
    // The first one campaigns again, as soon as it runs again.
    first.signal(Signal::SIGCONT);
    test.wait_for_waiters("shop", 1);
    second.signal(Signal::SIGTERM);
    assert_eq!(second.ended().code, 0, "the command's own");
    wait_for_leader(&test, "first");
    first.signal(Signal::SIGINT);
    let ended = first.ended();
    assert_eq!(ended.code, 130, "{ended:?}");
    assert_eq!(ended.err.matches("elected, with token").count(), 2, "{ended:?}");
    wait_until("nobody leads", || leader(&test).is_null());
    watch.signal(Signal::SIGTERM);
    let watched = watch.ended();
    let lines: Vec<&str> = watched.out.lines().collect();
    assert_eq!(watched.code, 0);
    let at = |value: &str| lines.iter().position(|line| line.ends_with(value)).expect(value);
    assert!(at(": first") < at(": second"), "{lines:?}");
}

#[test]
fn command_that_ends_resigns_and_the_others_have_their_turn() {
    let (test, _node) = TestDir::new().served();
    let short = candidate(&test, "short", &[], "echo $LOCKKEEPER_TOKEN >> short; exit 3");
    wait_until("it ran", || test.path("short").exists());
    let long = candidate(&test, "long", &[], JOB);
    wait_for_leader(&test, "long");
    test.wait_for_waiters("shop", 1);
    long.signal(Signal::SIGTERM);
    assert_eq!(long.ended().code, 0);
    let runs = || std::fs::read_to_string(test.path("short")).unwrap().lines().count();
    let before = runs();
    wait_until("it ran again", || runs() > before);
    short.signal(Signal::SIGTERM);
    let ended = short.ended();
    assert!(ended.err.contains("the command has ended with exit code 3; campaigning again"), "{ended:?}");
    let once = candidate(&test, "once", &["--once"], "exit 3").ended();
    assert_eq!(once.code, 3, "{once:?}");
    assert!(once.err.contains("elected") && !once.err.contains("again"), "{once:?}");
}

#[test]
fn unusable_elections_are_refused_with_a_reason() {
    let test = TestDir::new();
    let value = "v".repeat(4097);
    let ended = test.lockkeeper(["elect", "--value", &value, "x", "--", "true"]).ended();
    ended.is_one_line(exit::USAGE, &["4097", "4096"]);
    test.ran("elect x --").is_one_line(exit::USAGE, &["no command"]);
    // A lock directory keeps no values.
    test.ran("elect --value v x -- true").is_one_line(exit::USAGE, &["value"]);
    let ended = test.ran("elect x -- ./no-such-command");
    assert_eq!(ended.code, i32::from(exit::NOT_FOUND), "{ended:?}");
    let ended = test.ran("elect --once x -- true");
    assert_eq!(ended.code, 0, "{ended:?}");
    test.ran("leader").is_one_line(exit::USAGE, &["<NAME>"]);
}
