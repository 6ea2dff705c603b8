//! Under every fault of wrapper or guardian, no descendant outlives the lock.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::scenario::{Scenario, rounds, state, wait_until};
use crate::wrapper::{GUARDIAN_DIED, TOO_LATE};

crate::trials![
    killed_wrapper_leaves_no_descendant_once_the_lock_is_free,
    stopped_then_killed_wrapper_leaves_no_descendant_once_the_lock_is_free,
    wrapper_killed_during_its_start_leaves_no_descendant,
    descendants_that_keep_forking_are_ended,
    descendants_of_a_stopped_wrapper_are_dead_before_the_deadline,
    renewed_lease_keeps_the_job_past_its_first_deadline,
    lost_lock_ends_a_job_that_ignores_sigterm,
    job_that_handles_sigterm_has_time_to_clean_up,
    command_is_not_started_shortly_before_the_deadline,
    lock_without_deadline_survives_a_stopped_wrapper,
    guardian_survives_every_signal_but_sigkill,
    wrapper_ends_the_descendants_of_a_killed_guardian,
    daemons_left_behind_are_waited_for_but_not_ended,
    signal_ends_the_daemons_that_a_wrapper_waits_for,
    stopped_wrapper_does_not_block_the_guardian,
];

/// The first line of the script: in every second round, the processes ignore SIGTERM, so that only SIGKILL
/// ends them.
fn first_words(round: usize) -> &'static str {
    if round.is_multiple_of(2) { "" } else { "trap '' TERM" }
}

fn kill_wrappers(before: &[Signal]) {
    for round in 0..rounds() {
        let mut scenario = Scenario::new();
        scenario.options.grace_ms = 50;
        scenario.run_family(first_words(round));
        for signal in before {
            scenario.signal_wrapper(*signal);
        }
        scenario.signal_wrapper(Signal::SIGKILL);
        let _next_holder = scenario.wait_for_lock();
        assert_eq!(scenario.survivors(), Vec::<i32>::new(), "alive after the lock was free, round {round}");
    }
}

fn killed_wrapper_leaves_no_descendant_once_the_lock_is_free() {
    kill_wrappers(&[]);
}

fn stopped_then_killed_wrapper_leaves_no_descendant_once_the_lock_is_free() {
    kill_wrappers(&[Signal::SIGSTOP]);
}

fn wrapper_killed_during_its_start_leaves_no_descendant() {
    for round in 0..rounds() {
        let mut scenario = Scenario::new();
        scenario.options.grace_ms = 50;
        scenario.start(&["sh", "-c", "sleep 600 & (setsid sleep 600 &); wait"]);
        wait_until("the lock file exists", || std::path::Path::new(&scenario.options.lock).exists());
        // The length of this sleep differs between the rounds: the kills hit all phases of the wrapper's
        // start.
        std::thread::sleep(Duration::from_micros(400 * (round as u64 % 50)));
        scenario.signal_wrapper(Signal::SIGKILL);
        scenario.wait();
        let _next_holder = scenario.wait_for_lock();
        assert_eq!(scenario.survivors(), Vec::<i32>::new(), "alive after the lock was free, round {round}");
    }
}

fn descendants_that_keep_forking_are_ended() {
    let mut scenario = Scenario::new();
    scenario.options.grace_ms = 50;
    // Each process lives briefly and leaves an orphan behind, which does the same.
    let script = "trap '' TERM; echo x >> members; link() { : & (link2 &) ; }; link2() { link; }; link; while :; do : & wait; done";
    scenario.run(&["sh", "-c", script]);
    wait_until("the chain runs", || !scenario.read("members").is_empty());
    scenario.signal_wrapper(Signal::SIGKILL);
    let _next_holder = scenario.wait_for_lock();
    assert_eq!(scenario.survivors(), Vec::<i32>::new());
}

fn descendants_of_a_stopped_wrapper_are_dead_before_the_deadline() {
    // Each round takes one ttl.
    for round in 0..rounds().div_ceil(10) {
        let mut scenario = Scenario::new();
        scenario.options.ttl_ms = 2600;
        scenario.options.grace_ms = 2000;
        scenario.options.renews = true;
        scenario.run_family(first_words(round));
        scenario.signal_wrapper(Signal::SIGSTOP);
        wait_until("nobody is left", || scenario.survivors().is_empty());
        scenario.signal_wrapper(Signal::SIGCONT);
        let gone: u64 = scenario.wait_for_report("gone")["gone ".len()..].parse().unwrap();
        // After SIGCONT the wrapper may have written more renewals to its report. Only renewals that were
        // written before the last process ended can have moved the guardian's deadline.
        let report = scenario.read("report");
        let heard = report.lines().filter_map(|line| line.strip_prefix("until ")?.parse::<u64>().ok());
        let deadline = heard.filter(|until| until - 2_600_000_000 < gone).max().unwrap();
        assert!(gone < deadline, "the last one died at {gone}, the deadline was {deadline}");
        assert_eq!(scenario.reported("terminating"), Some("terminating ValidUntil".into()));
        scenario.wait();
    }
}

fn renewed_lease_keeps_the_job_past_its_first_deadline() {
    let mut scenario = Scenario::new();
    scenario.options.ttl_ms = 2000;
    scenario.options.grace_ms = 200;
    scenario.options.renews = true;
    scenario.run(&["sh", "-c", "until [ -e enough ]; do sleep 0.05; done; exit 6"]);
    let first: u64 = scenario.wait_for_report("until")["until ".len()..].parse().unwrap();
    wait_until("the first deadline is over", || lockkeeper_cli::guardian::boot_now() > first);
    std::fs::write(scenario.path("enough"), "").unwrap();
    assert_eq!(scenario.wait().code(), Some(6));
    assert_eq!(scenario.reported("terminating"), None);
}

fn lost_lock_ends_a_job_that_ignores_sigterm() {
    let mut scenario = Scenario::new();
    scenario.options.grace_ms = 100;
    scenario.options.usr2_is_loss = true;
    scenario.run_family("trap '' TERM");
    scenario.signal_wrapper(Signal::SIGUSR2);
    assert_eq!(scenario.wait().code(), Some(128 + 9));
    assert_eq!(scenario.survivors(), Vec::<i32>::new());
    assert_eq!(scenario.reported("terminating"), Some("terminating Asked".into()));
    assert_eq!(scenario.reported("exited"), Some("exited Signal(9)".into()));
}

fn job_that_handles_sigterm_has_time_to_clean_up() {
    let mut scenario = Scenario::new();
    scenario.options.usr2_is_loss = true;
    // After SIGTERM the script starts a new process to clean up, which must not be ended.
    let script =
        "trap 'sleep 0.2; cp members cleaned; exit 8' TERM; echo up >> members; while :; do sleep 0.05; done";
    scenario.run(&["sh", "-c", script]);
    wait_until("the trap is set", || !scenario.read("members").is_empty());
    scenario.signal_wrapper(Signal::SIGUSR2);
    assert_eq!(scenario.wait().code(), Some(8));
    assert_eq!(scenario.read("cleaned"), "up\n");
}

fn command_is_not_started_shortly_before_the_deadline() {
    let mut scenario = Scenario::new();
    scenario.options.ttl_ms = 1000;
    scenario.options.grace_ms = 2000;
    scenario.start(&["sh", "-c", "echo x > ran"]);
    assert_eq!(scenario.wait().code(), Some(TOO_LATE.into()));
    assert!(!scenario.path("ran").exists());
}

fn lock_without_deadline_survives_a_stopped_wrapper() {
    let mut scenario = Scenario::new();
    scenario.options.grace_ms = 0;
    scenario.run(&["sh", "-c", "until [ -e enough ]; do sleep 0.05; done; echo done > result; exit 2"]);
    let guardian = scenario.guardian_pid();
    scenario.signal_wrapper(Signal::SIGSTOP);
    wait_until("the wrapper is stopped", || state(scenario.wrapper_pid()).as_deref() == Some("T"));
    std::fs::write(scenario.path("enough"), "").unwrap();
    wait_until("the guardian has ended", || state(guardian).as_deref() == Some("Z"));
    assert_eq!(scenario.read("result"), "done\n");
    scenario.signal_wrapper(Signal::SIGCONT);
    assert_eq!(scenario.wait().code(), Some(2));
}

fn guardian_survives_every_signal_but_sigkill() {
    let mut scenario = Scenario::new();
    let own = std::env::current_exe().unwrap();
    scenario.run(&[own.to_str().unwrap(), "role:tell-signals"]);
    wait_until("the command listens", || scenario.read("out").contains("listening"));
    let guardian = scenario.guardian_pid();
    for signal in Signal::iterator() {
        if !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGTERM | Signal::SIGCONT) {
            kill(guardian, signal).unwrap();
        }
    }
    // The guardian relays a signal, so it is alive.
    scenario.signal_wrapper(Signal::SIGUSR1);
    wait_until("the guardian passes a signal on", || scenario.read("out").contains("had SIGUSR1"));
    assert_eq!(scenario.reported("terminating"), None);
    scenario.signal_wrapper(Signal::SIGTERM);
    assert_eq!(scenario.wait().code(), Some(9));
}

fn wrapper_ends_the_descendants_of_a_killed_guardian() {
    for words in ["", "trap '' TERM"] {
        let mut scenario = Scenario::new();
        scenario.options.grace_ms = 100;
        scenario.run_family(words);
        kill(scenario.guardian_pid(), Signal::SIGKILL).unwrap();
        let _next_holder = scenario.wait_for_lock();
        assert_eq!(scenario.survivors(), Vec::<i32>::new());
        assert_eq!(scenario.wait().code(), Some(GUARDIAN_DIED.into()));
    }
}

fn daemons_left_behind_are_waited_for_but_not_ended() {
    let mut scenario = Scenario::new();
    scenario.options.grace_ms = 0;
    let script = "(setsid sh -c 'until [ -e enough ]; do sleep 0.05; done; echo done > result' &); exit 3";
    scenario.run(&["sh", "-c", script]);
    assert_eq!(scenario.wait_for_report("exited"), "exited Code(3)");
    let line = scenario.wait_for_report("left-behind");
    let (_, pids) = line.split_once('[').unwrap();
    let pid: i32 = pids.trim_end_matches(']').split(", ").next().unwrap().parse().unwrap();
    assert!(state(Pid::from_raw(pid)).is_some(), "the daemon lives");
    assert_eq!(scenario.reported("gone"), None);
    std::fs::write(scenario.path("enough"), "").unwrap();
    assert_eq!(scenario.wait().code(), Some(3));
    assert_eq!(scenario.read("result"), "done\n");
    assert_eq!(scenario.reported("terminating"), None);
}

fn signal_ends_the_daemons_that_a_wrapper_waits_for() {
    let mut scenario = Scenario::new();
    scenario.options.grace_ms = 50;
    scenario.run(&["sh", "-c", "(setsid sh -c 'trap \"\" TERM INT; while :; do sleep 600; done' &); exit 3"]);
    scenario.wait_for_report("left-behind");
    scenario.signal_wrapper(Signal::SIGINT);
    let status = scenario.wait();
    assert_eq!((status.code(), status.signal()), (Some(3), None));
    assert_eq!(scenario.survivors(), Vec::<i32>::new());
}

fn stopped_wrapper_does_not_block_the_guardian() {
    let mut scenario = Scenario::new();
    scenario.options.ttl_ms = 1000;
    scenario.options.grace_ms = 400;
    scenario.run_family("trap '' TERM");
    scenario.signal_wrapper(Signal::SIGSTOP);
    wait_until("nobody is left", || scenario.survivors().is_empty());
    scenario.signal_wrapper(Signal::SIGCONT);
    assert_eq!(scenario.wait().code(), Some(128 + 9));
}
