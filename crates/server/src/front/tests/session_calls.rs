//! Session calls: a barrier passes only after the calls that had arrived were passed to the replica; and
//! which calls share a stream to the replica.

use std::io::{Read as _, Write as _};

use lockkeeper_core::SessionId;

use super::*;
use crate::access::Identity;
use crate::front::paths::SESSION_CALL;
use crate::front::sessions::{IDLE_MAX, SHORT_CALL};
use crate::inbox::Source;

/// The bytes of a keep-alive of session 1 by a call, on this HTTP/2 stream of a connection.
fn call(stream: u32) -> Vec<u8> {
    call_of(stream, 1, KEEP_ALIVE, 0)
}

const KEEP_ALIVE: v1::client_item::What = v1::client_item::What::KeepAlive(v1::KeepAlive { id: 0 });

fn call_of(stream: u32, session: u64, what: v1::client_item::What, poll_ms: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if stream == 1 {
        begin(&mut bytes);
    }
    head(&mut bytes, stream, SESSION_CALL);
    let item = Some(v1::ClientItem { session, what: Some(what) });
    let secret = u128::from(session).to_le_bytes().to_vec();
    let asked = v1::SessionCallRequest { secret, item, poll_ms };
    put(&mut bytes, 0, 1, stream, &message(&asked));
    bytes
}

/// Waits for the event with this index, a frame. Answers its attaches and keep-alives as the replica would,
/// and sends `items` after these answers. Returns the frame's stream.
async fn answer(rig: &mut Rig, event: usize, items: Vec<v1::ServerItem>) -> StreamId {
    use v1::server_item::What;
    let frame = &rig.events(event + 1).await[event];
    let Event::Frame(stream, requests) = frame else { panic!("a frame was to come: {frame:?}") };
    let stream = *stream;
    let reply = |request: &Request| match request {
        Request::Attach { session, attach, .. } => {
            Some((session.0, What::Attached(v1::Attached { attach: *attach, revoked: Vec::new() })))
        }
        Request::KeepAlive { session, id } => {
            Some((session.0, What::KeptAlive(v1::KeptAlive { id: *id, revoked: Vec::new() })))
        }
        _ => None,
    };
    let replies = requests.iter().filter_map(reply);
    let replies = replies.map(|(session, what)| v1::ServerItem { session, seq: 0, what: Some(what) });
    let all = replies.chain(items).collect();
    rig.outbox.put(&mut vec![Output::Items(stream, all)], ReplicaStatus::Ready);
    // Lets the tasks of the node run until the call has its answer.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    stream
}

pub(super) fn is_keep_alive(event: &Event) -> bool {
    matches!(event, Event::Frame(_, requests) if matches!(requests[..], [Request::Attach { .. }, Request::KeepAlive { .. }]))
}

fn attach_number(event: &Event) -> u64 {
    match event {
        Event::Frame(_, requests) => match requests[..] {
            [Request::Attach { attach, .. }, ..] => attach,
            _ => panic!("the session was to be attached: {requests:?}"),
        },
        other => panic!("a frame was to come: {other:?}"),
    }
}

/// The runtime has only this thread, which is busy while it writes. So when the barrier begins, the calls are
/// still in the socket and in the accept queue.
#[tokio::test]
async fn barrier_after_a_stall_waits_for_calls_that_keep_sessions_alive() {
    let mut rig = Rig::start().await;
    let barrier = |rig: &Rig, number| rig.outbox.put(&mut vec![Output::Drain(number)], ReplicaStatus::Ready);
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let mut known = std::net::TcpStream::connect(rig.address).unwrap();
    known.write_all(&call(1)).unwrap();
    assert!(is_keep_alive(&rig.events(2).await[1]));
    barrier(&rig, 1);
    assert!(
        matches!(rig.events(3).await[2], Event::Drained(1)),
        "a call that waits for its answer delays nothing"
    );

    known.write_all(&call(3)).unwrap();
    let mut new = std::net::TcpStream::connect(rig.address).unwrap();
    new.write_all(&call(1)).unwrap();
    barrier(&rig, 2);
    let events = &rig.events(6).await[3..];
    // The session's first call still waits, so they share its stream.
    assert!(is_keep_alive(&events[0]) && is_keep_alive(&events[1]), "{events:?}");
    assert!(matches!(events[2], Event::Drained(2)), "{events:?}");
}

/// The session ends while the call waits for room in the inbox. The call must not send its frame then: the
/// frame could follow the end of the stream.
#[tokio::test]
async fn call_that_is_answered_already_hands_nothing_on() {
    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let source = |lane| Source { caller: Identity::ANONYMOUS, lane };
    for lane in 0.. {
        let (inbox, new) = (&rig.front.replica.inbox, source(u64::MAX));
        if poll_fn(|cx| Poll::Ready(inbox.poll_room(&new, &mut None, cx).is_pending())).await {
            break;
        }
        let keep_alive = Request::KeepAlive { session: SessionId(9), id: 1 };
        rig.front.replica.push_from(&source(lane), Event::Frame(StreamId(u64::MAX), vec![keep_alive; 1024]));
    }
    let mut client = std::net::TcpStream::connect(rig.address).unwrap();
    client.write_all(&call(1)).unwrap();
    let stream = loop {
        tokio::task::yield_now().await;
        if let Some(stream) = rig.front.sessions.registry().streams.keys().next() {
            break *stream;
        }
    };
    let what = Some(v1::server_item::What::SessionGone(v1::SessionGone {}));
    let gone = v1::ServerItem { session: 1, seq: 0, what };
    rig.outbox.put(&mut vec![Output::Items(stream, vec![gone])], ReplicaStatus::Ready);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let is_end =
        |event: &Event| matches!(event, Event::StreamClosed { stream: ended, .. } if *ended == stream);
    let mut count = 1;
    while !rig.events(count).await.iter().any(is_end) {
        count = rig.seen.len() + 1;
    }
    let is_handed_on = |event: &Event| matches!(event, Event::Frame(of, _) if *of == stream);
    assert!(!rig.seen.iter().any(is_handed_on));
}

/// A node that leads, and a connection to it.
async fn leading() -> (Rig, std::net::TcpStream) {
    let rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let client = std::net::TcpStream::connect(rig.address).unwrap();
    (rig, client)
}

fn assert_closed(event: &Event, stream: StreamId, cause: StreamCloseCause) {
    let is_closed =
        matches!(event, Event::StreamClosed { stream: of, cause: why } if *of == stream && *why == cause);
    assert!(is_closed, "{event:?}");
}

#[tokio::test]
async fn short_calls_one_after_the_other_share_a_stream_until_the_replica_ends_it() {
    let (mut rig, mut client) = leading().await;
    client.write_all(&call(1)).unwrap();
    let stream = answer(&mut rig, 1, Vec::new()).await;
    assert!(is_keep_alive(&rig.seen[1]));
    client.write_all(&call(3)).unwrap();
    assert_eq!(answer(&mut rig, 2, Vec::new()).await, stream);
    // Another node or client may have attached the session to a stream of its own meanwhile.
    assert!(
        is_keep_alive(&rig.seen[2]) && attach_number(&rig.seen[2]) > attach_number(&rig.seen[1]),
        "{:?}",
        rig.seen
    );

    rig.outbox.put(&mut vec![Output::EndStream(stream, v1::StreamEnd::default())], ReplicaStatus::Ready);
    assert_closed(&rig.events(4).await[3], stream, StreamCloseCause::Idle);
    client.write_all(&call(5)).unwrap();
    let events = &rig.events(6).await[4..];
    assert!(matches!(events[0], Event::StreamOpened { stream: of, .. } if of != stream), "{events:?}");
    assert!(is_keep_alive(&events[1]), "{events:?}");
}

/// Otherwise the session would have less than its ttl left when its client gets the answer.
#[tokio::test]
async fn stream_of_a_call_whose_answer_came_late_is_closed() {
    let (mut rig, mut client) = leading().await;
    client.write_all(&call(1)).unwrap();
    rig.events(2).await;
    tokio::time::sleep(SHORT_CALL).await;
    let stream = answer(&mut rig, 1, Vec::new()).await;
    assert_closed(&rig.events(3).await[2], stream, StreamCloseCause::Service);
}

/// The request stays in the queue, so an answer to it may come at any time.
#[tokio::test]
async fn stream_of_a_call_that_has_waited_is_closed() {
    let (mut rig, mut client) = leading().await;
    let acquire = v1::Acquire {
        seq: 1,
        names: vec!["a".to_owned()],
        mode: v1::Mode::Exclusive.into(),
        wait: true,
        ..v1::Acquire::default()
    };
    let poll_ms = SHORT_CALL.as_millis() as u64;
    client.write_all(&call_of(1, 1, v1::client_item::What::Acquire(acquire), poll_ms)).unwrap();
    let queued = v1::Queued { position: 1, ..v1::Queued::default() };
    let what = Some(v1::server_item::What::Queued(queued));
    let stream = answer(&mut rig, 1, vec![v1::ServerItem { session: 1, seq: 1, what }]).await;
    assert_closed(&rig.events(3).await[2], stream, StreamCloseCause::Service);
}

#[tokio::test]
async fn of_too_many_streams_without_a_call_the_one_that_waits_longest_is_closed() {
    let (mut rig, mut client) = leading().await;
    client.set_nonblocking(true).unwrap();
    let mut streams = Vec::new();
    for number in 0..=IDLE_MAX {
        let (stream, session) = (2 * number as u32 + 1, number as u64 + 1);
        client.write_all(&call_of(stream, session, KEEP_ALIVE, 0)).unwrap();
        streams.push(answer(&mut rig, 2 * number + 1, Vec::new()).await);
        let _ = client.read(&mut [0; 4096]);
    }
    assert_closed(&rig.events(2 * IDLE_MAX + 3).await[2 * IDLE_MAX + 2], streams[0], StreamCloseCause::Idle);
}

/// The stream's session has expired, so no later call can use the stream.
#[tokio::test]
async fn idle_stream_of_a_session_that_is_gone_is_closed() {
    let (mut rig, mut client) = leading().await;
    client.write_all(&call(1)).unwrap();
    let stream = answer(&mut rig, 1, Vec::new()).await;
    let what = Some(v1::server_item::What::SessionGone(v1::SessionGone {}));
    let gone = v1::ServerItem { session: 1, seq: 0, what };
    rig.outbox.put(&mut vec![Output::Items(stream, vec![gone])], ReplicaStatus::Ready);
    assert_closed(&rig.events(3).await[2], stream, StreamCloseCause::Idle);
}

/// The answer to the call is still to come, and could be taken for the answer to a later call.
#[tokio::test]
async fn stream_of_a_call_whose_caller_has_gone_is_closed() {
    let (mut rig, mut client) = leading().await;
    client.write_all(&call(1)).unwrap();
    let Event::Frame(stream, _) = rig.events(2).await[1] else { panic!("{:?}", rig.seen) };
    drop(client);
    assert_closed(&rig.events(3).await[2], stream, StreamCloseCause::Service);
}
