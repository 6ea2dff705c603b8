//! Keep-alives that wait for a change of their session's requests.

use std::time::Duration;

use lockkeeper_core::{Break, Seq, Token};
use lockkeeper_replica::{CallId, CallRequest, Event, Question, SessionPoll};
use lockkeeper_wire::v1::{self, server_item::What};

use crate::harness::{Node, opening};
use crate::items::{acquire, by_call, finish, keep_alive};

const SECOND: Duration = Duration::from_secs(1);

fn open(node: &mut Node, number: u8) -> u64 {
    node.call(CallRequest::Open(opening(number, 0))).item.unwrap().session
}

/// A keep-alive that waits for a change, with the secret made of `number`.
fn session_poll(session: u64, number: u8, waiting: &[u64], known: &[u64]) -> CallRequest {
    let seqs = |list: &[u64]| list.iter().copied().map(Seq).collect();
    let mut call = by_call(keep_alive(session, 0), number);
    if let CallRequest::KeepAlive { poll, .. } = &mut call {
        *poll = SessionPoll { waiting: seqs(waiting), known: seqs(known), waits: true };
    }
    call
}

/// The session of secret 1 holds `x` (request 1), and that of secret 2 waits for it (requests 1 and 2).
fn queued(node: &mut Node) -> (u64, u64) {
    let (holder, waiter) = (open(node, 1), open(node, 2));
    node.call(by_call(acquire(holder, 1, "x", true), 1));
    for seq in [1, 2] {
        let call = node.called(by_call(acquire(waiter, seq, "x", true), 2));
        node.turn(vec![Event::CallDropped(call)]);
    }
    (holder, waiter)
}

/// What the call's answers name: granted, revoked, ended.
type Changes = (Vec<u64>, Vec<u64>, Vec<(u64, v1::End)>);

fn changes(node: &mut Node, call: CallId) -> Vec<Changes> {
    let of = |response: v1::SessionCallResponse| {
        let what = response.item.unwrap().what.unwrap();
        assert!(matches!(what, What::KeptAlive(_)), "{what:?}");
        let granted = response.granted.iter().map(|it| it.seq).collect();
        let ended = response.ended.iter().map(|it| (it.seq, it.end())).collect();
        (granted, response.revoked, ended)
    };
    node.responses(call).into_iter().map(of).collect()
}

fn none() -> Changes {
    Changes::default()
}

#[test]
fn poll_waits_until_one_of_its_requests_is_granted_or_ends() {
    let mut node = Node::new();
    let (holder, waiter) = queued(&mut node);
    let poll = node.called(session_poll(waiter, 2, &[2, 1, 77], &[]));
    assert_eq!(changes(&mut node, poll), [none()], "the answer at the end of its time");
    node.call(by_call(finish(holder, 1, 1), 1));
    assert_eq!(changes(&mut node, poll), [(vec![1], vec![], vec![])]);

    let again = node.called(session_poll(waiter, 2, &[1, 2], &[]));
    assert_eq!(changes(&mut node, again), [(vec![1], vec![], vec![])], "an answer that was lost (P7)");
    let poll = node.called(session_poll(waiter, 2, &[2], &[]));
    node.call(by_call(finish(waiter, 3, 2), 2));
    assert_eq!(changes(&mut node, poll), [none(), (vec![], vec![], vec![(2, v1::End::Left)])]);
    let poll = node.called(session_poll(waiter, 2, &[], &[]));
    node.call(by_call(finish(waiter, 4, 1), 2));
    assert_eq!(changes(&mut node, poll), [none()], "it does not wait for that request");
}

#[test]
fn poll_waits_for_breaks_that_its_client_does_not_know() {
    let mut node = Node::new();
    let session = open(&mut node, 1);
    let held = node.call(by_call(acquire(session, 1, "x", true), 1));
    let What::Granted(held) = held.item.unwrap().what.unwrap() else { panic!("a grant") };
    let order = |now| {
        let (name, token) = ("x".parse().unwrap(), Token::new(held.token).unwrap());
        Question::Break(Break { name, token, reason: "r".into(), by: "b".into(), now })
    };
    let poll = node.called(session_poll(session, 1, &[], &[]));
    node.ask(order(false));
    assert_eq!(changes(&mut node, poll), [none(), (vec![], vec![1], vec![])]);
    let poll = node.called(session_poll(session, 1, &[], &[1]));
    assert_eq!(changes(&mut node, poll), [none()], "it is known");
    let unknown = node.called(session_poll(session, 1, &[], &[]));
    assert_eq!(changes(&mut node, unknown), [(vec![], vec![1], vec![])]);
    node.ask(order(true));
    let ended = node.called(session_poll(session, 1, &[], &[]));
    assert_eq!(changes(&mut node, ended), [(vec![], vec![], vec![(1, v1::End::Broken)])]);
    node.call(by_call(finish(session, 2, 1), 1));
    let over = node.called(session_poll(session, 1, &[], &[]));
    assert_eq!(changes(&mut node, over), [none()]);
}

#[test]
fn later_poll_of_a_session_makes_the_earlier_one_answer() {
    let mut node = Node::new();
    let (holder, waiter) = queued(&mut node);
    let first = node.called(session_poll(waiter, 2, &[1], &[]));
    let of_other = node.called(session_poll(holder, 1, &[], &[]));
    let second = node.called(session_poll(waiter, 2, &[1, 2], &[]));
    assert_eq!(changes(&mut node, first), [none(), none()], "the second answer is the last");
    node.turn(vec![Event::CallDropped(first)]);
    node.call(by_call(keep_alive(waiter, 1), 2));
    assert_eq!((changes(&mut node, second), changes(&mut node, of_other)), (vec![none()], vec![none()]));
    node.call(by_call(finish(holder, 1, 1), 1));
    assert_eq!(changes(&mut node, second), [(vec![1], vec![], vec![])]);
    assert!(changes(&mut node, of_other).is_empty());
}

#[test]
fn session_lives_a_ttl_after_its_poll_has_ended_and_its_end_answers_a_poll() {
    let mut node = Node::new();
    let (holder, waiter) = queued(&mut node);
    let dropped = node.called(session_poll(waiter, 2, &[1], &[]));
    node.pass(8 * SECOND);
    node.call(by_call(keep_alive(holder, 1), 1));
    node.turn(vec![Event::CallDropped(dropped)]);
    node.pass(9 * SECOND);
    node.call(by_call(keep_alive(holder, 1), 1));
    let last = node.called(session_poll(waiter, 2, &[1], &[]));
    assert_eq!(changes(&mut node, last), [none()]);
    node.pass(6 * SECOND);
    node.call(by_call(keep_alive(holder, 1), 1));
    node.pass(6 * SECOND);
    let response = node.responses(last).pop().expect("an answer");
    assert!(matches!(response.item.unwrap().what, Some(What::SessionGone(_))));
}
