//! `run` while it waits for the lock.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;

use crate::support::{CommandExt, TestDir, json_file, wait_until};

#[test]
fn waiters_run_in_turn_with_rising_tokens() {
    let test = TestDir::new();
    let holder = test.holder("x", &[]);
    // The script fails if two commands run at once, and records its token.
    let script = "mkdir inside && echo $LOCKKEEPER_TOKEN >> tokens && sleep 0.02 && rmdir inside";
    let start = || test.lockkeeper(["run", "x", "--", "sh", "-c", script]).started();
    let waiters: Vec<_> = (1..=8)
        .map(|count| {
            let waiter = start();
            test.wait_for_waiters("x", count);
            waiter
        })
        .collect();
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.ended().code, 143);
    for waiter in waiters {
        waiter.ended().is_silent_success();
    }
    let tokens = std::fs::read_to_string(test.path("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 8);
    assert!(tokens.is_sorted(), "{tokens:?}");
}

#[test]
fn signal_ends_the_wait_and_removes_the_waiter() {
    let test = TestDir::new();
    let _holder = test.holder("x", &[]);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let waiter =
            test.lockkeeper(["run", "--status-file", "s.json", "x", "--", "touch", "it-ran"]).started();
        test.wait_for_waiters("x", 1);
        waiter.signal(signal);
        let ended = waiter.ended();
        assert_eq!((ended.code, ended.err.as_str()), (code, ""));
        test.wait_for_waiters("x", 0);
        assert_eq!(json_file(&test.path("s.json"))["outcome"], "failed");
    }
    assert!(!test.path("it-ran").exists());
}

#[test]
fn busy_exit_code_is_configurable() {
    let test = TestDir::new();
    let _holder = test.holder("x", &[]);
    assert_eq!(test.ran("run --try x -- true").code, i32::from(exit::BUSY));
    // A job that may find its lock busy says nothing without a terminal.
    test.ran("run --try --busy-exit 0 x -- true").is_silent_success();
    for options in ["--try", "--wait 20ms"] {
        let ended = test.ran(&format!("run -q {options} x -- true"));
        assert_eq!((ended.code, ended.err.as_str()), (i32::from(exit::BUSY), ""), "{options}");
    }
    test.ran("run --max-waiters 3 x -- true").is_one_line(exit::USAGE, &["limit the number of waiters"]);
    test.ran("run -q y -- /nowhere").is_one_line(exit::NOT_FOUND, &["/nowhere"]);
    let ended = test.ran("run --wait 20ms --busy-exit 9 x -- true");
    ended.is_one_line(9, &["`x` did not become free within"]);
}

#[test]
fn readers_share_and_permits_are_counted() {
    let test = TestDir::new();
    let _reader = test.holder("config", &["--shared"]);
    assert_eq!(test.ran("run --try --shared config -- true").code, 0);
    assert_eq!(test.ran("run --try config -- true").code, i32::from(exit::BUSY));
    let _first = test.holder("gpu", &["--permit=2"]);
    let ended = test
        .lockkeeper(["run", "--try", "--permit", "gpu", "--", "sh", "-c", "echo $LOCKKEEPER_SLOT"])
        .ended();
    assert_eq!((ended.code, ended.out.as_str()), (0, "1\n"));
}

#[test]
fn lock_that_is_held_for_the_command_is_not_waited_for() {
    let test = TestDir::new();
    let own = env!("CARGO_BIN_EXE_lockkeeper");
    let nested = |outer: &str, inner: &str| {
        let words = format!("run {outer} x -- {own} run y -- {own} run {inner} x -- true");
        test.ran(&words)
    };
    for (outer, inner, other) in
        [("", "", true), ("", "--shared", false), ("", "--wait 1h --busy-exit 0", false)]
    {
        let ended = nested(outer, inner);
        ended.is_one_line(exit::DEADLOCK, &["`x`", "LOCKKEEPER_HELD", "--reenter"]);
        assert!(!other || test.ran("run --try x -- true").code == 0);
    }
    nested("--shared", "--shared").is_silent_success();
    nested("--permit=2", "--permit=2").is_silent_success();
    nested("--permit=1", "--permit=1").is_one_line(exit::DEADLOCK, &["LOCKKEEPER_HELD"]);
    nested("", "--try").is_one_line(exit::BUSY, &["`x` is busy"]);
    // Another lock service, and a hold that is over, are no reason.
    let elsewhere =
        format!("run x -- {own} run --locks file://{} x -- true", test.path("elsewhere").display());
    test.ran(&elsewhere).is_silent_success();
    let holder = test.holder("x", &[]);
    let over = format!("{}\tx\t{}", test.url(), holder.token - 1);
    let waits = test.lockkeeper(["run", "x", "--", "true"]).env("LOCKKEEPER_HELD", over).started();
    test.wait_for_waiters("x", 1);
    holder.signal(Signal::SIGTERM);
    waits.ended().is_silent_success();
}

#[test]
fn nested_run_reenters_the_hold_that_is_there() {
    let test = TestDir::new();
    let own = env!("CARGO_BIN_EXE_lockkeeper");
    let nested = |outer: &str, inner: &str, job: &str| {
        let job = format!("{own} run {inner} x -- {job}");
        let words = format!("run {outer} x -- {own} run y -- {job}");
        test.ran(&words)
    };
    nested("", "--reenter", "true").is_silent_success();
    nested("--shared", "--shared --reenter", "true").is_silent_success();
    nested("", "--shared --reenter", "true").is_silent_success();
    assert_eq!(nested("", "--reenter", "false").code, 1);
    nested("", "--reenter", "/nowhere").is_one_line(exit::NOT_FOUND, &["/nowhere"]);
    // A reader does not become a writer, and a permit is not the lock.
    nested("--shared", "--reenter", "true").is_one_line(exit::DEADLOCK, &["`x`", "shared"]);
    nested("--permit=2", "--reenter", "true").is_one_line(exit::DEADLOCK, &["`x`", "permit"]);
    test.ran("run --reenter --max-hold 1s x -- true").is_one_line(exit::USAGE, &["--reenter"]);
    // If no enclosing `run` holds it, or no longer does, `--reenter` acquires it as usual.
    test.ran("run --reenter x -- true").is_silent_success();
    let holder = test.holder("x", &[]);
    test.ran("run --reenter --try x -- true").is_one_line(exit::BUSY, &["`x` is busy"]);
    let over = format!("{}\tx\t{}\texclusive", test.url(), holder.token - 1);
    let waits =
        test.lockkeeper(["run", "--reenter", "x", "--", "true"]).env("LOCKKEEPER_HELD", over).started();
    test.wait_for_waiters("x", 1);
    holder.signal(Signal::SIGTERM);
    waits.ended().is_silent_success();
}

/// The command under the outer hold ends with it: it is one of the processes that the outer guardian ends.
#[test]
fn reentered_command_ends_with_the_outer_hold() {
    let test = TestDir::new();
    let own = env!("CARGO_BIN_EXE_lockkeeper");
    let job = "trap '' TERM; touch ran; while :; do sleep 1; done";
    let mut outer = test.lockkeeper(["run", "--max-hold", "1s", "--grace", "100ms", "x", "--", own]);
    let outer = outer.args(["run", "--reenter", "x", "--", "sh", "-c", job]).started();
    let ended = outer.ended();
    assert_eq!(ended.code, i32::from(exit::LOST), "{ended:?}");
    assert!(test.path("ran").exists());
    test.ran("run --try x -- true").is_silent_success();
}

#[test]
fn no_more_runs_begin_than_the_rate_allows() {
    let test = TestDir::new();
    for _ in 0..2 {
        assert_eq!(test.ran("run --try --rate 2/1h mail -- true").code, 0);
    }
    assert_eq!(test.ran("run --try --rate 2/1h mail -- true").code, i32::from(exit::BUSY));
    for (rate, wanted) in [("2", "10/1m"), ("0/1m", "65536"), ("2/25h", "24h"), ("2/5", "'2/5'")] {
        test.ran(&format!("run --rate {rate} mail -- true")).is_one_line(exit::USAGE, &[wanted]);
    }
    test.ran("run --rate 2/1h --shared mail -- true").is_one_line(exit::USAGE, &["--shared"]);
}

#[test]
fn lock_kept_closed_is_busy() {
    let test = TestDir::new();
    assert_eq!(test.ran("run --keep-closed 1h nightly -- true").code, 0);
    test.ran("run --try nightly -- true").is_one_line(exit::BUSY, &["`nightly`", "closed for another 59m"]);
    assert_eq!(test.shown("nightly")["holds"][0]["state"], "closed");
}

#[test]
fn min_hold_counts_from_the_beginning_and_outlives_the_program() {
    let test = TestDir::new();
    let begun = Instant::now();
    assert_eq!(test.ran("run --min-hold 700ms nightly -- true").code, 0);
    assert!(begun.elapsed() >= Duration::from_millis(700));
    assert_eq!(test.ran("run --try nightly -- true").code, 0, "closed for no longer");

    // The signal may come before the command has ended.
    let job = "trap '' TERM; touch ran";
    let waits = test.lockkeeper(["run", "--min-hold", "1h", "nightly", "--", "sh", "-c", job]).started();
    wait_until("the command has run", || test.path("ran").exists());
    waits.signal(Signal::SIGTERM);
    assert_eq!(waits.ended().code, 0);
    test.ran("run --try nightly -- true").is_one_line(exit::BUSY, &["`nightly`", "closed for another 59m"]);

    test.ran("run --min-hold 25h nightly -- true").is_one_line(exit::USAGE, &["--min-hold", "at most 24h"]);
    // A command that can't be started holds nothing.
    assert_eq!(test.ran("run --min-hold 1h other -- /nowhere").code, i32::from(exit::NOT_FOUND));
}

#[test]
fn without_a_terminal_a_long_wait_is_printed_once_and_with_verbose_also_a_short_one() {
    let test = TestDir::new();
    let holder = test.holder("x", &[]);
    let begun = Instant::now();
    let starts = |options: &[&str], told: &Path| {
        let mut command = test.lockkeeper([&["run"], options, &["x", "--", "true"]].concat());
        command.stderr(std::fs::File::create(told).unwrap()).spawn().unwrap()
    };
    let reports = |told: &Path| std::fs::read_to_string(told).unwrap().ends_with('\n');
    let (told, told_later) = (test.path("told"), test.path("told-later"));
    let verbose = starts(&["-v"], &told);
    test.wait_for_waiters("x", 1);
    let quiet = starts(&[], &told_later);
    wait_until("the verbose one says so", || reports(&told));
    wait_until("the other one says so", || reports(&told_later));
    assert!(begun.elapsed() >= Duration::from_secs(2), "a short wait is not worth a line in a log");
    holder.signal(Signal::SIGTERM);
    for (mut waiter, told, position) in [(verbose, told, "1st"), (quiet, told_later, "2nd")] {
        assert!(waiter.wait().unwrap().success());
        let said = std::fs::read_to_string(&told).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        for words in ["waiting for `x`", position, "in the queue", "held by", ": sh"] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
    }
}
