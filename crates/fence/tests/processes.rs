//! The file fence among real processes that are killed, limited and unprivileged.
//!
//! A test runs itself again as a child: with `CHILD` set, it acts as the child and never returns to the caller's part.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Token;
use lockkeeper_fence::{FileError, FileFence, Section};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

/// The child's directory and its argument.
const CHILD: &str = "LOCKKEEPER_FENCE_TEST_CHILD";
const ARGUMENT: &str = "LOCKKEEPER_FENCE_TEST_ARGUMENT";

fn exclusive(value: u64) -> Section {
    Section::exclusive(Token::new(value).expect("a token"))
}

fn fence(dir: &Path) -> FileFence {
    FileFence::new(dir.join("data")).expect("a fence")
}

/// `Some` in the child: its directory and its argument.
fn as_child() -> Option<(PathBuf, u64)> {
    let dir = env::var_os(CHILD)?;
    let argument = env::var(ARGUMENT).expect("set with the directory");
    Some((dir.into(), argument.parse().expect("a number")))
}

/// Runs the test `name` of this file as a child. What it tells comes line by line through its stderr: the test
/// harness writes to stdout.
fn spawn(name: &str, dir: &Path, argument: u64) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .env(ARGUMENT, argument.to_string())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child")
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stderr.take().expect("piped")).lines().map(|line| line.expect("text"))
}

/// One write call, so that a kill never leaves half a line.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
}

fn finished_well(mut child: Child) {
    let told: Vec<_> = lines(&mut child).collect();
    let status: ExitStatus = child.wait().expect("a child");
    assert!(status.success(), "{status}: {told:#?}");
}

/// The content is `token number`: who wrote last, and how many writes there were.
fn content(fence: &FileFence) -> (u64, u64) {
    let Some(bytes) = fence.read().expect("readable") else { return (0, 0) };
    let text = String::from_utf8(bytes).expect("text, never torn");
    let (token, number) = text.strip_suffix(" end\n").expect("whole").split_once(' ').expect("two numbers");
    (token.parse().expect("a token"), number.parse().expect("a number"))
}

fn write_one_more(fence: &FileFence, token: u64) -> Result<u64, FileError> {
    fence.enter(exclusive(token))?;
    let number = content(fence).1 + 1;
    fence.write(exclusive(token), format!("{token} {number} end\n").as_bytes())?;
    Ok(number)
}

#[test]
fn a_writer_killed_at_random_points_loses_no_acknowledged_write_and_lets_no_mark_fall() {
    const KILLS: u64 = 120;
    if let Some((dir, first)) = as_child() {
        let fence = fence(&dir);
        for token in first.. {
            tell(&format!("{token} {}", write_one_more(&fence, token).expect("alone")));
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let fence = fence(dir.path());
    let (mut first, mut inside_a_section, mut half_written) = (1, 0, 0);
    for kill in 0..KILLS {
        let mut child = spawn(
            "a_writer_killed_at_random_points_loses_no_acknowledged_write_and_lets_no_mark_fall",
            dir.path(),
            first,
        );
        let mut told = lines(&mut child);
        let mut last = told.next().expect("at least one write");
        // The point of the kill, spread over a few sections; the spread is fixed, the point is the scheduler's.
        thread::sleep(Duration::from_micros(kill * 7919 % 3001));
        child.kill().expect("killed");
        child.wait().expect("gone");
        last = told.last().unwrap_or(last);
        let (acked_token, acked_number) = last.split_once(' ').expect("two numbers");
        let (acked_token, acked_number): (u64, u64) =
            (acked_token.parse().expect("a token"), acked_number.parse().expect("a number"));

        half_written += u64::from(dir.path().join("data.fence.new").exists());
        let mark = fence.marks().expect("whole marks").base.any.map_or(0, Token::get);
        let (token, number) = content(&fence);
        // The section that was killed may have entered, and may have written without having told.
        assert!((acked_token..=acked_token + 1).contains(&token), "data of {token}, told {acked_token}");
        assert_eq!(number - acked_number, token - acked_token, "one number per write");
        assert!(
            mark >= token && (acked_token..=acked_token + 1).contains(&mark),
            "mark {mark}, told {acked_token}"
        );
        inside_a_section += u64::from(mark > token);
        first = mark + 1;
    }
    println!(
        "{KILLS} kills, {inside_a_section} between mark and data, {half_written} in a replacement; {} writes stand",
        content(&fence).1
    );
    assert!(inside_a_section > 0, "no kill ever hit the middle of a section: this test shows nothing");
}

#[test]
fn processes_that_all_believe_they_hold_the_lock_lose_no_acknowledged_update() {
    const PROCESSES: u64 = 4;
    const ROUNDS: u64 = 40;
    if let Some((dir, process)) = as_child() {
        let fence = fence(&dir);
        let mut acknowledged = 0;
        for _ in 0..ROUNDS {
            // Every section believes that it has the lock by now: its token is above all that began before it.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
            let token = u64::try_from(now).expect("below 2^53 with two bits more") * PROCESSES + process;
            match write_one_more(&fence, token) {
                Ok(_) => acknowledged += 1,
                Err(FileError::Refused(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        tell(&format!("acknowledged {acknowledged}"));
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let name = "processes_that_all_believe_they_hold_the_lock_lose_no_acknowledged_update";
    let children: Vec<_> = (0..PROCESSES).map(|process| spawn(name, dir.path(), process)).collect();
    let mut acknowledged = 0;
    for mut child in children {
        let told: Vec<_> = lines(&mut child).collect();
        assert!(child.wait().expect("a child").success(), "{told:#?}");
        let count = told.iter().find_map(|line| line.strip_prefix("acknowledged ")).expect("told");
        acknowledged += count.parse::<u64>().expect("a number");
        println!("a process: {count}");
    }
    println!("{acknowledged} of {} writes acknowledged", PROCESSES * ROUNDS);
    assert_eq!(content(&fence(dir.path())).1, acknowledged);
    assert!(acknowledged > 0);
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

/// The file size limit stands for a full disk: the write of the replacement fails half way, and needs no root.
#[test]
fn a_write_that_does_not_fit_leaves_the_old_content_and_no_litter() {
    if let Some((dir, _)) = as_child() {
        // SAFETY: the process has no handler of its own for this signal; ignoring it turns it into an error.
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
        // A flock needs no right to write in the lock file, once it has its note.
        allow(&inside.join("data.fence.lock"), 0o444);
        fence.enter(exclusive(2)).expect("readable is enough");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("own");
    finished_well(spawn("a_user_without_rights_is_told_what_is_missing", dir.path(), 0));
}
