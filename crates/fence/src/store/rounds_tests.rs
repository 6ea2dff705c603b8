//! Group commit without a disk: which checks share a commit, and the state after a failed commit.

use std::io;

use lockkeeper_core::Token;

use super::*;
use crate::rule::{Action, Refused, Section};

fn exclusive(value: u64) -> Section {
    Section::exclusive(Token::new(value).expect("a token"))
}

fn name(text: &str) -> Resource {
    Resource::new(text).expect("a name")
}

/// A `GroupCommit` that has the default marks of `resources` in memory.
fn knowing(resources: &[&str]) -> GroupCommit {
    let mut rounds = GroupCommit::new(10);
    let mut told: Vec<CommitReceiver> = Vec::new();
    for resource in resources {
        match enter(&mut rounds, resource, 1) {
            Ok(Decision::Load(loaded)) => told.push(loaded),
            other => panic!("{other:?}"),
        }
    }
    finish(&mut rounds, Ok(()));
    assert!(told.iter_mut().all(|told| told.try_recv().is_ok_and(|loaded| loaded.is_ok())));
    rounds
}

fn enter(rounds: &mut GroupCommit, resource: &str, token: u64) -> Result<Decision<Passed>, Refused> {
    rounds.decide(&name(resource), |marks| marks.check(Action::Enter, exclusive(token)))
}

#[track_caller]
fn waits(rounds: &mut GroupCommit, resource: &str, token: u64) -> CommitReceiver {
    match enter(rounds, resource, token) {
        Ok(Decision::With(_, told)) => told,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn is_answered_at_once(rounds: &mut GroupCommit, resource: &str, token: u64) {
    let decision = enter(rounds, resource, token);
    assert!(matches!(decision, Ok(Decision::Now(Passed::Unchanged))), "{decision:?}");
}

/// Commits a whole batch with the outcome `how`; returns the committed changes.
fn finish(rounds: &mut GroupCommit, how: Result<(), MarksError>) -> Vec<(Resource, Marks)> {
    let (work, loads) = rounds.take();
    let loaded = work.loads.iter().map(|_| Ok(Marks::default())).collect();
    rounds.settle(loads, loaded, &how);
    work.changes
}

fn fault() -> MarksError {
    let source = Arc::new(io::Error::from(io::ErrorKind::StorageFull));
    MarksError::Io { doing: "write", path: "marks".into(), source }
}

#[test]
fn checks_during_a_commit_share_the_next_commit() {
    let mut rounds = knowing(&["a", "b", "c"]);
    let mut first = waits(&mut rounds, "a", 1);
    let (work, loads) = rounds.take();
    assert_eq!(work.changes.len(), 1);

    let mut next = [
        waits(&mut rounds, "a", 2),
        waits(&mut rounds, "a", 3),
        waits(&mut rounds, "b", 1),
        waits(&mut rounds, "b", 1),
        waits(&mut rounds, "c", 7),
    ];
    rounds.settle(loads, Vec::new(), &Ok(()));
    assert!(first.try_recv().expect("told").is_ok());
    assert!(next.iter_mut().all(|told| told.try_recv().is_err()), "not durable yet");

    let changes = finish(&mut rounds, Ok(()));
    assert_eq!(changes.len(), 3, "each resource once: {changes:?}");
    assert!(next.iter_mut().all(|told| told.try_recv().expect("told").is_ok()));
    assert!(rounds.is_idle());
}

#[test]
fn repeated_token_completes_at_once_when_its_mark_is_durable() {
    let mut rounds = knowing(&["a"]);
    let mut first = waits(&mut rounds, "a", 4);
    let mut again = waits(&mut rounds, "a", 4);
    let (_, loads) = rounds.take();
    let mut during = waits(&mut rounds, "a", 4);
    assert!(rounds.is_idle(), "the same mark asks for no commit of its own");
    rounds.settle(loads, Vec::new(), &Ok(()));
    for told in [&mut first, &mut again, &mut during] {
        assert!(told.try_recv().expect("told").is_ok());
    }
    is_answered_at_once(&mut rounds, "a", 4);
    assert!(matches!(enter(&mut rounds, "a", 3), Err(Refused::Stale { .. })));
    assert!(rounds.is_idle());
}

#[test]
fn failed_commit_fails_its_checks_and_keeps_the_raised_mark() {
    let mut rounds = knowing(&["a"]);
    let mut first = waits(&mut rounds, "a", 4);
    finish(&mut rounds, Err(fault()));
    assert!(matches!(first.try_recv().expect("told"), Err(MarksError::NotDurable(_))));
    assert!(matches!(enter(&mut rounds, "a", 3), Err(Refused::Stale { .. })), "no mark ever falls");
    assert!(rounds.is_idle(), "nothing is tried again that nobody asks for");

    let mut again = waits(&mut rounds, "a", 4);
    assert_eq!(finish(&mut rounds, Ok(())).len(), 1, "the same token asks for its commit again");
    assert!(again.try_recv().expect("told").is_ok());
    is_answered_at_once(&mut rounds, "a", 4);
}

#[test]
fn round_is_not_settled_by_an_earlier_commit() {
    let mut rounds = knowing(&["a"]);
    let mut four = waits(&mut rounds, "a", 4);
    let (_, loads) = rounds.take();
    let mut five = waits(&mut rounds, "a", 5);
    rounds.settle(loads, Vec::new(), &Ok(()));
    assert!(four.try_recv().expect("told").is_ok());
    let mut again = waits(&mut rounds, "a", 5);
    finish(&mut rounds, Err(fault()));
    assert!(five.try_recv().expect("told").is_err() && again.try_recv().expect("told").is_err());
}

#[test]
fn eviction_drops_durable_entries_only() {
    let names: Vec<String> = (0..10).map(|number| format!("r{number}")).collect();
    let mut rounds = knowing(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let _lost = waits(&mut rounds, "r0", 9);
    finish(&mut rounds, Err(fault()));
    for extra in ["x", "y"] {
        let loading = enter(&mut rounds, extra, 1);
        assert!(matches!(loading, Ok(Decision::Load(_))), "{loading:?}");
        finish(&mut rounds, Ok(()));
    }
    finish(&mut rounds, Ok(()));
    assert!(rounds.resources.len() <= 10, "{} resources", rounds.resources.len());
    assert!(matches!(enter(&mut rounds, "r0", 8), Err(Refused::Stale { .. })), "its mark is in memory only");
}

#[test]
fn end_cancels_all_waiting_checks() {
    let mut rounds = knowing(&["a", "b"]);
    let mut committing = waits(&mut rounds, "a", 1);
    let _work = rounds.take();
    let mut collecting = waits(&mut rounds, "b", 1);
    let Ok(Decision::Load(mut loading)) = enter(&mut rounds, "c", 1) else { panic!("never seen") };
    rounds.end();
    for told in [&mut committing, &mut collecting, &mut loading] {
        assert_eq!(told.try_recv().expect_err("ended"), oneshot::error::TryRecvError::Closed);
    }
}
