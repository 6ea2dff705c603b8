//! Streams and requests.

use lockkeeper_core::{Break, Page, Token};
use lockkeeper_replica::{Answer, Event, Question};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, server_item::What};

use crate::harness::{Node, SECRET, opening};
use crate::items::{acquire, attach, bodies, finish, granted, keep_alive};

#[test]
fn one_frame_of_requests_is_answered_by_one_frame() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let (a, b) = (node.open(stream, 1, 10_000, 0), node.open(stream, 2, 10_000, 0));
    let heard = node.send(
        stream,
        vec![acquire(a, 1, "x", true), acquire(b, 1, "x", true), keep_alive(b, 9), finish(a, 2, 1)],
    );
    let heard: Vec<(u64, u64, What)> =
        heard.into_iter().map(|item| (item.session, item.seq, item.what.unwrap())).collect();
    let first = 1_000_001;
    let granted = |token| What::Granted(v1::Granted { token, permits: vec![], spare_tokens: 0 });
    assert_eq!(
        heard,
        [
            (a, 1, granted(first)),
            (b, 1, What::Queued(v1::Queued { position: 0, limits: vec![] })),
            (a, 2, What::Finished(v1::Finished { end: v1::End::Released.into() })),
            (b, 1, granted(first + 1)),
            (b, 0, What::KeptAlive(v1::KeptAlive { id: 9, revoked: vec![], recalled: Vec::new() })),
        ]
    );
}

#[test]
fn restart_keeps_sessions_holds_queues_and_tokens() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let (a, b) = (node.open(stream, 1, 10_000, 0), node.open(stream, 2, 10_000, 0));
    let token = granted(&node.send(stream, vec![acquire(a, 1, "x", true)])).unwrap();
    node.send(stream, vec![acquire(b, 1, "x", true)]);
    let mut node = node.restart();
    let stream = node.stream(2);
    // A client that attaches again repeats its request, and gets the request's present state (P7).
    let heard = node.send(stream, vec![attach(a, 1, 2), acquire(a, 1, "x", true)]);
    assert_eq!(heard.iter().filter(|item| matches!(item.what, Some(What::Attached(_)))).count(), 1);
    let held = heard.into_iter().find(|item| item.seq == 1).unwrap();
    assert_eq!(granted(&[held]), Some(token));
    node.send(stream, vec![attach(b, 2, 2)]);
    let next = node.send(stream, vec![finish(a, 2, 1)]);
    let next = next.into_iter().find(|item| item.session == b).unwrap();
    assert!(granted(&[next]).unwrap() > token, "the waiter kept its place");
}

#[test]
fn repeated_open_returns_the_same_session() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let first = node.open(stream, 1, 10_000, 0);
    let again = node.stream(2);
    let heard = node.send(again, vec![Request::Open(opening(1, 2)).into()]);
    assert_eq!(heard[0].session, first);
}

/// Also with its secret, and after a restart: the identity is in the table (S4).
#[test]
fn session_of_an_identity_is_attached_and_opened_again_by_it_only() {
    let mut node = Node::new();
    let own = node.stream_of(1, "billing");
    let session = node.open(own, 1, 10_000, 0);
    let token = granted(&node.send(own, vec![acquire(session, 1, "x", true)]));
    let mut node = node.restart();
    for (stream, other) in [(1, "reports"), (2, "")] {
        let thief = node.stream_of(stream, other);
        for item in [attach(session, 1, 9), Request::Open(opening(1, 9)).into()] {
            let heard = bodies(node.send(thief, vec![item]));
            let denied = i32::from(v1::RefusedCode::Denied);
            assert!(matches!(&heard[..], [(_, What::Refused(it))] if it.code == denied), "{heard:?}");
        }
    }
    let own = node.stream_of(3, "billing");
    let heard = node.send(own, vec![attach(session, 1, 2), acquire(session, 1, "x", true)]);
    let held = heard.into_iter().find(|item| item.seq == 1).unwrap();
    assert_eq!(granted(&[held]), token);
    let Answer::Sessions(listed) = node.ask(Question::Sessions { max: 1, after: 0 }) else { panic!() };
    assert_eq!(listed.sessions[0].identity, "billing");
}

/// A client that lost a permission and repeats an earlier acquire must not take a lock that it holds for a
/// denied one.
#[test]
fn denied_acquire_is_refused_unless_it_repeats_one_that_was_seen() {
    let mut node = Node::new();
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    let token = granted(&node.send(stream, vec![acquire(session, 1, "x", true)]));
    let deny = |node: &mut Node, seq| {
        let item = acquire(session, seq, "x", true);
        let request = Box::new(Request::try_from(item).unwrap());
        let code = v1::RefusedCode::Denied.into();
        let refused = v1::Refused { code, text: "no".to_owned(), secret_prefix: 0 };
        node.turn(vec![Event::Frame(stream, vec![Request::Denied { request, refused }])]);
        node.heard(stream)
    };
    assert_eq!(granted(&deny(&mut node, 1)), token);
    let heard = bodies(deny(&mut node, 2));
    assert!(matches!(&heard[..], [(_, What::Refused(it))] if it.text == "no"), "{heard:?}");
    // It has used up no number (R6): with the permission it is granted or queued.
    let heard = bodies(node.send(stream, vec![acquire(session, 2, "y", true)]));
    assert!(matches!(heard[..], [(_, What::Granted(_))]), "{heard:?}");
}

#[test]
fn session_requires_its_secret() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 10_000, 0);
    let thief = node.stream(2);
    for item in [attach(session, SECRET.0[0], 2), acquire(session, 1, "x", true), keep_alive(session, 1)] {
        let heard = bodies(node.send(thief, vec![item]));
        assert!(matches!(heard[..], [(_, What::Refused(_))]), "{heard:?}");
    }
    assert!(granted(&node.send(stream, vec![acquire(session, 1, "x", true)])).is_some());
}

#[test]
fn only_the_latest_attach_is_accepted() {
    let mut node = Node::new();
    let (old, new) = (node.stream(1), node.stream(2));
    let session = node.open(old, 1, 10_000, 0);
    node.send(new, vec![attach(session, 1, 3)]);
    assert!(matches!(
        bodies(node.send(old, vec![acquire(session, 1, "x", true)]))[..],
        [(1, What::Refused(_))]
    ));
    assert!(node.send(old, vec![attach(session, 1, 2)]).is_empty(), "a delayed one");
    assert!(granted(&node.send(new, vec![acquire(session, 1, "x", true)])).is_some());
}

#[test]
fn unknown_session_is_answered_session_gone() {
    let mut node = Node::new();
    let stream = node.stream(1);
    for item in [attach(77, 1, 1), acquire(77, 1, "x", true), keep_alive(77, 1)] {
        let heard = bodies(node.send(stream, vec![item]));
        assert!(matches!(heard[..], [(_, What::SessionGone(_))]), "{heard:?}");
    }
}

#[test]
fn operator_describes_and_breaks_a_hold() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 10_000, 0);
    let token = granted(&node.send(stream, vec![acquire(session, 1, "x", true)])).unwrap();
    let Answer::Described(v1::DescribeResponse { lock: Some(lock) }) =
        node.ask(Question::Describe { name: "x".parse().unwrap(), page: Page::first(10) })
    else {
        panic!("not described")
    };
    assert_eq!((lock.holds[0].token, lock.holds[0].label.as_str()), (token.get(), "client 1"));
    let order = |token, now| {
        let name = "x".parse().unwrap();
        Question::Break(Break { name, token, reason: "stuck".into(), by: "op".into(), now })
    };
    let Answer::Broken(broken) = node.ask(order(Token::MIN, false)) else { panic!("not answered") };
    assert_eq!((broken.result(), &broken.live[..]), (v1::BreakResult::NotCurrent, &[token.get()][..]));
    assert!(
        matches!(node.ask(order(token, false)), Answer::Broken(broken) if broken.result() == v1::BreakResult::Done)
    );
    assert!(matches!(bodies(node.heard(stream))[..], [(1, What::Revoked(_))]), "its holder is told at once");
    let heard = bodies(node.send(stream, vec![keep_alive(session, 5)]));
    assert_eq!(
        heard,
        [(0, What::KeptAlive(v1::KeptAlive { id: 5, revoked: vec![1], recalled: Vec::new() }))],
        "and by every answer"
    );
    let Answer::Sessions(page) = node.ask(Question::Sessions { max: 10, after: 0 }) else {
        panic!("no page")
    };
    assert_eq!((page.sessions.len(), page.sessions[0].requests, page.next_after), (1, 1, 0));
}

#[test]
fn permit_limit_is_stored_or_refused() {
    let mut node = Node::new();
    let set = |limit| Question::SetLimit { name: "gpu".parse().unwrap(), limit };
    assert_eq!(node.ask(set(Some(2))), Answer::LimitSet);
    let Answer::Described(v1::DescribeResponse { lock: Some(lock) }) =
        node.ask(Question::Describe { name: "gpu".parse().unwrap(), page: Page::first(0) })
    else {
        panic!("not described")
    };
    assert_eq!(lock.permits, Some(2));
    assert!(matches!(node.ask(set(Some(0))), Answer::Refused(_)));
    assert_eq!(node.ask(set(None)), Answer::LimitSet);
    assert_eq!(node.ask(set(None)), Answer::LimitSet, "also where nothing is stored");
}

#[test]
fn paged_list_has_every_stable_lock_once() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 10_000, 0);
    for seq in 1..=200 {
        node.send(stream, vec![acquire(session, seq, &format!("kept/{seq}"), true)]);
    }
    let (mut seen, mut after, mut seq) = (Vec::new(), 0, 200);
    loop {
        let question = Question::List { prefix: Some("kept".parse().unwrap()), max: 7, after };
        let Answer::Listed(page) = node.ask(question) else { panic!("no page") };
        assert!(page.locks.len() <= 7);
        seen.extend(page.locks.into_iter().map(|lock| lock.name));
        seq += 2;
        let passing = format!("kept/passing/{seq}");
        node.send(stream, vec![acquire(session, seq - 1, &passing, true), finish(session, seq, seq - 1)]);
        match page.next_after {
            0 => break,
            next => after = next,
        }
    }
    seen.sort_unstable();
    let mut wanted: Vec<String> = (1..=200).map(|seq| format!("kept/{seq}")).collect();
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
}

#[test]
fn silent_stream_ends_only_without_a_session() {
    let mut node = Node::new();
    let (used, unused) = (node.stream(1), node.stream(2));
    let session = node.open(used, 1, 10_000, 1_000);
    node.turn(vec![Event::StreamSilent(used), Event::StreamSilent(unused)]);
    assert!(!node.ended.contains_key(&used));
    assert_eq!(node.ended[&unused].reason(), v1::StreamEndReason::Idle);
    let close = v1::client_item::What::Close(v1::CloseSession {});
    node.send(used, vec![v1::ClientItem { session, what: Some(close) }]);
    node.turn(vec![Event::StreamSilent(used)]);
    assert_eq!(node.ended[&used].reason(), v1::StreamEndReason::Idle);
}

#[test]
fn shutdown_ends_every_stream_and_keeps_holds() {
    let mut node = Node::new();
    let stream = node.stream(1);
    let session = node.open(stream, 1, 10_000, 1_000);
    let token = granted(&node.send(stream, vec![acquire(session, 1, "x", true)])).unwrap();
    node.turn(vec![Event::ShutDown]);
    assert_eq!(node.ended[&stream].reason(), v1::StreamEndReason::Shutdown);
    let mut node = node.restart();
    let stream = node.stream(2);
    let heard = node.send(stream, vec![attach(session, 1, 2), acquire(session, 1, "x", true)]);
    assert!(heard.iter().any(|item| granted(std::slice::from_ref(item)) == Some(token)));
    assert!(node.last_token() >= token.get());
}
