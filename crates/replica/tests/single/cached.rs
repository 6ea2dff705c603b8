//! Cached holds: their blocks of tokens, recalls that are told again, and requests that are put off (C3–C6).

use std::time::Duration;

use lockkeeper_core::{Page, WallTime};
use lockkeeper_replica::{Answer, Question, StreamId};
use lockkeeper_wire::v1::{self, client_item, server_item::What};

use crate::harness::Node;
use crate::items::{acquire, attach, bodies, finish, keep_alive};

/// A node whose token counter is far behind its clock, with two sessions on one stream.
fn node() -> (Node, StreamId, u64, u64) {
    let mut node = Node::new();
    node.wall = WallTime(1_800_000_000_000);
    let stream = node.stream(1);
    let (a, b) = (node.open(stream, 1, 10_000, 0), node.open(stream, 2, 10_000, 0));
    (node, stream, a, b)
}

fn cached(session: u64, seq: u64, name: &str) -> v1::ClientItem {
    let mut item = acquire(session, seq, name, true);
    if let Some(client_item::What::Acquire(acquire)) = &mut item.what {
        acquire.spare_tokens = 15;
    }
    item
}

fn settle(session: u64, seq: u64, target: u64) -> v1::ClientItem {
    let what = client_item::What::Settle(v1::Settle { seq, target, done_through: 0 });
    v1::ClientItem { session, what: Some(what) }
}

fn recalled(heard: &[(u64, What)]) -> Option<&[u64]> {
    heard.iter().find_map(|(_, what)| match what {
        What::KeptAlive(v1::KeptAlive { recalled, .. }) | What::Attached(v1::Attached { recalled, .. }) => {
            Some(&recalled[..])
        }
        _ => None,
    })
}

#[test]
fn recall_is_told_at_once_and_again_until_the_hold_is_settled() {
    let (mut node, stream, a, b) = node();
    let heard = bodies(node.send(stream, vec![cached(a, 1, "x")]));
    let [(1, What::Granted(v1::Granted { token, spare_tokens: 15, .. }))] = heard[..] else {
        panic!("{heard:?}")
    };
    let heard = node.send(stream, vec![acquire(b, 1, "x", true)]);
    assert!(
        matches!(heard[..], [v1::ServerItem { what: Some(What::Queued(_)), .. }, v1::ServerItem { session, seq: 1, what: Some(What::Recalled(_)) }] if session == a),
        "{heard:?}"
    );
    assert_eq!(recalled(&bodies(node.send(stream, vec![keep_alive(a, 1)]))), Some(&[1][..]));
    assert_eq!(recalled(&bodies(node.send(stream, vec![keep_alive(b, 1)]))), Some(&[][..]));
    // A new leader reads it from the table.
    let mut node = node.restart();
    let stream = node.stream(2);
    assert_eq!(recalled(&bodies(node.send(stream, vec![attach(a, 1, 2)]))), Some(&[1][..]));
    let Answer::Described(v1::DescribeResponse { lock: Some(lock) }) =
        node.ask(Question::Describe { name: "x".parse().unwrap(), page: Page::first(1) })
    else {
        panic!("not described")
    };
    let hold = &lock.holds[0];
    assert_eq!((hold.token, hold.spare_tokens, hold.cached, hold.recalled), (token, 15, true, true));
    assert!(matches!(bodies(node.send(stream, vec![settle(a, 2, 1)]))[..], [(2, What::Done(_))]));
    assert_eq!(recalled(&bodies(node.send(stream, vec![keep_alive(a, 2)]))), Some(&[][..]));
    node.send(stream, vec![attach(b, 2, 2)]);
    let heard = bodies(node.send(stream, vec![finish(a, 3, 1)]));
    let next = heard.iter().find_map(|(_, what)| match what {
        What::Granted(granted) => Some((granted.token, granted.spare_tokens)),
        _ => None,
    });
    assert_eq!(next, Some((token + 16, 0)), "{heard:?}");
}

#[test]
fn try_is_put_off_until_the_holder_has_answered() {
    let (mut node, stream, a, b) = node();
    let queued = |heard: &[(u64, What)]| matches!(heard, [(_, What::Queued(_)), (_, What::Recalled(_))]);
    node.send(stream, vec![cached(a, 1, "x"), cached(a, 2, "y"), cached(a, 3, "z")]);
    assert!(queued(&bodies(node.send(stream, vec![acquire(b, 1, "x", false)]))));
    let heard = bodies(node.send(stream, vec![finish(a, 4, 1)]));
    assert!(matches!(heard[..], [(4, What::Finished(_)), (1, What::Granted(_))]), "{heard:?}");
    assert!(queued(&bodies(node.send(stream, vec![acquire(b, 2, "y", false)]))));
    let heard = bodies(node.send(stream, vec![settle(a, 5, 2)]));
    let timed_out = |what: &What| matches!(what, What::Ended(it) if it.end() == v1::End::TimedOut);
    assert!(matches!(&heard[..], [(5, What::Done(_)), (2, what)] if timed_out(what)), "{heard:?}");
    // The holder doesn't answer.
    assert!(queued(&bodies(node.send(stream, vec![acquire(b, 3, "z", false)]))));
    node.pass(Duration::from_millis(900));
    assert_eq!(bodies(node.heard(stream)), []);
    node.pass(Duration::from_millis(200));
    let heard = bodies(node.heard(stream));
    assert!(matches!(&heard[..], [(3, what)] if timed_out(what)), "{heard:?}");
}

/// The counter of this node is a million; its clock is at the beginning of 2026, so blocks would pass it.
#[test]
fn counter_near_the_clock_grants_no_block() {
    let (mut node, stream, a, _) = node();
    node.wall = WallTime(1_767_225_600_000 + 1_000);
    let heard = bodies(node.send(stream, vec![cached(a, 1, "x")]));
    assert!(matches!(heard[..], [(1, What::Granted(v1::Granted { spare_tokens: 0, .. }))]), "{heard:?}");
    node.pass(Duration::from_secs(1));
    node.wall = WallTime(1_767_225_600_000 + 2_000);
    let heard = bodies(node.send(stream, vec![cached(a, 2, "y")]));
    assert!(matches!(heard[..], [(2, What::Granted(v1::Granted { spare_tokens: 15, .. }))]), "{heard:?}");
}
