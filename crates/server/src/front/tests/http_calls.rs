//! Calls by HTTP/JSON: a barrier passes only after the calls that had arrived were passed to the replica.

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

/// The runtime has only this thread, which is busy while it writes. So when the barrier begins, the calls are
/// still in the socket of an idle connection and in the accept queue.
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
    assert!(is_keep_alive(&rig.events(1).await[0]));
    drain(&rig, 1);
    let events = rig.events(2).await;
    assert!(
        matches!(events[1], Event::Drained(1)),
        "a call that waits for its answer delays nothing: {events:?}"
    );

    idle.write_all(KEEP_ALIVE.as_bytes()).unwrap();
    let mut new = connect(&rig);
    new.write_all(KEEP_ALIVE.as_bytes()).unwrap();
    drain(&rig, 2);
    let events = &rig.events(5).await[2..];
    assert!(is_keep_alive(&events[0]) && is_keep_alive(&events[1]), "{events:?}");
    assert!(matches!(events[2], Event::Drained(2)), "{events:?}");
}

/// HTTP/1 handles one call at a time, so a call that follows a waiting one is not read. That call may be a
/// keep-alive, so no session may expire before the connection is closed, which the client notices.
#[tokio::test]
async fn connection_with_calls_behind_one_that_waits_is_closed_before_a_barrier_passes() {
    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let mut pipelined = connect(&rig);
    pipelined.write_all(KEEP_ALIVE.repeat(2).as_bytes()).unwrap();
    assert!(is_keep_alive(&rig.events(1).await[0]));
    drain(&rig, 1);
    let events = rig.events(3).await;
    assert!(matches!(events[1..], [Event::CallDropped(_), Event::Drained(1)]), "{events:?}");
    let ended = tokio::task::spawn_blocking(move || pipelined.read(&mut [0; 1]));
    assert!(ended.await.unwrap().is_ok_and(|read| read == 0), "it is closed");
}

const OPEN: &str = r#"{"ttl_ms":30000}"#;

fn head_of_open(body: &str) -> String {
    format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         lockkeeper-secret: 07070707070707070707070707070707\r\n{body}\r\n\r\n"
    )
}

fn is_open(event: &Event) -> bool {
    matches!(event, Event::Called(_, called) if matches!(called.request, CallRequest::Open(_)))
}

async fn until_called(rig: &Rig) {
    let called = async {
        while !rig.front.transport.connections().values().any(|it| it.idle_since().is_none()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, called).await.expect("a call begins");
}

/// Over HTTP/1 and HTTP/2. The rest of the body is passed on before the next barrier passes.
#[tokio::test]
async fn barrier_does_not_wait_for_bodies_that_had_not_arrived_whole() {
    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let (begun, rest) = OPEN.split_at(5);
    let mut slow = connect(&rig);
    slow.write_all(head_of_open(&format!("content-length: {}", OPEN.len())).as_bytes()).unwrap();
    slow.write_all(begun.as_bytes()).unwrap();
    until_called(&rig).await;
    drain(&rig, 1);
    assert!(matches!(rig.events(1).await[..], [Event::Drained(1)]));
    assert_eq!(rig.front.connections(), 1, "it was not closed for that");
    slow.write_all(rest.as_bytes()).unwrap();
    drain(&rig, 2);
    let events = rig.events(3).await;
    assert!(is_open(&events[1]) && matches!(events[2], Event::Drained(2)), "{events:?}");
    drop(slow);

    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let open = v1::OpenSession { secret: vec![7; 16], ttl_ms: 30_000, ..v1::OpenSession::default() };
    let item = v1::ClientItem { session: 0, what: Some(v1::client_item::What::Open(open)) };
    let call = message(&v1::SessionCallRequest { item: Some(item), ..v1::SessionCallRequest::default() });
    let mut slow = std::net::TcpStream::connect(rig.address).unwrap();
    let mut bytes = Vec::new();
    begin(&mut bytes);
    head(&mut bytes, 1, "/lockkeeper.v1.Lockkeeper/SessionCall");
    put(&mut bytes, 0, 0, 1, &call[..5]);
    slow.write_all(&bytes).unwrap();
    until_called(&rig).await;
    drain(&rig, 1);
    assert!(matches!(rig.events(1).await[..], [Event::Drained(1)]));
    bytes.clear();
    call[5..].iter().for_each(|byte| put(&mut bytes, 0, 0, 1, &[*byte]));
    put(&mut bytes, 0, 1, 1, &[]);
    slow.write_all(&bytes).unwrap();
    drain(&rig, 2);
    let events = rig.events(3).await;
    assert!(is_open(&events[1]) && matches!(events[2], Event::Drained(2)), "{events:?}");
}

/// The HTTP layer returns one chunk per poll, so all chunks that had arrived must be polled.
#[tokio::test]
async fn barrier_waits_for_a_body_of_small_chunks_that_had_arrived_whole() {
    let mut rig = Rig::start().await;
    rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let mut socket = connect(&rig);
    let chunks: String = OPEN.chars().map(|it| format!("1\r\n{it}\r\n")).collect();
    socket.write_all(head_of_open("transfer-encoding: chunked").as_bytes()).unwrap();
    until_called(&rig).await;
    socket.write_all(format!("{chunks}0\r\n\r\n").as_bytes()).unwrap();
    drain(&rig, 1);
    let events = rig.events(2).await;
    assert!(is_open(&events[0]) && matches!(events[1], Event::Drained(1)), "{events:?}");
}
