//! Requests of sessions by calls, without a stream.

use std::time::Duration;

use lockkeeper_core::{Break, Token, Usage};
use lockkeeper_replica::{Answer, CallRequest, Event, Question, Requester, StreamCloseCause};
use lockkeeper_wire::v1::{self, server_item::What};

use crate::harness::{Node, opening};
use crate::items::{acquire, attach, bodies, by_call, finish, granted, keep_alive};

const SECOND: Duration = Duration::from_secs(1);

/// Opens a session by a call, with a ttl of 10 s.
fn open(node: &mut Node, number: u8) -> u64 {
    let item = node.call(CallRequest::Open(opening(number, 0))).item.unwrap();
    assert!(matches!(item.what, Some(What::Opened(_))), "{item:?}");
    item.session
}

fn what(response: v1::SessionCallResponse) -> What {
    response.item.unwrap().what.unwrap()
}

fn token(response: v1::SessionCallResponse) -> Token {
    granted(&[response.item.unwrap()]).expect("a grant")
}

#[test]
fn session_is_opened_used_and_closed_by_calls() {
    let mut node = Node::new();
    let session = open(&mut node, 1);
    assert_eq!(open(&mut node, 1), session, "the same secret is the same session");
    let held = token(node.call(by_call(acquire(session, 1, "x", true), 1)));
    assert_eq!(token(node.call(by_call(acquire(session, 1, "x", true), 1))), held, "a repetition (P7)");
    let kept = what(node.call(by_call(keep_alive(session, 7), 1)));
    assert_eq!(kept, What::KeptAlive(v1::KeptAlive { id: 7, revoked: vec![], recalled: Vec::new() }));
    let released = What::Finished(v1::Finished { end: v1::End::Released.into() });
    for _ in 0..2 {
        assert_eq!(what(node.call(by_call(finish(session, 1, 1), 1))), released);
    }
    let close = || v1::ClientItem { session, what: Some(v1::client_item::What::Close(v1::CloseSession {})) };
    for item in [close(), close(), keep_alive(session, 1), acquire(session, 2, "x", true)] {
        assert!(matches!(what(node.call(by_call(item, 1))), What::SessionGone(_)));
    }
}

/// Each call for the request gets an answer at once, and another one when the request is granted.
#[test]
fn crowd_of_calls_for_one_queued_request_gets_its_grant() {
    const CROWD: usize = 20_000;
    let mut node = Node::new();
    let (holder, waiter) = (open(&mut node, 1), open(&mut node, 2));
    let held = token(node.call(by_call(acquire(holder, 1, "x", true), 1)));
    let request = || by_call(acquire(waiter, 1, "x", true), 2);
    let (calls, events): (Vec<_>, Vec<_>) = (0..CROWD).map(|_| node.call_of("", request())).unzip();
    node.turn(events);
    let dropped = node.called(request());
    node.turn(vec![Event::CallDropped(dropped)]);
    for call in calls.iter().chain([&dropped]) {
        let queued: Vec<What> = node.responses(*call).into_iter().map(what).collect();
        assert!(matches!(queued[..], [What::Queued(_)]), "{queued:?}");
    }
    node.call(by_call(finish(holder, 1, 1), 1));
    for call in calls {
        let response = node.responses(call).pop().expect("an answer");
        assert!(token(response) > held);
    }
    assert!(node.responses(dropped).is_empty());
}

#[test]
fn waiting_call_ends_with_its_request_or_session() {
    let mut node = Node::new();
    let (holder, waiter) = (open(&mut node, 1), open(&mut node, 2));
    token(node.call(by_call(acquire(holder, 1, "x", true), 1)));
    let wait = |node: &mut Node, seq| {
        let call = node.called(by_call(acquire(waiter, seq, "x", true), 2));
        assert_eq!(node.responses(call).len(), 1);
        call
    };
    let (first, second) = (wait(&mut node, 1), wait(&mut node, 2));
    node.call(by_call(finish(waiter, 1, 1), 2));
    let left = What::Finished(v1::Finished { end: v1::End::Left.into() });
    assert_eq!(node.responses(first).into_iter().map(what).collect::<Vec<_>>(), [left]);
    node.pass(6 * SECOND);
    node.call(by_call(keep_alive(holder, 1), 1));
    assert!(node.responses(second).is_empty());
    node.pass(5 * SECOND);
    assert!(matches!(what(node.responses(second).remove(0)), What::SessionGone(_)), "it was silent");
}

#[test]
fn call_takes_the_session_over_from_its_stream_until_a_later_attach() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 10_000, 1_000);
    let held = granted(&node.send(stream, vec![acquire(session, 1, "x", true)])).unwrap();
    assert_eq!(token(node.call(by_call(acquire(session, 1, "x", true), 1))), held);
    for item in [keep_alive(session, 1), finish(session, 2, 1), acquire(session, 2, "y", true)] {
        let refused = bodies(node.send(stream, vec![item]));
        assert!(matches!(&refused[..], [(_, What::Refused(it))] if it.text.contains("not attached")));
    }
    // Neither does the end of that stream begin `linger`, nor can an older attach take the session back.
    assert!(bodies(node.send(stream, vec![attach(session, 1, 1)])).is_empty());
    node.close(stream, StreamCloseCause::Client);
    node.pass(5 * SECOND);
    assert_eq!(token(node.call(by_call(acquire(session, 1, "x", true), 1))), held);
    let later = node.stream(2);
    let heard = bodies(node.send(later, vec![attach(session, 1, 2), keep_alive(session, 3)]));
    assert!(matches!(heard[..], [(_, What::Attached(_)), (_, What::KeptAlive(_))]), "{heard:?}");
}

/// A client may change from a stream to calls within the time of the check that `linger` needs.
#[test]
fn call_cancels_the_linger_of_a_stream_that_was_closed_just_before() {
    let mut node = Node::new();
    node.drains = false;
    let stream = node.stream(1);
    let session = node.open(stream, 1, 10_000, 1_000);
    node.close(stream, StreamCloseCause::Client);
    node.call(by_call(keep_alive(session, 1), 1));
    let drain = node.held_drains.remove(0);
    node.drains = true;
    node.turn(vec![Event::Drained(drain)]);
    node.pass(9 * SECOND);
    assert!(matches!(what(node.call(by_call(keep_alive(session, 2), 1))), What::KeptAlive(_)));
}

#[test]
fn call_with_another_secret_or_identity_is_refused_and_changes_nothing() {
    let mut node = Node::new();
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    assert!(granted(&node.send(stream, vec![acquire(session, 1, "x", true)])).is_some());
    let before = node.digest();
    node.pass(5 * SECOND);
    for item in [keep_alive(session, 1), finish(session, 2, 1), acquire(session, 2, "y", true)] {
        let response = node.call(by_call(item.clone(), 9));
        assert!(matches!(what(response), What::Refused(it) if it.text.contains("secret")));
        let (call, event) = node.call_of("another", by_call(item, 1));
        node.turn(vec![event]);
        let response = node.responses(call).remove(0);
        assert!(matches!(what(response), What::Refused(it) if it.code() == v1::RefusedCode::Denied));
    }
    assert_eq!(node.digest(), before);
    node.pass(6 * SECOND);
    assert!(node.replica.table().sessions().next().is_none(), "none of them has renewed the lease");
}

#[test]
fn answers_name_revoked_holds_and_unconfirmed_ends() {
    let mut node = Node::new();
    let session = open(&mut node, 1);
    let token = token(node.call(by_call(acquire(session, 1, "x", true), 1)));
    let order = |now| {
        let name = "x".parse().unwrap();
        Question::Break(Break { name, token, reason: "r".into(), by: "b".into(), now })
    };
    assert!(matches!(node.ask(order(false)), Answer::Broken(_)));
    let response = node.call(by_call(acquire(session, 2, "y", true), 1));
    assert_eq!((response.revoked, response.ended), (vec![1], vec![]));
    node.ask(order(true));
    let broken = [v1::EndedRequest { seq: 1, end: v1::End::Broken.into() }];
    let response = node.call(by_call(acquire(session, 1, "x", true), 1));
    assert!(matches!(what(response.clone()), What::Finished(_)), "repeated, which confirms nothing");
    assert_eq!((&response.revoked[..], &response.ended[..]), (&[][..], &broken[..]));
    assert_eq!(node.call(by_call(keep_alive(session, 1), 1)).ended, broken);
    assert_eq!(node.call(by_call(finish(session, 3, 1), 1)).ended, []);
}

/// A part of the ttl may have passed while a call waited.
#[test]
fn session_has_its_whole_ttl_after_a_call_that_has_waited() {
    let mut node = Node::new();
    let (holder, waiter) = (open(&mut node, 1), open(&mut node, 2));
    token(node.call(by_call(acquire(holder, 1, "x", true), 1)));
    let mut ends = vec![];
    for _ in 0..2 {
        let call = node.called(by_call(acquire(waiter, 1, "x", true), 2));
        node.call(by_call(keep_alive(holder, 1), 1));
        node.pass(8 * SECOND);
        ends.push(call);
        node.turn(vec![Event::CallDropped(call)]);
    }
    let last = node.called(by_call(acquire(waiter, 1, "x", true), 2));
    node.call(by_call(keep_alive(holder, 1), 1));
    node.pass(8 * SECOND);
    node.call(by_call(finish(holder, 1, 1), 1));
    token(node.responses(last).pop().unwrap());
    node.pass(9 * SECOND);
    assert!(matches!(what(node.call(by_call(keep_alive(waiter, 1), 2))), What::KeptAlive(_)));
}

#[test]
fn call_that_exceeds_a_quota_is_refused_for_its_identity() {
    let mut node = Node::new();
    node.quota = Usage { requests: 1, ..Usage::UNLIMITED };
    let by = |node: &mut Node, request| {
        let (call, event) = node.call_of("billing", request);
        node.turn(vec![event]);
        (call, node.responses(call).remove(0))
    };
    let (_, opened) = by(&mut node, CallRequest::Open(opening(1, 0)));
    let session = opened.item.unwrap().session;
    token(by(&mut node, by_call(acquire(session, 1, "x", true), 1)).1);
    let (call, refused) = by(&mut node, by_call(acquire(session, 2, "y", true), 1));
    assert!(matches!(what(refused), What::Refused(it) if it.text.contains("billing may have 1")));
    let [(from, _)] = &node.over_quota[..] else { panic!("{:?}", node.over_quota) };
    assert_eq!(*from, Requester::Call(call));
    token(by(&mut node, by_call(acquire(session, 1, "x", true), 1)).1);
}

#[test]
fn shutdown_ends_the_calls() {
    let mut node = Node::new();
    let (holder, waiter) = (open(&mut node, 1), open(&mut node, 2));
    token(node.call(by_call(acquire(holder, 1, "x", true), 1)));
    let waits = node.called(by_call(acquire(waiter, 1, "x", true), 2));
    node.turn(vec![Event::ShutDown]);
    assert_eq!(node.ended_calls[&waits].reason(), v1::StreamEndReason::Shutdown);
}
