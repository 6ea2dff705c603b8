//! Calls by HTTP/JSON: no barrier passes before those that had arrived are handed on.

use std::io::{Read as _, Write as _};

use super::session_calls::is_keep_alive;
use super::*;

const KEEP_ALIVE: &str = "POST /v1/sessions/1/keep-alive HTTP/1.1\r\nhost: localhost\r\n\
    lockkeeper-secret: 07070707070707070707070707070707\r\ncontent-length: 0\r\n\r\n";

fn connect(rig: &Rig) -> std::net::TcpStream {
    let socket = std::net::TcpStream::connect(rig.http_address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn drain(rig: &Rig, number: u64) {
    rig.outbox.put(&mut vec![Output::Drain(number)], ReplicaStatus::Ready);
}

/// This thread, which is also the runtime's, is blocked while it writes; the calls are in a socket that was idle, and in the
/// accept queue, when the barrier begins.
#[tokio::test]
async fn barrier_after_a_stall_waits_for_calls_by_http() {
    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let idle = connect(&rig);
    let used = tokio::task::spawn_blocking(move || {
        let mut idle = idle;
        idle.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 15];
        idle.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        idle
    });
    let mut idle = used.await.unwrap();
    let mut waiting = connect(&rig);
    waiting.write_all(KEEP_ALIVE.as_bytes()).unwrap();
    assert!(is_keep_alive(&rig.events(2).await[1]));
    drain(&rig, 1);
    let events = rig.events(3).await;
    assert!(
        matches!(events[2], Event::Drained(1)),
        "a call that waits for its answer delays nothing: {events:?}"
    );

    idle.write_all(KEEP_ALIVE.as_bytes()).unwrap();
    let mut new = connect(&rig);
    new.write_all(KEEP_ALIVE.as_bytes()).unwrap();
    drain(&rig, 2);
    let events = &rig.events(6).await[3..];
    assert!(is_keep_alive(&events[0]) && is_keep_alive(&events[1]), "{events:?}");
    assert!(matches!(events[2], Event::Drained(2)), "{events:?}");
}

/// A connection carries one call at a time, so a call behind one that waits is not read. No session expires while it may be
/// a keep-alive: the connection is closed first, and its client knows.
#[tokio::test]
async fn connection_with_calls_behind_one_that_waits_is_closed_before_a_barrier_passes() {
    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let mut pipelined = connect(&rig);
    pipelined.write_all(KEEP_ALIVE.repeat(2).as_bytes()).unwrap();
    assert!(is_keep_alive(&rig.events(2).await[1]));
    drain(&rig, 1);
    let events = rig.events(4).await;
    let is_closed = matches!(events[2], Event::StreamClosed { cause: StreamCloseCause::Service, .. });
    assert!(is_closed && matches!(events[3], Event::Drained(1)), "{events:?}");
    let ended = tokio::task::spawn_blocking(move || pipelined.read(&mut [0; 1]));
    assert!(ended.await.unwrap().is_ok_and(|read| read == 0), "it is closed");
}
