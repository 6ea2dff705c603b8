//! The file fence with real processes: killed inside an effect, with resource limits, and without privileges.
//! (The common suite kills processes at random points.)

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use lockkeeper_core::Token;
use lockkeeper_fence::{FileError, FileFence, Section};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use crate::suite::child::{finished_well, lines, tell};

/// In the child process: its directory and its argument.
fn as_child() -> Option<(PathBuf, u64)> {
    crate::suite::child::as_child().map(|(dir, argument)| (dir.into(), argument))
}

fn spawn(name: &str, dir: &Path, argument: u64) -> Child {
    crate::suite::child::spawn(
        &format!("processes::{name}"),
        dir.to_str().expect("a temporary directory of text"),
        argument,
    )
}

fn exclusive(value: u64) -> Section {
    Section::exclusive(Token::new(value).expect("a token"))
}

fn fence(dir: &Path) -> FileFence {
    FileFence::new(dir.join("data")).expect("a fence")
}

#[test]
fn a_process_killed_inside_an_effect_frees_the_fence() {
    if let Some((dir, token)) = as_child() {
        let _ = fence(&dir).write_with(exclusive(token), || {
            tell("inside");
            loop {
                thread::park();
            }
        });
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = spawn("a_process_killed_inside_an_effect_frees_the_fence", dir.path(), 5);
    assert_eq!(lines(&mut child).next().as_deref(), Some("inside"));
    let fence = fence(dir.path());
    let busy = fence.clone().wait_at_most(Duration::from_millis(20)).enter(exclusive(6)).expect_err("held");
    assert!(matches!(busy, FileError::Busy { .. }), "{busy:?}");
    child.kill().expect("killed");
    child.wait().expect("gone");
    fence.enter(exclusive(6)).expect("free");
    assert!(matches!(fence.write(exclusive(5), b"late"), Err(FileError::Refused(_))));
}

/// The file size limit simulates a full disk without root: the write of the replacement fails half-way.
#[test]
fn a_write_that_does_not_fit_leaves_the_old_content_and_no_litter() {
    if let Some((dir, _)) = as_child() {
        // SAFETY: the process has no handler of its own for this signal. With the signal ignored, a write
        // above the limit returns an error instead of ending the process.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.expect("ignored");
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("a limit");
        let limit = |bytes| setrlimit(Resource::RLIMIT_FSIZE, bytes, hard).expect("below the hard limit");
        let fence = fence(&dir);
        let no_litter = || assert!(!dir.join("data.fence.new").exists(), "a replacement was left");
        fence.write(exclusive(1), b"old").expect("live");

        limit(4096);
        let error = fence.write(exclusive(2), &[7; 5000]).expect_err("too large");
        assert!(error.to_string().contains("the old content stands"), "{error}");
        assert_eq!(fence.read().expect("readable").as_deref(), Some(&b"old"[..]));
        no_litter();
        fence.write(exclusive(2), b"new").expect("the same token tries again");

        limit(8);
        let error = fence.enter(exclusive(3)).expect_err("no room for the marks");
        assert!(error.to_string().contains("data.fence"), "{error}");
        no_litter();
        limit(hard);
        fence.write(exclusive(2), b"newer").expect("the mark did not rise");
        fence.enter(exclusive(3)).expect("room again");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    finished_well(spawn("a_write_that_does_not_fit_leaves_the_old_content_and_no_litter", dir.path(), 0));
}

#[test]
fn a_user_without_rights_is_told_what_is_missing() {
    if let Some((dir, _)) = as_child() {
        if Uid::effective().is_root() {
            let nobody = 65_534;
            setgroups(&[]).expect("root");
            setgid(Gid::from_raw(nobody)).expect("root");
            setuid(Uid::from_raw(nobody)).expect("root");
        }
        let inside = dir.join("inside");
        fs::create_dir(&inside).expect("created");
        let allow =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own");
        let fence = fence(&inside);
        let denied = |what: &str| {
            let error = fence.enter(exclusive(9)).expect_err(what).to_string();
            assert!(error.contains("not allowed") && error.contains("inside"), "{what}: {error}");
        };
        allow(&inside, 0o555);
        denied("a directory that is not writable, never fenced");
        allow(&inside, 0o755);
        fence.write(exclusive(1), b"old").expect("live");
        allow(&inside, 0o555);
        denied("a directory that became read-only");
        allow(&inside, 0o755);
        for own in ["data.fence", "data.fence.lock"] {
            allow(&inside.join(own), 0);
            denied(own);
            allow(&inside.join(own), 0o644);
        }
        // Taking the flock needs no write permission on the lock file, once that file has its content.
        allow(&inside.join("data.fence.lock"), 0o444);
        fence.enter(exclusive(2)).expect("readable is enough");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("own");
    finished_well(spawn("a_user_without_rights_is_told_what_is_missing", dir.path(), 0));
}
