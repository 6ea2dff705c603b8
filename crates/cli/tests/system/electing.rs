//! `elect` and `leader`.

use std::io::{Read, Write};

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

/// The HTTP status of a candidate's health check; `None`: it can't be reached.
fn health(address: &str) -> Option<u16> {
    let mut socket = std::net::TcpStream::connect(address).ok()?;
    socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).map(|status| status.parse().unwrap())
}

#[test]
fn health_check_follows_the_leadership_and_no_hook_delays_its_end() {
    let (test, _node) = TestDir::new().served();
    let addresses = [test.address(), test.address()];
    let begun = |number: usize, on_lost: &str, script: &str| {
        let on_elected =
            format!("echo elected {number} $LOCKKEEPER_NAME $LOCKKEEPER_TOKEN >> hooks; exec sleep 600");
        let on_lost = format!("echo lost {number} $LOCKKEEPER_NAME $LOCKKEEPER_TOKEN >> hooks; {on_lost}");
        let health = &addresses[number];
        let options = ["--health", health, "--on-elected", &on_elected, "--on-lost", &on_lost];
        candidate(&test, &number.to_string(), &options, script)
    };
    let first = begun(
        0,
        "while test ! -e go; do sleep 0.02; done",
        "while test ! -e resign; do sleep 0.02; done; exit 4",
    );
    wait_for_leader(&test, "0");
    wait_until("its health says so", || health(&addresses[0]) == Some(200));
    let second = begun(1, "exit 5", JOB);
    test.wait_for_waiters("shop", 1);
    assert_eq!(health(&addresses[1]), Some(503));
    let token = |number: &str| leader(&test)["token"].as_u64().filter(|_| leader(&test)["value"] == number);
    let tokens = [token("0").unwrap()];

    // The first one resigns. Both of its hooks hang, and the second one leads.
    std::fs::write(test.path("resign"), "").unwrap();
    wait_for_leader(&test, "1");
    wait_until("the health follows", || addresses.each_ref().map(|it| health(it)) == [Some(503), Some(200)]);
    let tokens = [tokens[0], token("1").unwrap()];
    first.signal(Signal::SIGTERM);
    std::fs::write(test.path("go"), "").unwrap();
    assert_eq!(first.ended().code, 143);

    second.signal(Signal::SIGTERM);
    let ended = second.ended();
    assert_eq!(ended.code, 0, "of the command: {ended:?}");
    assert!(ended.err.contains("`shop`: --on-lost has failed (exit status: 5)"), "{ended:?}");
    let mut hooks: Vec<String> =
        std::fs::read_to_string(test.path("hooks")).unwrap().lines().map(str::to_owned).collect();
    hooks.sort();
    let [one, two] = tokens;
    let expected = [
        format!("elected 0 shop {one}"),
        format!("elected 1 shop {two}"),
        format!("lost 0 shop {one}"),
        format!("lost 1 shop {two}"),
    ];
    assert_eq!(hooks, expected);

    let busy =
        test.ran(&format!("elect --health {} other -- true", test.url().trim_start_matches("lockkeeper://")));
    assert_eq!(busy.code, i32::from(exit::UNAVAILABLE), "{busy:?}");
    assert!(busy.err.contains("--health"), "{busy:?}");
}
