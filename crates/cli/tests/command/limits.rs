//! The program at the limits of its user's processes and open files.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use lockkeeper_cli::exit;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

use crate::support::{CommandExt, TestDir, number_in, parent};

/// Users that have no other processes, one for each test. The kernel enforces no limit of processes for root.
const USERS: [u32; 2] = [54_321, 54_322];

fn limited(command: &mut Command, resource: Resource, limit: u64) -> &mut Command {
    // SAFETY: makes a system call only.
    unsafe { command.pre_exec(move || setrlimit(resource, limit, limit).map_err(Into::into)) }
}

/// The test's directory, and a call of the program there, as a user without privileges.
fn unprivileged(test: &TestDir, user: u32, words: &[&str]) -> Command {
    let mut command = test.lockkeeper(words);
    if Uid::effective().is_root() {
        chown(test.path(""), Some(user), Some(user)).unwrap();
        command.uid(user).gid(user);
    }
    command
}

#[test]
fn too_few_threads_or_files_are_an_error() {
    let test = TestDir::new();
    let words = ["run", "jobs", "--", "true"];
    for processes in [1, 3, 5, 6, 7, 8] {
        let mut command = unprivileged(&test, USERS[0], &words);
        let ended = limited(&mut command, Resource::RLIMIT_NPROC, processes).ended();
        if processes < 6 {
            ended.is_one_line(exit::IO, &["threads", "ulimit -u"]);
        } else if ended.code != 0 {
            assert!([exit::INTERNAL, exit::NOT_EXECUTABLE].contains(&(ended.code as u8)), "{ended:?}");
            assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
        }
    }
    for files in [4, 7, 12, 18, 20, 22, 24, 26, 28] {
        let ended = limited(&mut test.lockkeeper(words), Resource::RLIMIT_NOFILE, files).ended();
        if files < 20 {
            ended.is_one_line(exit::IO, &["open files", "ulimit -n"]);
        } else if ended.code != 0 {
            assert!(
                [exit::INTERNAL, exit::IO, exit::NOT_EXECUTABLE].contains(&(ended.code as u8)),
                "{ended:?}"
            );
            assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
        }
    }
}

/// If the guardian is killed, the wrapper ends the job with what it has: the system gives it no thread at
/// that moment.
#[test]
fn wrapper_without_a_thread_left_ends_the_job_of_a_killed_guardian() {
    let test = TestDir::new();
    // Takes all processes that the limit leaves; the last one is that of the inner shell, which can't fork
    // any more.
    let script = "trap '' TERM; (while :; do sleep 600 & done) 2>/dev/null; sleep 600 & echo $$ > pid; wait";
    let mut command =
        unprivileged(&test, USERS[1], &["run", "--grace", "100ms", "jobs", "--", "sh", "-c", script]);
    let running = limited(&mut command, Resource::RLIMIT_NPROC, 40).started();
    let job = number_in(&test.path("pid"));
    kill(Pid::from_raw(parent(job)), Signal::SIGKILL).unwrap();
    running.ended().is_one_line(exit::INTERNAL, &["the guardian"]);
    assert!(!std::path::Path::new(&format!("/proc/{job}")).exists(), "the job has outlived its lock");
    test.lockkeeper(["run", "--try", "jobs", "--", "true"]).ended().is_silent_success();
}
