//! How jobs end: what they leave, `--stop-after`, and the unit for systemd.

use lockkeeper_cli::{args, exit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{CommandExt, TestDir, number_in, parent, wait_until};

const PAGE: &str = include_str!("../../../../docs/run.md");
const PITFALLS: &str = include_str!("../../../../docs/pitfalls.md");
const UNIT: &str = include_str!("../../../../packaging/systemd/lockkeeper-job@.service");

/// The second column of the table of `--left`, by its first one.
fn left(what: &str) -> &'static str {
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| `{what}`"))).expect("a row");
    row.split('|').nth(1).unwrap().trim()
}

/// Runs a command that leaves a daemon; returns the test's directory, the run, and the daemon.
fn leaving(options: &[&str]) -> (TestDir, crate::support::Running, i32) {
    let test = TestDir::new();
    let script = "(setsid sh -c 'echo $$ > daemon; until [ -e enough ]; do sleep 0.05; done' >&- 2>&- &); until [ -s daemon ]; do sleep 0.01; done; exit 3";
    let running =
        test.lockkeeper([&["run"], options, &["jobs", "--", "sh", "-c", script]].concat()).started();
    let daemon = number_in(&test.path("daemon"));
    (test, running, daemon)
}

fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

/// Both pages say what happens.
#[test]
fn processes_that_a_command_leaves_are_waited_for_ended_or_released() {
    assert!(PITFALLS.contains("holds the lock until the last process that the command has left has ended"));
    assert!(PITFALLS.contains("`--left end` ends them"));

    assert_eq!(left("wait"), "the lock is held until the last of them has ended");
    let (test, running, daemon) = leaving(&[]);
    assert_eq!(test.ran("run --try jobs -- true").code, i32::from(exit::BUSY));
    assert!(is_alive(daemon));
    std::fs::write(test.path("enough"), "").unwrap();
    let ended = running.ended();
    assert_eq!(ended.code, 3);
    assert!(ended.err.contains("is held until the last has ended"), "{ended:?}");

    assert_eq!(left("end"), "they get SIGTERM, and SIGKILL after the grace; then the lock is released");
    let (test, running, daemon) = leaving(&["--left", "end"]);
    let ended = running.ended();
    assert_eq!(ended.code, 3);
    assert!(ended.err.contains("being ended") && !is_alive(daemon), "{ended:?}");
    test.ran("run --try jobs -- true").is_silent_success();

    assert_eq!(left("release"), "the lock is released, and they run on");
    let (test, running, daemon) = leaving(&["--left", "release"]);
    let ended = running.ended();
    assert_eq!(ended.code, 3);
    assert!(ended.err.contains("run on without `jobs`") && is_alive(daemon), "{ended:?}");
    test.ran("run --try jobs -- true").is_silent_success();
    std::fs::write(test.path("enough"), "").unwrap();
    wait_until("the daemon ends", || !is_alive(daemon));
}

#[test]
fn job_is_killed_when_the_time_for_its_stop_is_over() {
    let test = TestDir::new();
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 600; done";
    let running =
        test.lockkeeper(["run", "--stop-after", "200ms", "jobs", "--", "sh", "-c", script]).started();
    number_in(&test.path("pid"));
    running.signal(Signal::SIGTERM);
    let ended = running.ended();
    assert_eq!(ended.code, 128 + 9);
    assert!(ended.err.contains("--stop-after is over"), "{ended:?}");
}

/// The unit's command, stopped as `systemctl stop` stops it: SIGTERM to every process.
#[test]
fn job_of_the_systemd_unit_is_stopped_by_one_signal_and_finishes_its_work() {
    let line =
        |name: &str| UNIT.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).expect("a line");
    for (name, value) in [
        ("NotifyAccess", "all"),
        ("KillMode", "control-group"),
        ("KillSignal", "SIGTERM"),
        ("SuccessExitStatus", &exit::BUSY.to_string()),
    ] {
        assert_eq!(line(name), value, "{name}");
        assert!(
            name == "KillSignal" || PAGE.contains(&format!("| `{name}={value}` |")),
            "docs/run.md: {name}"
        );
    }
    let start = line("ExecStart").replace("%i", "backup");
    let words: Vec<&str> = start.split(' ').collect();
    assert_eq!(words[0], "/usr/bin/lockkeeper");
    args::parse(words.iter().map(Into::into)).expect("the unit's command");

    let test = TestDir::new();
    let script =
        "trap 'echo TERM >> heard' TERM; echo $$ > pid; until [ -e enough ]; do sleep 0.05; done; exit 4";
    let job = words.iter().position(|word| *word == "--").unwrap() + 1;
    let mut command = test.lockkeeper([&words[1..job], &["sh", "-c", script]].concat());
    let running = command.env("NOTIFY_SOCKET", "/n").started();
    let pid = number_in(&test.path("pid"));
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert!(environment.contains("NOTIFY_SOCKET=/n"));
    for process in [pid, parent(pid)] {
        kill(Pid::from_raw(process), Signal::SIGTERM).unwrap();
    }
    running.signal(Signal::SIGTERM);
    wait_until("the job hears of it", || test.path("heard").exists());
    assert_eq!(test.ran("run --try jobs/backup -- true").code, i32::from(exit::BUSY));
    std::fs::write(test.path("enough"), "").unwrap();
    assert_eq!(running.ended().code, 4);
    assert_eq!(std::fs::read_to_string(test.path("heard")).unwrap(), "TERM\n");
}
