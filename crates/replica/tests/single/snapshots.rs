//! Snapshots, and restarts from them.

use lockkeeper_core::{Page, WallTime};
use lockkeeper_replica::storage::SECTOR_BYTES;
use lockkeeper_replica::{Answer, Event, Question};
use lockkeeper_wire::v1::{self, RefusedCode};

use crate::harness::{Node, frame};
use crate::items::{acquire, attach, finish, granted};

#[test]
fn restart_from_a_snapshot_restores_the_end_of_the_log() {
    let mut node = Node::with_snapshots(16_000);
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    let mut seq = 0;
    for round in 0..300 {
        seq += 1;
        let name = format!("lock/{}", round % 7);
        let held = granted(&node.send(stream, vec![acquire(session, seq, &name, true)]));
        assert!(held.is_some(), "round {round}");
        seq += 1;
        if round < 293 {
            node.send(stream, vec![finish(session, seq, seq - 1)]);
        }
    }
    assert!(node.compacted > 100, "the log was cut at {}", node.compacted);
    let (digest, token) = (node.digest(), node.last_token());
    let mut node = node.restart();
    assert_eq!((node.digest(), node.last_token()), (digest, token));
    let stream = node.stream(2);
    node.send(stream, vec![attach(session, 1, 2)]);
    let next = node.send(stream, vec![acquire(session, seq + 1, "another", true)]);
    assert_eq!(granted(&next).unwrap().get(), token + 1);
}

/// A restart applies every entry after the snapshot, so no part of those entries may be in the snapshot.
/// Where each request is alone in its record, the log is many times the size of the entries: the disk of a
/// node of little load was full before a snapshot was due.
#[test]
fn log_on_the_disk_is_bounded_also_where_each_request_has_a_record() {
    const SNAPSHOT_AFTER: u64 = 64 * SECTOR_BYTES as u64;
    let mut node = Node::with_snapshots(SNAPSHOT_AFTER);
    let mut longest = 0;
    // Restarts count what the log has already.
    for life in 1..=12u8 {
        let stream = node.stream(u64::from(life));
        let session = node.open(stream, life, 60_000, 0);
        for seq in (1..50).step_by(2) {
            node.send(stream, vec![acquire(session, seq, "x", false)]);
            node.send(stream, vec![finish(session, seq + 1, seq)]);
            longest = longest.max(node.log_bytes());
        }
        node = node.restart();
    }
    assert!((SNAPSHOT_AFTER / 2..=SNAPSHOT_AFTER).contains(&longest), "{longest}");
}

#[test]
fn snapshot_never_begins_within_an_entry() {
    let mut node = Node::with_snapshots_and_small_turns(1_600);
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    node.snapshot_steps = 1;
    for seq in (1..100).step_by(2) {
        node.send(stream, vec![acquire(session, seq, "x", true), finish(session, seq + 1, seq)]);
    }
    assert_eq!(node.compacted, 0, "a snapshot is under way, and another one due");
    // The first snapshot completes while this entry is applied, one command per turn.
    let items = (101..150).map(|seq| acquire(session, seq, &format!("y/{seq}"), true)).collect();
    node.quick_disk_and(vec![frame(stream, items)]);
    assert_eq!(node.heard(stream).len(), 49);
    assert!(node.compacted > 0, "one was stored");
    let digest = node.digest();
    assert_eq!(node.restart().digest(), digest);
}

#[test]
fn restart_during_a_snapshot_uses_the_previous_one() {
    let mut node = Node::with_snapshots(4_000);
    let mut stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    let mut compacted = 0;
    for seq in 1..80 {
        node.snapshot_steps = seq % 6;
        let held = granted(&node.send(stream, vec![acquire(session, seq, &format!("x/{seq}"), true)]));
        assert!(held.is_some(), "{seq}");
        let digest = node.digest();
        compacted = compacted.max(node.compacted);
        node = node.restart();
        assert_eq!(node.digest(), digest, "after {seq}");
        stream = node.stream(100 + seq);
        node.send(stream, vec![attach(session, 1, 1 + seq)]);
    }
    assert!(compacted > 0, "some were finished");
}

/// Opens a session that holds `count` locks.
fn with_holds(node: &mut Node, count: u64) {
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    for seq in 1..=count {
        assert!(
            granted(&node.send(stream, vec![acquire(session, seq, &format!("x/{seq}"), true)])).is_some()
        );
    }
}

#[test]
fn backup_has_everything_answered_before_its_call() {
    let mut node = Node::new();
    with_holds(&mut node, 20);
    let answer = node.ask(Question::Backup);
    let (index, digest) = node.stored();
    assert_eq!(answer, Answer::BackupStored { index, last_token: node.last_token() });
    assert_eq!(digest, node.digest());
    assert_eq!(node.compacted, index, "it is as good as any other for cutting the log");
}

#[test]
fn snapshot_in_progress_is_not_used_for_a_backup() {
    let mut node = Node::with_snapshots(1_600);
    node.snapshot_steps = 1;
    with_holds(&mut node, 20);
    // The snapshot in progress is older than these holds.
    let first = node.asked(Question::Backup);
    let second = node.asked(Question::Backup);
    let gone = node.asked(Question::Backup);
    assert!([first, second].map(|ask| node.answered(ask)) == [None, None], "nothing is stored yet");
    node.turn(vec![Event::Dropped(gone)]);
    node.quick_disk();
    let (index, digest) = node.stored();
    assert_eq!(digest, node.digest());
    let stored = Some(Answer::BackupStored { index, last_token: node.last_token() });
    assert_eq!([first, second].map(|ask| node.answered(ask)), [stored.clone(), stored], "one goes for both");
    assert_eq!(node.answered(gone), None);
}

#[test]
fn failed_backup_is_refused_and_the_next_one_succeeds() {
    let mut node = Node::new();
    with_holds(&mut node, 20);
    node.snapshot_steps = 1;
    let ask = node.asked(Question::Backup);
    assert_eq!(node.answered(ask), None);
    node.failed_disk();
    match node.answered(ask) {
        Some(Answer::Refused(refused)) => {
            assert_eq!(refused.code(), RefusedCode::Operator);
            assert!(refused.text.contains("its log says why"), "{refused:?}");
        }
        other => panic!("not refused: {other:?}"),
    }
    node.snapshot_steps = u64::MAX;
    assert!(matches!(node.ask(Question::Backup), Answer::BackupStored { .. }));
    assert_eq!(node.stored().1, node.digest());
}

/// E3: by the wall clock of the leader, which may be set back; restarts from a snapshot and from the log.
#[test]
fn since_when_survives_restarts() {
    let mut node = Node::with_snapshots(16_000);
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    let at = |node: &mut Node, ms: u64| node.wall = WallTime(ms);
    at(&mut node, 5_000);
    node.send(stream, vec![acquire(session, 1, "x", true)]);
    at(&mut node, 3_000);
    node.send(stream, vec![acquire(session, 2, "x", true)]);
    let shown = |node: &mut Node| {
        let question = Question::Describe { name: "x".parse().unwrap(), page: Page::first(10) };
        let Answer::Described(v1::DescribeResponse { lock: Some(lock) }) = node.ask(question) else {
            panic!("not described")
        };
        let (hold, waiter) = (&lock.holds[0], &lock.waiters[0]);
        [(hold.since_unix_ms, hold.held_for_ms), (waiter.since_unix_ms, waiter.waiting_for_ms)]
    };
    assert_eq!(shown(&mut node), [(5_000, Some(0)), (3_000, Some(0))], "no age is negative");
    for seq in (3..200).step_by(2) {
        node.send(stream, vec![acquire(session, seq, "y", true), finish(session, seq + 1, seq)]);
    }
    assert!(node.compacted > 0, "a snapshot was stored");
    for _ in 0..2 {
        node = node.restart();
        at(&mut node, 9_000);
        assert_eq!(shown(&mut node), [(5_000, Some(4_000)), (3_000, Some(6_000))]);
    }
    // The waiter's grant follows from a release: its time is that of the release.
    let stream = node.stream(2);
    node.send(stream, vec![attach(session, 1, 2)]);
    node.send(stream, vec![finish(session, 201, 1)]);
    node.send(stream, vec![acquire(session, 202, "x", true)]);
    assert_eq!(shown(&mut node), [(9_000, Some(0)), (9_000, Some(0))]);
}
