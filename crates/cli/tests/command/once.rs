//! `run --once-key`.

mod scenario;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;

use scenario::{job, once, times_done};

use crate::support::{CommandExt, TestDir, json_file, wait_until};

#[test]
fn command_is_run_once_per_key_with_records_beside_the_locks() {
    once(&TestDir::new(), &[]);
}

#[test]
fn records_may_be_elsewhere() {
    let (test, _node) = TestDir::new().served();
    once(&test, &["--records", &format!("file://{}", test.path("records").display())]);
}

#[test]
fn waiter_finds_the_command_done_meanwhile() {
    let test = TestDir::new();
    let script = "sleep 0.3; echo done >> done";
    let start = || {
        let words = ["run", "--once-key", "K", "jobs", "--", "sh", "-c", script];
        test.lockkeeper(words).started()
    };
    let crowd: Vec<_> = (0..6).map(|_| start()).collect();
    let ended: Vec<_> = crowd.into_iter().map(|one| one.ended()).collect();
    assert!(ended.iter().all(|one| one.code == 0), "{ended:?}");
    assert_eq!(times_done(&test), 1);
    assert_eq!(ended.iter().filter(|one| one.err.contains("not run")).count(), 5, "{ended:?}");
}

/// A command that ends with 0 although it was interrupted is not done: it runs again, and is recorded then.
#[test]
fn interrupted_command_is_left_open() {
    // Behind SIGTERM a process of the command still works, or the command ends in order.
    let leaves = "(setsid sh -c 'echo begun > begun; exec sleep 600' &)";
    let works = "trap 'exit 0' TERM HUP; echo begun > begun; while :; do sleep 0.05; done";
    for (script, signal, code) in
        [(works, Signal::SIGTERM, 143), (works, Signal::SIGHUP, 129), (leaves, Signal::SIGTERM, 143)]
    {
        let test = TestDir::new();
        let words = ["run", "--once-key", "K", "--status-file", "status", "jobs", "--", "sh", "-c", script];
        let running = test.lockkeeper(words).started();
        wait_until("it has begun", || test.path("begun").exists());
        running.signal(signal);
        let ended = running.ended();
        assert_eq!(ended.code, code, "{script}: {ended:?}");
        assert!(
            ended.err.contains(&format!("{signal} came")) && ended.err.contains("run again"),
            "{ended:?}"
        );
        let status = json_file(&test.path("status"));
        assert_eq!((&status["outcome"], &status["exit_code"]), (&"ran".into(), &0.into()), "{status}");
        assert_eq!(job(&test, &["--once-key", "K"], 0).code, 0);
        assert_eq!(times_done(&test), 1, "{script}");
    }
}

/// SIGTERM to the guardian interrupts nothing, so the command is done.
#[test]
fn sigterm_to_the_guardian_does_not_interrupt_a_command_that_is_run_once() {
    let test = TestDir::new();
    let script = "kill -TERM $PPID; sleep 0.2; echo done >> done";
    let words = ["run", "--once-key", "K", "jobs", "--", "sh", "-c", script];
    test.lockkeeper(words).ended().is_silent_success();
    job(&test, &["--once-key", "K"], 0).is_one_line(exit::OK, &["not run"]);
    assert_eq!(times_done(&test), 1);
}

#[test]
fn record_that_can_not_be_read_or_written_is_an_error() {
    let test = TestDir::new();
    std::fs::write(test.path("in-the-way"), "").unwrap();
    let records = format!("file://{}/in-the-way", test.path("").display());
    job(&test, &["--once-key", "K", "--records", &records], 0)
        .is_one_line(exit::UNAVAILABLE, &["the record of `K`", "Not a directory"]);
    assert_eq!(times_done(&test), 0, "the command is not run if its record can't be read");

    // The directory of the records becomes a file while the command runs.
    let script = "rm -rf records/once; mkdir -p records; echo > records/once; echo done >> done";
    let records = format!("file://{}", test.path("records").display());
    let words = ["run", "--once-key", "K", "--records", &records, "jobs", "--", "sh", "-c", script];
    test.lockkeeper(words)
        .ended()
        .is_one_line(exit::UNAVAILABLE, &["the command was done", "not recorded", "would run again"]);
    assert_eq!(times_done(&test), 1);
}

#[test]
fn unusable_keys_and_stores_are_refused_before_anything_is_run() {
    let (test, _node) = TestDir::new().served();
    let long = "x".repeat(513);
    for (options, words) in [
        (&["--once-key", ""][..], &["0 bytes", "512"][..]),
        (&["--once-key", &long], &["513 bytes", "512"]),
        (&["--once-key", "K"], &["--records URL", "file:///dir"]),
        (&["--once-key", "K", "--records", "etcd://host"], &["`etcd:`", "known", "redis://"]),
        (&["--once-key", "K", "--records", "file:dir"], &["file:///dir"]),
        (&["--records", "file:///dir"], &["--once-key"]),
    ] {
        job(&test, options, 0).is_one_line(exit::USAGE, words);
    }
    assert_eq!(times_done(&test), 0);
}
