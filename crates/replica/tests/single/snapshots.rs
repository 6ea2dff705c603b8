//! Snapshots, and starting from one.

use crate::harness::Node;
use crate::items::{acquire, attach, finish, granted};

#[test]
fn a_restart_from_a_snapshot_goes_on_where_the_log_ended() {
    let mut node = Node::with_snapshots(2_000);
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

#[test]
fn a_restart_in_the_middle_of_a_snapshot_uses_the_one_before() {
    let mut node = Node::with_snapshots(500);
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
