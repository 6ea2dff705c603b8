//! Large numbers of due timers are processed over several turns (M2), and the load has a bounded number of
//! prefixes.

use std::time::Duration;

use lockkeeper_core::{LockName, Oldest, WallTime, limits};
use lockkeeper_replica::{Answer, Question, TURN_VISITS_MAX};
use lockkeeper_wire::v1::{self, server_item::What};

use crate::harness::Node;
use crate::items::{acquire, granted};

/// A waiter for `x` with a wait limit of one second.
fn limited(session: u64, seq: u64) -> v1::ClientItem {
    let mut item = acquire(session, seq, "x", true);
    if let Some(v1::client_item::What::Acquire(acquire)) = &mut item.what {
        acquire.at_most_ms = Some(1_000);
    }
    item
}

fn status(node: &mut Node) -> v1::StatusResponse {
    let Answer::Status(status) = node.ask(Question::Status) else { panic!("no status") };
    *status
}

#[test]
fn simultaneous_wait_limits_end_over_several_turns() {
    const CROWD: u64 = 50_000;
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    assert!(granted(&node.send(stream, vec![acquire(session, 1, "x", true)])).is_some());
    let waiters: Vec<u64> = (2..CROWD + 2).collect();
    for some in waiters.chunks(1_000) {
        node.send(stream, some.iter().map(|&seq| limited(session, seq)).collect());
    }
    assert_eq!(status(&mut node).requests, CROWD + 1);
    node.most_visits = 0;
    node.stall(Duration::from_secs(2));
    node.pass(Duration::from_secs(3));
    let heard = node.heard(stream);
    let is_timed_out = |item: &&v1::ServerItem| matches!(item.what, Some(What::Ended(_)));
    assert_eq!(heard.iter().filter(is_timed_out).count() as u64, CROWD);
    assert_eq!(status(&mut node).requests, 1);
    let most = TURN_VISITS_MAX + (limits::WORK_PER_COMMAND_MAX as u64) * 100;
    assert!(node.most_visits <= most, "{} entries looked at in one turn", node.most_visits);
}

#[test]
fn new_leader_reads_its_timers_over_several_turns() {
    const CROWD: u64 = 1_000;
    // Each turn of this node has a minimal budget.
    let mut node = Node::with_snapshots_and_small_turns(u64::MAX);
    let stream = node.stream(1);
    let session = node.open(stream, 1, 10_000, 0);
    let mut items = vec![acquire(session, 1, "x", true)];
    items.extend((2..CROWD + 2).map(|seq| limited(session, seq)));
    node.send(stream, items);
    node.now += Duration::from_secs(60);
    let mut node = node.restart();
    assert!(node.turns > CROWD / 100, "{} turns", node.turns);
    assert_eq!(status(&mut node).requests, CROWD + 1, "nobody's time was up before it led");
    node.pass(Duration::from_millis(1_900));
    assert_eq!(status(&mut node).requests, 1, "every waiter's time began anew, and is up");
    node.pass(Duration::from_secs(8));
    assert_eq!(status(&mut node).sessions, 1, "a full ttl");
    node.pass(Duration::from_millis(400));
    assert_eq!(status(&mut node).sessions, 0);
}

#[test]
fn load_has_so_many_prefixes_at_most_each_with_its_oldest() {
    const PREFIXES_MAX: usize = 128;
    let mut node = Node::new();
    node.wall = WallTime(7_000);
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    for seq in 1..=3 * PREFIXES_MAX as u64 {
        node.send(stream, vec![acquire(session, seq, &format!("p{seq}/x"), true)]);
    }
    let prefixes = ["p384", "gone"].map(|prefix| LockName::parse(prefix).unwrap());
    let Answer::Load(load) = node.ask(Question::Load { prefixes: prefixes.to_vec(), segments: 1 }) else {
        panic!("no load")
    };
    assert_eq!(load.prefixes.len(), PREFIXES_MAX);
    assert_eq!([&load.prefixes[0].0.prefix, &load.prefixes[1].0.prefix], prefixes.each_ref());
    for (prefix, oldest) in load.prefixes {
        let hold = (prefix.prefix != prefixes[1]).then_some(node.wall);
        assert_eq!((prefix.holds, oldest), (u64::from(hold.is_some()), Oldest { hold, waiter: None }));
    }
}
