//! Watches: the initial state first, then changes, including locks that became free.

use lockkeeper_replica::{Answer, AskId, Event, Question};
use lockkeeper_wire::v1::{self, watch_response::What};

use crate::harness::Node;
use crate::items::{acquire, finish};

fn names(told: &[v1::WatchResponse]) -> Vec<String> {
    let name = |told: &v1::WatchResponse| match told.what.as_ref().unwrap() {
        What::State(lock) => format!("state {} {}", lock.name, lock.holds.len()),
        What::Synced(_) => "synced".into(),
        What::Changed(lock) => format!("{} {} {}", lock.name, lock.holds.len(), lock.waiter_count),
    };
    told.iter().map(name).collect()
}

#[test]
fn watcher_receives_the_state_then_every_change() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    node.send(stream, vec![acquire(session, 1, "jobs/a", true), acquire(session, 2, "other", true)]);
    let Answer::Watched(told) = node.ask(Question::Watch { prefix: Some("jobs".parse().unwrap()) }) else {
        panic!("not watched")
    };
    assert_eq!(names(&told), ["state jobs/a 1", "synced"]);
    let ask = AskId(1);
    node.send(stream, vec![acquire(session, 3, "jobs/b", true), acquire(session, 4, "jobs/a", true)]);
    assert_eq!(names(&node.watched(ask)), ["jobs/a 1 1", "jobs/b 1 0"]);
    node.send(stream, vec![acquire(session, 5, "elsewhere", true)]);
    assert!(node.watched(ask).is_empty());
    node.send(stream, vec![finish(session, 6, 3)]);
    assert_eq!(names(&node.watched(ask)), ["jobs/b 0 0"], "a vacancy is an event");
    node.turn(vec![Event::Dropped(ask)]);
    node.send(stream, vec![acquire(session, 7, "jobs/c", true)]);
    assert!(node.watched(ask).is_empty());
}

fn subtree(session: u64, seq: u64, name: &str) -> v1::ClientItem {
    let mut item = acquire(session, seq, name, true);
    if let Some(v1::client_item::What::Acquire(acquire)) = &mut item.what {
        acquire.subtree = true;
    }
    item
}

/// A permission to watch a name includes no permission to read the names above it.
#[test]
fn change_above_the_prefix_shows_the_prefix_and_only_subtree_holds_that_cover_it() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 60_000, 0);
    let Answer::Watched(told) = node.ask(Question::Watch { prefix: Some("shop/jobs".parse().unwrap()) })
    else {
        panic!("not watched")
    };
    assert_eq!(names(&told), ["synced"]);
    let ask = AskId(1);
    node.send(stream, vec![acquire(session, 1, "shop", true)]);
    assert_eq!(names(&node.watched(ask)), ["shop/jobs 0 0"], "the hold of `shop` is not shown");
    node.send(stream, vec![finish(session, 2, 1), subtree(session, 3, "shop")]);
    let told = node.watched(ask);
    assert_eq!(names(&told), ["shop/jobs 1 0"]);
    let What::Changed(lock) = told[0].what.as_ref().unwrap() else { panic!("{told:?}") };
    assert!(lock.holds[0].subtree, "{lock:?}");
}
