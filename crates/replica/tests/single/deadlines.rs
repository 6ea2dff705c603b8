//! Deadlines: leases, linger, wait limits, breaks.

use std::time::Duration;

use lockkeeper_core::{Break, SessionId};
use lockkeeper_replica::{Answer, Event, Question, StreamCloseCause, StreamId};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, server_item::What};

use crate::harness::Node;
use crate::items::{acquire, attach, bodies, finish, granted, keep_alive};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn is_free(node: &mut Node, name: &str) -> bool {
    let question = Question::Describe { name: name.parse().unwrap(), page: lockkeeper_core::Page::first(1) };
    let Answer::Described(v1::DescribeResponse { lock: Some(lock) }) = node.ask(question) else {
        panic!("not described")
    };
    lock.holds.is_empty()
}

/// A node whose stream 1 carries one session, which holds `x`.
fn holding(ttl: u64, linger: u64) -> (Node, StreamId, u64) {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, ttl, linger);
    assert!(granted(&node.send(stream, vec![acquire(session, 1, "x", true)])).is_some());
    (node, stream, session)
}

#[test]
fn silent_session_expires_after_its_ttl() {
    let (mut node, stream, session) = holding(10_000, 0);
    node.pass(seconds(9));
    node.send(stream, vec![keep_alive(session, 1)]);
    node.pass(Duration::from_millis(9_900));
    assert!(!is_free(&mut node, "x"), "a keep-alive moved its deadline");
    node.pass(Duration::from_millis(300));
    assert!(is_free(&mut node, "x"));
    assert!(matches!(bodies(node.heard(stream))[..], [.., (0, What::SessionGone(_))]));
}

#[test]
fn grant_does_not_renew_a_lease() {
    let (mut node, stream, session) = holding(10_000, 0);
    node.pass(seconds(9));
    node.send(stream, vec![acquire(session, 2, "y", true)]);
    node.pass(seconds(2));
    assert!(is_free(&mut node, "x"));
}

#[test]
fn node_stall_expires_no_session() {
    let (mut node, stream, session) = holding(1_000, 0);
    let waiter = node.open(stream, 2, 1_000, 0);
    node.send(stream, vec![acquire(waiter, 1, "x", true)]);
    node.stall(seconds(3_600));
    node.send(stream, vec![keep_alive(session, 1), keep_alive(waiter, 1)]);
    node.pass(Duration::from_millis(900));
    assert!(!is_free(&mut node, "x"));
    let heard = node.send(stream, vec![finish(session, 2, 1)]);
    assert!(heard.iter().any(|item| item.session == waiter), "the waiter kept its place");
}

#[test]
fn earlier_input_is_handled_before_an_expiry() {
    let (mut node, stream, session) = holding(1_000, 0);
    node.drains = false;
    node.pass(seconds(3));
    assert!(!is_free(&mut node, "x"), "nothing ends before the input is drained");
    let barrier = node.held_drains[0];
    // The keep-alive was in the socket all the time, so it is delivered before the barrier completes.
    let alive = Request::KeepAlive { session: lockkeeper_core::SessionId(session), id: 1 };
    node.turn(vec![Event::Frame(stream, vec![alive]), Event::Drained(barrier)]);
    assert!(!is_free(&mut node, "x"));
    node.drains = true;
    let barriers: Vec<Event> = node.held_drains.drain(..).map(Event::Drained).collect();
    node.turn(barriers);
    node.pass(seconds(3));
    assert!(is_free(&mut node, "x"));
}

/// If a keep-alive moves the deadline while a drain barrier is pending, that barrier does not suffice to
/// expire the session: a second one is needed, which begins after the new deadline.
#[test]
fn keep_alive_during_a_drain_requires_another_check() {
    let (mut node, stream, session) = holding(1_000, 0);
    let session = lockkeeper_core::SessionId(session);
    let alive = |id| Event::Frame(stream, vec![Request::KeepAlive { session, id }]);
    node.drains = false;
    node.pass(seconds(3));
    node.turn(vec![alive(1)]);
    // The second keep-alive is still in the socket when the first barrier completes: it arrived after that
    // barrier had begun.
    node.pass(seconds(3));
    let first = node.held_drains.remove(0);
    node.turn(vec![Event::Drained(first)]);
    assert!(!is_free(&mut node, "x"));
    let second = node.held_drains.remove(0);
    assert_ne!(first, second);
    node.turn(vec![alive(2), Event::Drained(second)]);
    assert!(!is_free(&mut node, "x"));
    node.drains = true;
    node.pass(seconds(3));
    assert!(is_free(&mut node, "x"));
}

#[test]
fn restarted_leader_gives_every_session_its_full_ttl() {
    let (mut node, _, _) = holding(10_000, 0);
    node.pass(seconds(9));
    let mut node = node.restart();
    node.pass(seconds(9));
    assert!(!is_free(&mut node, "x"));
    node.pass(seconds(2));
    assert!(is_free(&mut node, "x"));
}

#[test]
fn client_close_starts_linger_and_an_attach_cancels_it() {
    let (mut node, stream, session) = holding(10_000, 1_000);
    node.close(stream, StreamCloseCause::Client);
    node.pass(Duration::from_millis(800));
    let again = node.stream(2);
    node.send(again, vec![attach(session, 1, 2)]);
    node.pass(seconds(5));
    assert!(!is_free(&mut node, "x"), "cancelled");
    node.close(again, StreamCloseCause::Client);
    node.pass(Duration::from_millis(1_200));
    assert!(is_free(&mut node, "x"));
}

#[test]
fn close_by_the_service_starts_no_linger() {
    let (mut node, stream, _) = holding(10_000, 1_000);
    node.close(stream, StreamCloseCause::Service);
    node.pass(seconds(9));
    assert!(!is_free(&mut node, "x"));
}

#[test]
fn linger_never_undercuts_a_new_leaders_deadline() {
    let (node, _, session) = holding(10_000, 1_000);
    let mut node = node.restart();
    let stream = node.stream(2);
    node.send(stream, vec![attach(session, 1, 2)]);
    node.close(stream, StreamCloseCause::Client);
    node.pass(seconds(9));
    assert!(!is_free(&mut node, "x"));
    node.pass(seconds(2));
    assert!(is_free(&mut node, "x"));
}

#[test]
fn wait_limit_ends_only_the_wait() {
    let (mut node, stream, session) = holding(60_000, 0);
    let waiter = node.open(stream, 2, 60_000, 0);
    let mut item = acquire(waiter, 1, "x", true);
    if let Some(v1::client_item::What::Acquire(acquire)) = &mut item.what {
        acquire.at_most_ms = Some(2_000);
    }
    node.send(stream, vec![item]);
    node.pass(Duration::from_millis(1_900));
    assert!(node.heard(stream).is_empty());
    node.pass(Duration::from_millis(200));
    let timed_out = What::Ended(v1::Finished { end: v1::End::TimedOut.into() });
    assert_eq!(bodies(node.heard(stream)), [(1, timed_out.clone())]);
    let heard = bodies(node.send(stream, vec![finish(session, 2, 1)]));
    assert_eq!(heard.len(), 1, "nobody waits any more: {heard:?}");
    // Every attach repeats the end until the client confirms it (R3).
    let again = node.stream(2);
    assert!(bodies(node.send(again, vec![attach(waiter, 2, 2)])).contains(&(1, timed_out)));
}

#[test]
fn broken_hold_ends_after_its_holder_has_given_up() {
    let (mut node, stream, session) = holding(10_000, 0);
    let name = "x".parse().unwrap();
    let token = lockkeeper_core::Token::new(node.last_token()).unwrap();
    node.ask(Question::Break(Break { name, token, reason: "r".into(), by: "b".into(), now: false }));
    for _ in 0..3 {
        node.pass(seconds(3));
        node.send(stream, vec![keep_alive(session, 1)]);
    }
    assert!(!is_free(&mut node, "x"));
    node.pass(Duration::from_millis(1_200));
    assert!(is_free(&mut node, "x"));
}

#[test]
fn node_that_ended_its_streams_expires_no_session() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 1_000, 0);
    assert!(granted(&node.send(stream, vec![acquire(session, 1, "a", false)])).is_some());
    let before = node.digest();
    // After the streams have ended, the node's process waits some seconds for its connections to end. No
    // client can send a keep-alive in that time, so no session may expire.
    node.turn(vec![Event::ShutDown]);
    assert!(node.ended.contains_key(&stream));
    node.pass(Duration::from_secs(5));
    assert_eq!(node.digest(), before);
}

/// An order to end a session whose client is attached needs `now`; a repeat finds it gone.
#[test]
fn operator_ends_a_session() {
    let (mut node, stream, session) = holding(10_000, 1_000);
    let order = |now| Question::EndSession { session: SessionId(session), now };
    let ended = |node: &mut Node, now| match node.ask(order(now)) {
        Answer::SessionEnded(result) => result,
        other => panic!("{other:?}"),
    };
    assert_eq!(ended(&mut node, false), v1::EndSessionResult::Attached);
    assert!(!is_free(&mut node, "x"));
    assert_eq!(ended(&mut node, true), v1::EndSessionResult::Done);
    let heard = node.heard(stream);
    assert!(heard.iter().any(|item| matches!(item.what, Some(What::SessionGone(_)))), "{heard:?}");
    assert_eq!(ended(&mut node, true), v1::EndSessionResult::Gone);
    assert!(is_free(&mut node, "x"));

    let (mut node, stream, session) = holding(10_000, 0);
    node.close(stream, StreamCloseCause::Client);
    let order = Question::EndSession { session: SessionId(session), now: false };
    assert_eq!(node.ask(order), Answer::SessionEnded(v1::EndSessionResult::Done), "nobody is attached");
    assert_eq!(node.replica.take_expired(), (0, Vec::new()), "its time was not over");
}

#[test]
fn expired_sessions_are_counted_and_named_once() {
    let (mut node, _, _) = holding(1_000, 0);
    let stream = node.stream(2);
    let alive = node.open(stream, 2, 60_000, 0);
    node.pass(seconds(2));
    let (count, named) = node.replica.take_expired();
    assert_eq!((count, named.len()), (1, 1), "{named:?}");
    assert_eq!(named[0].label, "client 1");
    node.ask(Question::EndSession { session: SessionId(alive), now: true });
    assert_eq!(node.replica.take_expired(), (0, Vec::new()));
}
