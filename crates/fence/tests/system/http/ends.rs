//! Processes that are killed, restarted, limited, or that compete for the same marks.
//!
//! Such a test runs itself again as a child process: with `CHILD` set, it acts as the child and does not run
//! the parent's part.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use lockkeeper_fence::http::Rules;
use lockkeeper_fence::{Action, DurableMarks, MarkStore, MarksError, Refused, Section, Token};
use nix::sys::resource::{Resource as Limit, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::http::rig::{Service, resource};

/// The environment variables with the child's directory and its argument.
const CHILD: &str = "LOCKKEEPER_FENCE_TEST_CHILD";
const ARGUMENT: &str = "LOCKKEEPER_FENCE_TEST_ARGUMENT";

fn exclusive(value: u64) -> Section {
    Section::exclusive(Token::new(value).expect("a token"))
}

fn as_child() -> Option<(PathBuf, u64)> {
    let dir = env::var_os(CHILD)?;
    let argument = env::var(ARGUMENT).expect("set with the directory");
    Some((dir.into(), argument.parse().expect("a number")))
}

/// Runs the test `name` of this module as a child. The child reports on stderr, since the test harness writes
/// to stdout.
fn spawn(name: &str, dir: &Path, argument: u64) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args(["--exact", &format!("http::ends::{name}"), "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .env(ARGUMENT, argument.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child")
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stderr.take().expect("piped")).lines().map(|line| line.expect("text"))
}

/// Prints a line in one write call, so that a kill never leaves a partial line.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

fn open(dir: &Path) -> DurableMarks {
    DurableMarks::open(dir.join("marks.redb")).expect("marks")
}

async fn enter(marks: &DurableMarks, name: &str, token: u64) -> Result<(), MarksError> {
    marks.check(&resource(name), Action::Enter, exclusive(token)).await.map(|_| ())
}

/// The number of resources that the child of the kill loop enters concurrently.
const LANES: u64 = 4;

#[test]
fn a_kill_at_any_point_forgets_no_mark_that_was_acknowledged() {
    const KILLS: u64 = 60;
    let name = "a_kill_at_any_point_forgets_no_mark_that_was_acknowledged";
    if let Some((dir, first)) = as_child() {
        run(async move {
            let marks = std::sync::Arc::new(open(&dir));
            // The resources are entered concurrently, so that commits are shared.
            let lanes: Vec<_> = (0..LANES)
                .map(|lane| {
                    let marks = std::sync::Arc::clone(&marks);
                    tokio::spawn(async move {
                        for token in first.. {
                            enter(&marks, &format!("lane {lane}"), token).await.expect("alone");
                            tell(&format!("{lane} {token}"));
                        }
                    })
                })
                .collect();
            for lane in lanes {
                lane.await.expect("it never ends");
            }
        });
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (mut first, mut ahead, mut acknowledged) = (1, 0, 0);
    for kill in 0..KILLS {
        let mut child = spawn(name, dir.path(), first);
        let mut told = lines(&mut child);
        let mut last = vec![told.next().expect("at least one enter")];
        // The times of the kills are spread over a few commits. The delays are fixed; the scheduling is not.
        thread::sleep(Duration::from_micros(kill * 7919 % 3001));
        child.kill().expect("killed");
        child.wait().expect("gone");
        last.extend(told);
        acknowledged += last.len();
        let marks = open(dir.path());
        for lane in 0..LANES {
            let prefix = format!("{lane} ");
            let token = last.iter().filter_map(|line| line.strip_prefix(&prefix)).next_back();
            let token = token.map_or(0, |token| token.parse::<u64>().expect("a token"));
            let mark = run(marks.marks(&resource(&format!("lane {lane}")))).expect("readable");
            let mark = mark.base.any.map_or(0, Token::get);
            assert!(mark >= token, "lane {lane}: mark {mark}, acknowledged {token}");
            ahead += u64::from(token > 0 && mark > token);
            first = first.max(mark + 1);
        }
    }
    println!(
        "{KILLS} kills, {acknowledged} enters acknowledged, {ahead} marks durable that were not yet told"
    );
    assert!(ahead > 0, "no kill ever hit between a commit and its answer: this test shows nothing");
}

#[tokio::test]
async fn restarted_service_keeps_its_marks() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Service::with(open(dir.path()), Rules::default()).await;
    assert_eq!(service.ask("PUT /a|Fencing-Token: 7||1").await.status, 200);
    let permit = "PUT /p|Fencing-Mode: permit;slot=3|Fencing-Token";
    assert_eq!(service.ask(&format!("{permit}: 9||1")).await.status, 200);
    let address = service.address;
    drop(service);
    // The service's tasks keep the marks open until their connections are closed.
    let mut again = None;
    crate::http::rig::until("the marks free", async || {
        again = DurableMarks::open(dir.path().join("marks.redb")).ok();
        again.is_some()
    })
    .await;
    let service = Service::with(again.expect("opened"), Rules::default()).await;
    assert_ne!(service.address, address, "another service");
    assert_eq!(service.ask("PUT /a|Fencing-Token: 6||1").await.problem(), "stale");
    assert_eq!(service.ask("PUT /a|Fencing-Token: 7||1").await.status, 200);
    assert_eq!(service.ask(&format!("{permit}: 8||1")).await.problem(), "stale");
    assert_eq!(service.ask("PUT /p|Fencing-Mode: permit;slot=4|Fencing-Token: 1||1").await.status, 200);
}

#[test]
fn two_processes_can_not_keep_the_same_marks() {
    let name = "two_processes_can_not_keep_the_same_marks";
    if let Some((dir, _)) = as_child() {
        let _marks = open(&dir);
        tell("open");
        loop {
            thread::park();
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = spawn(name, dir.path(), 0);
    assert_eq!(lines(&mut child).next().as_deref(), Some("open"));
    let error = DurableMarks::open(dir.path().join("marks.redb")).expect_err("in use");
    assert!(matches!(error, MarksError::InUse { .. }), "{error:?}");
    child.kill().expect("killed");
    child.wait().expect("gone");
    open(dir.path());
}

/// The file size limit simulates a full disk without root: the write fails half-way.
#[test]
fn a_full_disk_lets_nothing_through_and_loses_nothing() {
    let name = "a_full_disk_lets_nothing_through_and_loses_nothing";
    if let Some((dir, _)) = as_child() {
        // SAFETY: the process has no handler of its own for this signal. With the signal ignored, a write
        // above the limit returns an error instead of ending the process.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.expect("ignored");
        let (_, hard) = getrlimit(Limit::RLIMIT_FSIZE).expect("a limit");
        let limit = |bytes| setrlimit(Limit::RLIMIT_FSIZE, bytes, hard).expect("below the hard limit");
        run(async {
            let marks = open(&dir);
            enter(&marks, "a", 5).await.expect("room");
            limit(4096);
            let error = enter(&marks, "a", 6).await.expect_err("no room");
            let MarksError::NotDurable(cause) = &error else { panic!("{error:?}") };
            assert!(cause.to_string().contains("marks.redb"), "{cause}");
            let stale = enter(&marks, "a", 5).await.expect_err("6 was here");
            assert!(matches!(stale, MarksError::Refused(Refused::Stale { .. })), "{stale:?}");
            enter(&marks, "b", 1).await.expect_err("no room");
            limit(hard);
            enter(&marks, "a", 6).await.expect("the same token asks again");
            enter(&marks, "b", 1).await.expect("room again");
            drop(marks);
            let marks = open(&dir);
            let stale = enter(&marks, "a", 5).await.expect_err("kept");
            assert!(matches!(stale, MarksError::Refused(Refused::Stale { .. })), "{stale:?}");
            enter(&marks, "a", 6).await.expect("kept");
        });
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = spawn(name, dir.path(), 0);
    let told: Vec<_> = lines(&mut child).collect();
    assert!(child.wait().expect("a child").success(), "{told:#?}");
}

/// A failure to make marks durable is not a refusal by the rule: the client may retry, and the response
/// contains no paths.
#[test]
fn a_service_whose_disk_is_full_answers_503() {
    let name = "a_service_whose_disk_is_full_answers_503";
    if let Some((dir, _)) = as_child() {
        // SAFETY: as above.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.expect("ignored");
        let (_, hard) = getrlimit(Limit::RLIMIT_FSIZE).expect("a limit");
        run(async {
            let service = Service::with(open(&dir), Rules::default()).await;
            setrlimit(Limit::RLIMIT_FSIZE, 4096, hard).expect("below the hard limit");
            let refused = service.ask("PUT /a|Fencing-Token: 5||1").await;
            assert_eq!((refused.status, refused.problem()), (503, "unavailable"));
            assert!(refused.head.contains("retry-after") && !refused.body.contains("redb"), "{refused:?}");
            assert_eq!(service.book.number("/a"), 0, "no handler ran");
            setrlimit(Limit::RLIMIT_FSIZE, hard, hard).expect("as before");
            assert_eq!(service.ask("PUT /a|Fencing-Token: 5||1").await.status, 200);
        });
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = spawn(name, dir.path(), 0);
    let told: Vec<_> = lines(&mut child).collect();
    assert!(child.wait().expect("a child").success(), "{told:#?}");
}

/// Random checks compared with the rule, on a store that is closed and reopened repeatedly.
#[test]
fn durable_marks_answer_as_the_rule_does_over_restarts() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut random = fastrand::Rng::with_seed(6);
    let mut oracle = std::collections::HashMap::<String, lockkeeper_fence::Marks>::new();
    let (mut passed, mut refused) = (0, 0);
    run(async {
        for restart in 0..12 {
            let marks = open(dir.path());
            for _ in 0..60 {
                let name = format!("r{}", random.u8(0..4));
                let token = Token::new(random.u64(1..40) + restart * 20).expect("a token");
                let section = match random.u8(0..4) {
                    0 => Section::shared(token),
                    1 => Section::permit(random.u32(0..3), token).expect("a slot"),
                    _ => Section::exclusive(token),
                };
                let action =
                    *random.choice(&[Action::Enter, Action::Write, Action::CheckOnce]).expect("three");
                let expected = oracle.entry(name.clone()).or_default().check(action, section);
                match (marks.check(&resource(&name), action, section).await, expected) {
                    (Ok(got), Ok(expected)) => {
                        assert_eq!(got, expected);
                        passed += 1;
                    }
                    (Err(MarksError::Refused(got)), Err(expected)) => {
                        assert_eq!(got, expected);
                        refused += 1;
                    }
                    other => panic!("{action} {section:?} at {name}: {other:?}"),
                }
            }
        }
        let marks = open(dir.path());
        for (name, expected) in &oracle {
            assert_eq!(&marks.marks(&resource(name)).await.expect("kept"), expected);
        }
    });
    assert!(passed > 50 && refused > 50, "{passed} passed, {refused} refused");
}
