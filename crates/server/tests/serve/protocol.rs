//! Clients that violate the protocol or do not read: they lose their own stream, and affect no other.

use bytes::{BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use lockkeeper_wire::v1::{self, StreamEndReason, client_item, server_item::What};
use prost::Message;
use tokio::net::TcpStream;

use crate::harness::{Client, DEADLINE, SECRET, Server, acquire, directory};

/// A stream whose bytes the test chooses.
struct Raw {
    outbound: SendStream<Bytes>,
    inbound: RecvStream,
    read: BytesMut,
}

impl Raw {
    async fn connect(server: &Server) -> Self {
        let socket = TcpStream::connect(server.running.address()).await.unwrap();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post("http://node/lockkeeper.v1.Lockkeeper/Session")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (answer, outbound) = requests.ready().await.unwrap().send_request(request, false).unwrap();
        let inbound = tokio::time::timeout(DEADLINE, answer).await.unwrap().unwrap().into_body();
        Self { outbound, inbound, read: BytesMut::new() }
    }

    fn send(&mut self, message: &[u8]) {
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(message.len()).unwrap());
        bytes.extend_from_slice(message);
        self.outbound.send_data(bytes.freeze(), false).unwrap();
    }

    /// The last item of the stream; skips all others.
    async fn last(&mut self) -> What {
        let mut last = None;
        loop {
            while let Some(length) = self.read.get(1..5) {
                let end = 5 + u32::from_be_bytes(length.try_into().unwrap()) as usize;
                if self.read.len() < end {
                    break;
                }
                let message = self.read.split_to(end).split_off(5);
                last = v1::ServerFrame::decode(message).unwrap().items.pop().or(last);
            }
            match tokio::time::timeout(DEADLINE, self.inbound.data()).await.expect("an end was due") {
                Some(bytes) => {
                    let bytes = bytes.unwrap();
                    self.inbound.flow_control().release_capacity(bytes.len()).unwrap();
                    self.read.extend_from_slice(&bytes);
                }
                None => return last.unwrap().what.unwrap(),
            }
        }
    }
}

fn assert_ended(what: &What, reason: StreamEndReason, text: &str) {
    match what {
        What::StreamEnd(end) => {
            assert_eq!(end.reason(), reason, "{end:?}");
            assert!(end.text.contains(text), "{end:?}");
        }
        other => panic!("the stream was to end: {other:?}"),
    }
}

#[tokio::test]
async fn invalid_frame_ends_its_own_stream_only() {
    let data = directory();
    let server = Server::start(data.path());
    let mut honest = Client::connect(&server).await;
    let session = honest.open(SECRET, "").await;
    let mut stranger = Raw::connect(&server).await;
    stranger.send(&[0xff; 100]);
    assert_ended(&stranger.last().await, StreamEndReason::Protocol, "");
    honest.hold(session, 1, "a").await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn item_without_a_valid_command_ends_its_stream_with_the_reason() {
    let data = directory();
    let server = Server::start(data.path());
    let bad = [
        (None, "says nothing"),
        (Some(client_item::What::Acquire(acquire(0, "a//b", false))), "a//b"),
        (Some(client_item::What::Open(v1::OpenSession::default())), "secret"),
    ];
    for (what, text) in bad {
        let mut client = Client::connect(&server).await;
        client.send_all(vec![v1::ClientItem { session: 1, what }]);
        let end = client.stream_end().await;
        assert_eq!(end.reason(), StreamEndReason::Protocol);
        assert!(end.text.contains(text), "{end:?}");
    }
    server.stop().await.unwrap();
}

/// One stream carries all sessions of a client process, so one bad command must not affect the others.
#[tokio::test]
async fn a_command_over_a_limit_is_refused_and_the_rest_of_its_frame_is_carried_out() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Client::connect(&server).await;
    let (one, other) = (client.open(SECRET, "").await, client.open([8; 16], "").await);
    let many = v1::Acquire { names: vec!["a".to_owned(); 66], ..acquire(1, "a", true) };
    let large = v1::Acquire { value: vec![0; 100_000], ..acquire(2, "a", true) };
    let long = acquire(3, &"x".repeat(513), true);
    let unknown = v1::Acquire { mode: 9, ..acquire(4, "a", true) };
    let bad = [(many, "66 names"), (large, "100000 bytes"), (long, "513 bytes"), (unknown, "mode 9")];
    let acquire_by = |session, it| v1::ClientItem { session, what: Some(client_item::What::Acquire(it)) };
    let mut items: Vec<_> = bad.iter().map(|(it, _)| acquire_by(one, it.clone())).collect();
    items.extend([acquire_by(one, acquire(5, "b", false)), acquire_by(other, acquire(1, "c", false))]);
    client.send_all(items);
    for (it, text) in &bad {
        let item = client.item().await.unwrap();
        assert_eq!((item.session, item.seq), (one, it.seq));
        let Some(What::Refused(refused)) = item.what else { panic!("{item:?}") };
        assert_eq!(refused.code(), v1::RefusedCode::Invalid);
        assert!(refused.text.contains(text), "{refused:?}");
    }
    for (session, seq) in [(one, 5), (other, 1)] {
        let item = client.item().await.unwrap();
        assert_eq!((item.session, item.seq), (session, seq));
        assert!(matches!(item.what, Some(What::Granted(_))), "{item:?}");
    }
    // A repeat is refused again, though no answer was kept: a refused command never takes effect later (R6,
    // F4).
    client.send_all(vec![acquire_by(one, bad[0].0.clone())]);
    assert!(matches!(client.what().await, What::Refused(_)));
    client.finish(one, 6, 1);
    assert!(matches!(client.what().await, What::Finished(finished) if finished.end() == v1::End::Gone));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_frame_over_the_limit_ends_its_stream_before_it_is_read() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Raw::connect(&server).await;
    let mut head = BytesMut::new();
    head.put_u8(0);
    head.put_u32(u32::try_from(lockkeeper_wire::FRAME_BYTES_MAX).unwrap() + 1);
    client.outbound.send_data(head.freeze(), false).unwrap();
    assert_ended(&client.last().await, StreamEndReason::Protocol, "4194304");
    server.stop().await.unwrap();
}

/// 2^21 items of two bytes would take about 300 MB once they are decoded.
#[tokio::test]
async fn a_frame_of_too_many_items_ends_its_stream_with_the_limit() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Raw::connect(&server).await;
    client.send(&[0x0a, 0].repeat(lockkeeper_wire::FRAME_BYTES_MAX / 2));
    assert_ended(
        &client.last().await,
        StreamEndReason::Protocol,
        "more than 16384 items, the most that are allowed",
    );
    server.stop().await.unwrap();
}

#[tokio::test]
async fn client_that_never_reads_loses_its_stream_and_delays_no_other() {
    let data = directory();
    let server = Server::start(data.path());
    let mut honest = Client::connect(&server).await;
    let session = honest.open(SECRET, "").await;

    let mut deaf = Raw::connect(&server).await;
    let keep_alive =
        |id| v1::ClientItem { session: 999, what: Some(client_item::What::KeepAlive(v1::KeepAlive { id })) };
    // Each is answered with the error that there is no such session.
    for _ in 0..30 {
        let items = (0..10_000).map(keep_alive).collect();
        deaf.send(&v1::ClientFrame { items }.encode_to_vec());
    }
    for seq in 1..=20 {
        honest.hold(session, seq, &format!("a/{seq}")).await;
    }
    let mut calls = server.calls().await;
    for streams in [2, 1] {
        let reached = async {
            while calls.status(v1::StatusRequest { node: 0 }).await.unwrap().into_inner().streams != streams {
            }
        };
        tokio::time::timeout(DEADLINE, reached).await.expect("the deaf one is there, and is cut off");
    }
    assert_ended(&deaf.last().await, StreamEndReason::TooSlow, "did not read");
    honest.hold(session, 21, "a/21").await;
    server.stop().await.unwrap();
}
