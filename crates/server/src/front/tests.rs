//! The front with real sockets and without a replica: how streams end, and that no barrier passes before the
//! input that had arrived was handed on (P9). Clients drive HTTP/2 directly, to control each byte.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use lockkeeper_replica::{Answer, AskId, CallRequest, Event, Output, StreamCloseCause, StreamId};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1;
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use prost::Message;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, LocalSet};
use tonic::transport::Endpoint;

use super::paths::FORWARDED;
use super::transport::OPEN_CALLS_MAX;
use super::{About, Front, HttpPort, pump};
use crate::access::{Access, AccessFiles};
use crate::audit::Audit;
use crate::disk_space::DiskSpace;
use crate::inbox::{Inbox, Outbox, ReplicaStatus};
use crate::options::{ConnectionLimits, ServerOptions};
use crate::tls::NodeTls;

mod connections;
mod http_calls;
mod session_calls;
mod tls;

/// Far longer than any test here takes.
const DEADLINE: Duration = Duration::from_secs(20);

struct Rig {
    front: Arc<Front>,
    outbox: Arc<Outbox>,
    address: SocketAddr,
    http_address: SocketAddr,
    seen: Vec<Event>,
}

impl Rig {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    async fn start_with(tls: Option<Arc<NodeTls>>) -> Self {
        Self::start_of(tls, None).await
    }

    async fn start_of(tls: Option<Arc<NodeTls>>, audit: Option<&Path>) -> Self {
        let limits = ServerOptions::new("").connection_limits(100);
        Self::start_limited(tls, audit, &AccessFiles::default(), limits).await
    }

    async fn start_limited(
        tls: Option<Arc<NodeTls>>,
        audit: Option<&Path>,
        access: &AccessFiles,
        limits: ConnectionLimits,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http_address = http.local_addr().unwrap();
        let about = About {
            node: 1,
            disk: Arc::new(DiskSpace::new("data".to_owned(), 64 << 20)),
            cluster: String::new(),
            incarnation: String::new(),
            clients: Default::default(),
            files_error: Default::default(),
        };
        let access = Access::load(access).unwrap();
        let audit = Audit::open(audit).unwrap();
        let front = Front::new(Arc::new(Inbox::default()), about, tls, access, audit, None, limits);
        let (_, health) = tonic_health::server::health_reporter();
        let http = HttpPort { listener: http, metrics: None, hazards: None };
        let acceptor = front.acceptor(listener, Some(http), health).unwrap();
        let outbox = Arc::new(Outbox::default());
        tokio::spawn(pump(front.clone(), acceptor.clone(), outbox.clone()));
        acceptor.run();
        Self { front, outbox, address, http_address, seen: Vec::new() }
    }

    fn drain(&self, number: u64) {
        self.outbox.put(&mut vec![Output::Drain(number)], ReplicaStatus::Waiting);
    }

    /// Waits until `count` events have arrived in total; returns all of them.
    async fn events(&mut self, count: usize) -> &[Event] {
        let arrive = poll_fn(|cx| {
            let mut events = Vec::new();
            self.front.replica.inbox.take(&mut events, usize::MAX);
            self.seen.append(&mut events);
            if self.seen.len() >= count {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        let arrived = tokio::time::timeout(DEADLINE, arrive).await;
        assert!(arrived.is_ok(), "{count} events were to come: {:?}", self.seen);
        &self.seen
    }
}

/// A client with one stream.
struct Client {
    _requests: SendRequest<Bytes>,
    stream: SendStream<Bytes>,
    socket: std::net::TcpStream,
    connection: AbortHandle,
}

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        Self::connect_by(address, None).await
    }

    /// With `relayed_by`, as the node that relays a client's stream.
    async fn connect_by(address: SocketAddr, relayed_by: Option<&str>) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        let twin = SockRef::from(&socket).try_clone().unwrap().into();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        let connection = tokio::task::spawn_local(connection).abort_handle();
        let mut requests = requests.ready().await.unwrap();
        let mut request = http::Request::post("http://node/lockkeeper.v1.Lockkeeper/Session")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(node) = relayed_by {
            request = request.header(FORWARDED, node);
        }
        let request = request.body(()).unwrap();
        let (_, stream) = requests.send_request(request, false).unwrap();
        Self { _requests: requests, stream, socket: twin, connection }
    }

    fn keep_alive(&mut self, id: u64) {
        let what = Some(v1::client_item::What::KeepAlive(v1::KeepAlive { id }));
        self.send(&v1::ClientFrame { items: vec![v1::ClientItem { session: 1, what }] });
    }

    fn send(&mut self, frame: &v1::ClientFrame) {
        self.stream.send_data(message(frame).into(), false).unwrap();
    }
}

fn is_keep_alive(event: &Event, wanted: u64) -> bool {
    matches!(event, Event::Frame(_, requests) if matches!(requests[..], [Request::KeepAlive { id, .. }] if id == wanted))
}

async fn local<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

/// Opens a stream, calls `end` on its client, and returns whether that end counted as the client's.
async fn ended_by(end: impl FnOnce(&mut Client)) -> bool {
    ended_over(None, end).await
}

async fn ended_over(relayed_by: Option<&str>, end: impl FnOnce(&mut Client)) -> bool {
    local(async {
        let mut rig = Rig::start().await;
        let mut client = Client::connect_by(rig.address, relayed_by).await;
        client.keep_alive(7);
        assert!(is_keep_alive(&rig.events(2).await[1], 7));
        end(&mut client);
        match rig.events(3).await[2] {
            Event::StreamClosed { stream: StreamId(_), cause } => cause == StreamCloseCause::Client,
            ref other => panic!("the stream was to end: {other:?}"),
        }
    })
    .await
}

#[tokio::test]
async fn end_stream_by_the_client_counts_as_closed_by_client() {
    assert!(ended_by(|client| client.stream.send_data(Bytes::new(), true).unwrap()).await);
}

#[tokio::test]
async fn stream_reset_by_the_client_counts_as_closed_by_client() {
    assert!(ended_by(|client| client.stream.send_reset(Reason::CANCEL)).await);
    assert!(ended_by(|client| client.stream.send_reset(Reason::INTERNAL_ERROR)).await);
}

/// `linger` must not start when the relaying node dies, since its client knows nothing of that yet (P5).
#[tokio::test]
async fn no_end_over_a_relay_counts_as_closed_by_client() {
    let by = Some("0f");
    assert!(!ended_over(by, |client| client.stream.send_data(Bytes::new(), true).unwrap()).await);
    assert!(!ended_over(by, |client| client.stream.send_reset(Reason::CANCEL)).await);
    assert!(!ended_over(by, |client| client.socket.shutdown(std::net::Shutdown::Write).unwrap()).await);
}

#[tokio::test]
async fn connection_fin_counts_as_closed_by_client() {
    assert!(ended_by(|client| client.socket.shutdown(std::net::Shutdown::Write).unwrap()).await);
}

#[tokio::test]
async fn connection_rst_counts_as_closed_by_client() {
    let reset = |client: &mut Client| {
        SockRef::from(&client.socket).set_linger(Some(Duration::ZERO)).unwrap();
        // These are the last two descriptors of the socket: closing them without linger sends RST.
        client.connection.abort();
        client.socket = std::net::TcpStream::from(unconnected());
    };
    assert!(ended_by(reset).await);
}

fn unconnected() -> socket2::Socket {
    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap()
}

#[tokio::test]
async fn connection_closed_by_this_side_does_not_count_as_closed_by_client() {
    local(async {
        let mut rig = Rig::start().await;
        let mut client = Client::connect(rig.address).await;
        client.keep_alive(7);
        rig.events(2).await;
        for connection in rig.front.transport.connections().values() {
            connection.kill.cancel();
        }
        let closed = &rig.events(3).await[2];
        assert!(matches!(closed, Event::StreamClosed { cause: StreamCloseCause::Service, .. }), "{closed:?}");
    })
    .await;
}

#[tokio::test]
async fn barrier_passes_at_once_without_connections() {
    let mut rig = Rig::start().await;
    rig.drain(1);
    assert!(matches!(rig.events(1).await[..], [Event::Drained(1)]));
    rig.drain(2);
    assert!(matches!(rig.events(2).await[1], Event::Drained(2)));
}

/// A client on its own thread, which can send while the test's thread is blocked. It connects at its first
/// request.
struct Elsewhere {
    orders: std::sync::mpsc::Sender<u64>,
    sent: std::sync::mpsc::Receiver<()>,
}

impl Elsewhere {
    fn start(address: SocketAddr) -> Self {
        let (orders, todo) = std::sync::mpsc::channel::<u64>();
        let (done, sent) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut client = None;
            while let Ok(id) = todo.recv() {
                runtime.block_on(local(async {
                    if client.is_none() {
                        client = Some(raw(address).await);
                    }
                    let (socket, frames) = client.as_mut().unwrap();
                    let bytes = frames.next(id);
                    tokio::io::AsyncWriteExt::write_all(socket, &bytes).await.unwrap();
                }));
                done.send(()).unwrap();
            }
        });
        Self { orders, sent }
    }

    fn says(&self, id: u64) {
        self.orders.send(id).unwrap();
        self.sent.recv_timeout(DEADLINE).expect("loopback takes it at once");
    }
}

/// The bytes that a client writes to its connection: first the HTTP/2 preface, settings and the call's
/// headers, then frames.
struct Frames {
    is_first: bool,
}

async fn raw(address: SocketAddr) -> (TcpStream, Frames) {
    (TcpStream::connect(address).await.unwrap(), Frames { is_first: true })
}

impl Frames {
    fn next(&mut self, id: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.is_first) {
            begin(&mut bytes);
            head(&mut bytes, 1, "/lockkeeper.v1.Lockkeeper/Session");
        }
        let what = Some(v1::client_item::What::KeepAlive(v1::KeepAlive { id }));
        let frame = v1::ClientFrame { items: vec![v1::ClientItem { session: 1, what }] };
        put(&mut bytes, 0, 0, 1, &message(&frame));
        bytes
    }
}

/// A message as gRPC sends it: not compressed, its length, and it.
fn message(message: &impl Message) -> Vec<u8> {
    let length = u32::try_from(message.encoded_len()).unwrap();
    [&[0], &length.to_be_bytes()[..], &message.encode_to_vec()].concat()
}

/// The preface of a connection, and its settings.
fn begin(bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    put(bytes, 4, 0, 0, &[]);
}

/// The headers of a call, on this HTTP/2 stream.
fn head(bytes: &mut Vec<u8>, stream: u32, path: &str) {
    // HPACK: `:method POST` and `:scheme http` from the static table, the rest as literals without indexing.
    let mut block = vec![0x83, 0x86];
    literal(&mut block, &[0x04], path);
    literal(&mut block, &[0x01], "node");
    // The index 31 exceeds the prefix of four bits.
    literal(&mut block, &[0x0f, 31 - 15], "application/grpc");
    put(bytes, 1, 4, stream, &block);
}

fn put(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}

fn literal(block: &mut Vec<u8>, name: &[u8], value: &str) {
    block.extend_from_slice(name);
    block.push(u8::try_from(value.len()).unwrap());
    block.extend_from_slice(value.as_bytes());
}

/// Models a stall of the whole process, as by SIGSTOP: this thread, which is also the runtime's, is blocked
/// while a client's keep-alive arrives in a socket. The runtime has not polled the socket's readiness when
/// the barrier begins.
#[tokio::test]
async fn barrier_after_a_stall_waits_for_keep_alives_in_the_sockets() {
    let mut rig = Rig::start().await;
    let known = Elsewhere::start(rig.address);
    known.says(1);
    assert!(is_keep_alive(&rig.events(2).await[1], 1));
    rig.drain(1);
    assert!(matches!(rig.events(3).await[2], Event::Drained(1)));

    // The runtime is blocked from here …
    known.says(2);
    rig.drain(2);
    // … to here.
    let events = &rig.events(5).await[3..];
    assert!(is_keep_alive(&events[0], 2), "{events:?}");
    assert!(matches!(events[1], Event::Drained(2)), "{events:?}");
}

#[tokio::test]
async fn barrier_after_a_stall_waits_for_requests_of_connections_in_the_accept_queue() {
    let mut rig = Rig::start().await;
    rig.drain(1);
    assert!(matches!(rig.events(1).await[..], [Event::Drained(1)]));

    let strangers: Vec<_> = (0..5).map(|_| Elsewhere::start(rig.address)).collect();
    for (stranger, id) in strangers.iter().zip(10..) {
        stranger.says(id);
    }
    rig.drain(2);
    let events = &rig.events(12).await[1..];
    let (last, before) = events.split_last().unwrap();
    assert!(matches!(last, Event::Drained(2)), "{events:?}");
    for id in 10..15 {
        assert!(before.iter().any(|event| is_keep_alive(event, id)), "{id}: {events:?}");
    }
}

/// The replica takes no events, so the front stops reading the stream: such a paused connection must not
/// delay a barrier for long.
#[tokio::test]
async fn connection_paused_by_this_side_is_closed_so_that_a_barrier_passes() {
    local(async {
        let mut rig = Rig::start().await;
        let mut client = Client::connect(rig.address).await;
        let item = |id| v1::ClientItem {
            session: 1,
            what: Some(v1::client_item::What::KeepAlive(v1::KeepAlive { id })),
        };
        // There is no room for the second frame before the first one is taken.
        for part in 0..2 {
            client.send(&v1::ClientFrame { items: (part * 10_000..(part + 1) * 10_000).map(item).collect() });
        }
        let connected = async |is_so: bool| {
            let changed = async {
                while (rig.front.connections() > 0) != is_so {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(DEADLINE, changed).await.expect("the connection is opened, and closed");
        };
        connected(true).await;
        rig.drain(1);
        connected(false).await;
        // The first frame comes in parts.
        let parts = 10_000_usize.div_ceil(64);
        let events = rig.events(parts + 3).await;
        assert!(matches!(events[0], Event::StreamOpened { .. }));
        assert!(events[1..=parts].iter().all(|event| matches!(event, Event::Frame(..))));
        let [closed, drained] = &events[parts + 1..] else { panic!("{} events", events.len()) };
        assert!(matches!(closed, Event::StreamClosed { cause: StreamCloseCause::Service, .. }), "{closed:?}");
        assert!(matches!(drained, Event::Drained(1)), "{drained:?}");
    })
    .await;
}

/// A client that sends many calls and reads no answer makes the node buffer few answers (docs/SAFETY.md,
/// "Bounded work").
#[tokio::test]
async fn calls_of_a_client_that_does_not_read_wait_before_they_reach_the_replica() {
    local(async {
        let mut rig = Rig::start().await;
        rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
        let socket = TcpStream::connect(rig.address).await.unwrap();
        let mut builder = h2::client::Builder::new();
        let (requests, connection) =
            builder.initial_window_size(0).handshake::<_, Bytes>(socket).await.unwrap();
        tokio::task::spawn_local(connection);
        let mut requests = requests.ready().await.unwrap();
        let mut answers = Vec::new();
        for _ in 0..100 {
            let request = http::Request::post("http://node/lockkeeper.v1.Lockkeeper/Describe")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(())
                .unwrap();
            requests = requests.ready().await.unwrap();
            let (answer, mut body) = requests.send_request(request, false).unwrap();
            let asked = v1::DescribeRequest { name: "a".to_owned(), ..v1::DescribeRequest::default() };
            let mut bytes = BytesMut::new();
            bytes.put_u8(0);
            bytes.put_u32(u32::try_from(asked.encoded_len()).unwrap());
            asked.encode(&mut bytes).unwrap();
            body.send_data(bytes.freeze(), true).unwrap();
            answers.push(answer);
        }
        let asked: Vec<_> = rig.events(16).await.iter().map(asked).collect();
        rig.outbox.put(&mut vec![Output::Drain(1)], ReplicaStatus::Ready);
        assert!(matches!(rig.events(17).await[16], Event::Drained(1)), "only so many are asked");
        let lock = v1::Lock { name: "x".repeat(100_000), ..v1::Lock::default() };
        let answer = Answer::Described(v1::DescribeResponse { lock: Some(lock) });
        let mut outputs = asked.into_iter().map(|ask| Output::Answer(ask, answer.clone())).collect();
        rig.outbox.put(&mut outputs, ReplicaStatus::Ready);
        // The response headers have arrived, and no byte of the bodies.
        let mut heads = Vec::new();
        for answer in answers.drain(..16) {
            heads.push(answer.await.unwrap());
        }
        rig.outbox.put(&mut vec![Output::Drain(2)], ReplicaStatus::Ready);
        assert!(matches!(rig.events(18).await[17], Event::Drained(2)), "none of them was read");
        // Cancelled calls make room.
        drop(heads);
        assert!(matches!(rig.events(19).await[18], Event::Asked(..)));
    })
    .await;
}

fn asked(event: &Event) -> AskId {
    match event {
        Event::Asked(ask, _) => *ask,
        other => panic!("a call was to come: {other:?}"),
    }
}

/// A caller that cancels its call can't avoid the record.
#[tokio::test]
async fn order_of_a_caller_that_does_not_wait_is_in_the_audit_trail_with_its_result() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit");
    local(async {
        let mut rig = Rig::start_of(None, Some(&audit)).await;
        rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
        let channel =
            Endpoint::from_shared(format!("http://{}", rig.address)).unwrap().connect().await.unwrap();
        let mut calls = LockkeeperClient::new(channel);
        let order = v1::BreakRequest { name: "a".to_owned(), token: 7, ..v1::BreakRequest::default() };
        let mut order = tonic::Request::new(order);
        order.set_timeout(Duration::from_nanos(1));
        let late = calls.r#break(order).await.unwrap_err();
        assert!(matches!(late.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled), "{late}");
        let limit = v1::SetLimitRequest { name: "a".to_owned(), permits: Some(2) };
        let gone = tokio::task::spawn_local(async move { calls.set_limit(limit).await });
        let (first, second) = {
            let events = rig.events(2).await;
            (asked(&events[0]), asked(&events[1]))
        };
        gone.abort();
        assert!(gone.await.is_err());
        let broken = v1::BreakResponse { result: v1::BreakResult::Done.into(), ..Default::default() };
        let answers =
            [Output::Answer(first, Answer::Broken(broken)), Output::Answer(second, Answer::LimitSet)];
        rig.outbox.put(&mut answers.into(), ReplicaStatus::Ready);
        let until = tokio::time::Instant::now() + DEADLINE;
        let text = loop {
            let text = std::fs::read_to_string(&audit).unwrap();
            if text.lines().count() == 2 {
                break text;
            }
            assert!(tokio::time::Instant::now() < until, "two records were to come: {text}");
            tokio::task::yield_now().await;
        };
        assert!(text.contains("\"what\":\"break\"") && text.contains("\"result\":\"done\""), "{text}");
        assert!(text.contains("\"what\":\"set-limit\""), "{text}");
    })
    .await;
}

/// Calls that anybody may make keep their headers in memory until they have arrived.
#[tokio::test]
async fn health_checks_that_never_arrive_whole_are_few() {
    local(async {
        let rig = Rig::start().await;
        let socket = TcpStream::connect(rig.address).await.unwrap();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        tokio::task::spawn_local(connection);
        let mut open = Vec::new();
        for _ in 0..OPEN_CALLS_MAX + 1 {
            let request = http::Request::post("http://node/grpc.health.v1.Health/Check")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(())
                .unwrap();
            let mut requests = requests.clone().ready().await.unwrap();
            open.push(requests.send_request(request, false).unwrap());
        }
        let (refused, _) = open.pop().unwrap();
        let status = refused.await.unwrap().headers()["grpc-status"].clone();
        assert_eq!(status, (tonic::Code::ResourceExhausted as i32).to_string());
        // They end by themselves.
        tokio::time::pause();
        for (answer, _) in open {
            let status = answer.await.unwrap().headers()["grpc-status"].clone();
            assert_eq!(status, (tonic::Code::DeadlineExceeded as i32).to_string());
        }
    })
    .await;
}
