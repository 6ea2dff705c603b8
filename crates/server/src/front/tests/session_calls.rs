//! Calls of sessions without a stream: no barrier passes before those that had arrived are handed on.

use std::io::Write as _;

use lockkeeper_core::SessionId;

use super::*;
use crate::access::Identity;
use crate::front::session_calls::SESSION_CALL;
use crate::inbox::Source;

/// The bytes of a keep-alive by a call, on this HTTP/2 stream of a connection.
fn call(stream: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    if stream == 1 {
        begin(&mut bytes);
    }
    head(&mut bytes, stream, SESSION_CALL);
    let what = Some(v1::client_item::What::KeepAlive(v1::KeepAlive { id: 0 }));
    let item = Some(v1::ClientItem { session: 1, what });
    let asked = v1::SessionCallRequest { secret: vec![7; 16], item, poll_ms: 0 };
    put(&mut bytes, 0, 1, stream, &message(&asked));
    bytes
}

pub(super) fn is_keep_alive(event: &Event) -> bool {
    matches!(event, Event::Frame(_, requests) if matches!(requests[..], [Request::Attach { .. }, Request::KeepAlive { .. }]))
}

/// This thread, which is also the runtime's, is blocked while it writes; the calls are in the socket, and in the accept
/// queue, when the barrier begins.
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

/// Its session's end has come while it waited for room in the inbox: a frame now could follow the end of the stream.
#[tokio::test]
async fn call_that_is_answered_already_hands_nothing_on() {
    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let source = |lane| Source { caller: Identity::ANONYMOUS, lane };
    for lane in 0.. {
        let (inbox, new) = (&rig.front.inbox, source(u64::MAX));
        if poll_fn(|cx| Poll::Ready(inbox.poll_room(&new, &mut None, cx).is_pending())).await {
            break;
        }
        let keep_alive = Request::KeepAlive { session: SessionId(9), id: 1 };
        rig.front.push_from(&source(lane), Event::Frame(StreamId(u64::MAX), vec![keep_alive; 1024]));
    }
    let mut client = std::net::TcpStream::connect(rig.address).unwrap();
    client.write_all(&call(1)).unwrap();
    let stream = loop {
        tokio::task::yield_now().await;
        if let Some(stream) = rig.front.registry().streams.keys().next() {
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
