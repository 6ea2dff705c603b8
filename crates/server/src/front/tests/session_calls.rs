//! Session calls: a barrier passes only after the calls that had arrived were passed to the replica; and how
//! long a call waits for its answer.

use std::io::{Read as _, Write as _};

use lockkeeper_replica::CallId;
use lockkeeper_wire::v1::server_item::What;

use super::*;
use crate::front::paths::SESSION_CALL;

const KEEP_ALIVE: v1::client_item::What = v1::client_item::What::KeepAlive(v1::KeepAlive { id: 0 });

/// The bytes of a keep-alive of session 1 by a call, on this HTTP/2 stream of a connection.
fn call(stream: u32) -> Vec<u8> {
    call_of(stream, KEEP_ALIVE, 0)
}

fn call_of(stream: u32, what: v1::client_item::What, poll_ms: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if stream == 1 {
        begin(&mut bytes);
    }
    head(&mut bytes, stream, SESSION_CALL);
    let item = Some(v1::ClientItem { session: 1, what: Some(what) });
    put(
        &mut bytes,
        0,
        1,
        stream,
        &message(&v1::SessionCallRequest { secret: vec![7; 16], item, poll_ms, ..Default::default() }),
    );
    bytes
}

/// A call that waits for a lock, for at most `poll_ms`.
fn waiting_call(poll_ms: u64) -> Vec<u8> {
    let acquire = v1::Acquire {
        seq: 1,
        names: vec!["a".to_owned()],
        mode: v1::Mode::Exclusive.into(),
        wait: true,
        ..v1::Acquire::default()
    };
    call_of(1, v1::client_item::What::Acquire(acquire), poll_ms)
}

pub(super) fn is_keep_alive(event: &Event) -> bool {
    matches!(event, Event::Called(_, called) if matches!(called.request, CallRequest::KeepAlive { .. }))
}

fn id(event: &Event) -> CallId {
    match event {
        Event::Called(id, _) => *id,
        other => panic!("a call was to come: {other:?}"),
    }
}

fn answer(rig: &Rig, call: CallId, what: v1::server_item::What) {
    let item = Some(v1::ServerItem { session: 1, seq: 1, what: Some(what) });
    let response = v1::SessionCallResponse { item, ..v1::SessionCallResponse::default() };
    let waits = matches!(&response.item, Some(item) if matches!(item.what, Some(What::Queued(_))));
    let output = if waits { Output::CallWaits } else { Output::Called };
    rig.outbox.put(&mut vec![output(call, response)], ReplicaStatus::Ready);
}

fn queued() -> v1::server_item::What {
    v1::server_item::What::Queued(v1::Queued { position: 1, ..v1::Queued::default() })
}

/// A node that leads, and a connection to it.
async fn leading() -> (Rig, std::net::TcpStream) {
    let rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let client = std::net::TcpStream::connect(rig.address).unwrap();
    (rig, client)
}

/// Waits until the client has received these bytes.
async fn until_received(client: &mut std::net::TcpStream, bytes: &[u8]) {
    client.set_nonblocking(true).unwrap();
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    let arrives = async {
        while !received.windows(bytes.len()).any(|it| it == bytes) {
            if let Ok(count) = client.read(&mut part) {
                received.extend_from_slice(&part[..count]);
            }
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, arrives).await.is_ok(), "{received:?}");
}

/// The runtime has only this thread, which is busy while it writes. So when the barrier begins, the calls are
/// still in the socket and in the accept queue.
#[tokio::test]
async fn barrier_after_a_stall_waits_for_calls_that_keep_sessions_alive() {
    let (mut rig, mut known) = leading().await;
    let barrier = |rig: &Rig, number| rig.outbox.put(&mut vec![Output::Drain(number)], ReplicaStatus::Ready);
    known.write_all(&call(1)).unwrap();
    assert!(is_keep_alive(&rig.events(1).await[0]));
    barrier(&rig, 1);
    assert!(
        matches!(rig.events(2).await[1], Event::Drained(1)),
        "a call that waits for its answer delays nothing"
    );

    known.write_all(&call(3)).unwrap();
    let mut new = std::net::TcpStream::connect(rig.address).unwrap();
    new.write_all(&call(1)).unwrap();
    barrier(&rig, 2);
    let events = &rig.events(5).await[2..];
    assert!(is_keep_alive(&events[0]) && is_keep_alive(&events[1]), "{events:?}");
    assert!(matches!(events[2], Event::Drained(2)), "{events:?}");
}

#[tokio::test]
async fn queued_call_waits_until_its_request_is_granted() {
    let (mut rig, mut client) = leading().await;
    client.write_all(&waiting_call(30_000)).unwrap();
    let waits = id(&rig.events(1).await[0]);
    answer(&rig, waits, queued());
    answer(&rig, waits, v1::server_item::What::Granted(v1::Granted { token: 77, ..v1::Granted::default() }));
    until_received(&mut client, &[8, 77]).await;
    client.write_all(&call(3)).unwrap();
    assert!(is_keep_alive(&rig.events(2).await[1]), "the answered call is not dropped: {:?}", rig.seen);
    assert_eq!(rig.front.sessions.registry().calls.len(), 1);
}

/// The request stays in the queue, so an answer to it may come at any time: the replica has to know that no
/// call waits for it any more.
#[tokio::test]
async fn queued_call_is_answered_and_dropped_at_the_end_of_its_poll() {
    for poll_ms in [100, 0] {
        let (mut rig, mut client) = leading().await;
        client.write_all(&waiting_call(poll_ms)).unwrap();
        let waits = id(&rig.events(1).await[0]);
        answer(&rig, waits, queued());
        let events = rig.events(2).await;
        assert!(matches!(events[1], Event::CallDropped(call) if call == waits), "{events:?}");
        assert!(rig.front.sessions.registry().calls.is_empty());
    }
}

#[tokio::test]
async fn call_whose_caller_has_gone_is_dropped() {
    let (mut rig, mut client) = leading().await;
    client.write_all(&waiting_call(30_000)).unwrap();
    let waits = id(&rig.events(1).await[0]);
    answer(&rig, waits, queued());
    drop(client);
    let events = rig.events(2).await;
    assert!(matches!(events[1], Event::CallDropped(call) if call == waits), "{events:?}");
}
