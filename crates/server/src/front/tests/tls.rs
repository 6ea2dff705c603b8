//! Connections over TLS: the drain barrier covers input that the TLS layer holds, and the client counts as
//! having closed the connection both with `close_notify` and with a bare FIN.

use std::net::Shutdown;
use std::path::Path;
use std::sync::Arc;

use lockkeeper_replica::{Members, StreamCloseCause};
use lockkeeper_rig::{Authority, Issued};
use lockkeeper_wire::store::{Founding, Member};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{DEADLINE, Event, Frames, Rig, is_keep_alive, local};
use crate::access::AccessFiles;
use crate::data::Addresses;
use crate::front::paths::{FORWARDED, IDENTITY};
use crate::options::{ConnectionLimits, ServerOptions};
use crate::peers::Directory;
use crate::tls::{NodeName, NodeTls, TlsFiles};

/// The TLS configurations of node 1 and of its clients.
struct Certificates {
    node: Arc<NodeTls>,
    client: TlsConnector,
    /// A client without a certificate.
    stranger: TlsConnector,
    /// Clients whose certificates have ended, and are not valid yet.
    untimely: [TlsConnector; 2],
    /// Clients with the certificates of nodes 2 and 3 of the cluster.
    nodes: [TlsConnector; 2],
}

fn certificates(folder: &Path) -> Certificates {
    let authority = Authority::new();
    let name = NodeName { cluster: "test".to_owned(), node: Some(1) };
    let node = authority.issue(&["localhost"], &[&name.uri()]);
    let [certificate, key] = node.write(folder, "node");
    let files = TlsFiles { certificate, key, ca: authority.write(folder, "ca") };
    let client = authority.issue(&["billing"], &[]);
    let untimely = [[2020, 2021], [2900, 2901]].map(|years| authority.issue_between(&["late"], &[], years));
    let others = [2, 3].map(|node| {
        let name = NodeName { cluster: "test".to_owned(), node: Some(node) };
        authority.issue(&["localhost"], &[&name.uri()])
    });
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let key = |pem: &str| PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&authority.certificate())).unwrap();
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots.clone())
    };
    let connector = |mut config: ClientConfig| {
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config))
    };
    let certified = |it: Issued| {
        let chain = vec![certificate(&it.certificate)];
        connector(builder().with_client_auth_cert(chain, key(&it.key)).unwrap())
    };
    Certificates {
        node: NodeTls::load(&files).unwrap(),
        client: certified(client),
        stranger: connector(builder().with_no_client_auth()),
        untimely: untimely.map(certified),
        nodes: others.map(certified),
    }
}

/// A client that writes the bytes of HTTP/2 itself, after a TLS handshake.
struct TlsClient {
    stream: TlsStream<TcpStream>,
    frames: Frames,
}

impl TlsClient {
    async fn connect(rig: &Rig, tls: &TlsConnector) -> Self {
        let socket = TcpStream::connect(rig.address).await.unwrap();
        let stream = tls.connect("localhost".try_into().unwrap(), socket).await.unwrap();
        Self { stream, frames: Frames { is_first: true } }
    }

    async fn says(&mut self, id: u64) {
        let bytes = self.frames.next(id);
        self.stream.write_all(&bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Writes several records in one segment. The node's tasks do not run in between, since loopback accepts
    /// the segment at once.
    fn says_at_once(&mut self, ids: std::ops::Range<u64>) {
        let (socket, tls) = self.stream.get_mut();
        for id in ids {
            std::io::Write::write_all(&mut tls.writer(), &self.frames.next(id)).unwrap();
        }
        let mut bytes = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut bytes).unwrap();
        }
        assert_eq!(socket.try_write(&bytes).unwrap(), bytes.len());
    }

    /// Sends FIN without `close_notify`.
    fn finishes(&self) {
        SockRef::from(self.stream.get_ref().0).shutdown(Shutdown::Write).unwrap();
    }

    /// Asserts that the first events are this client's keep-alives with these ids.
    fn assert_said(events: &[Event], ids: std::ops::Range<u64>) {
        for (event, id) in events.iter().zip(ids) {
            assert!(is_keep_alive(event, id), "{id}: {events:?}");
        }
    }
}

/// Like the test for a plain connection, but the barrier begins when the runtime has read the socket. Three
/// keep-alives arrive as three records in one segment; the barrier waits for all of them.
#[tokio::test]
async fn barrier_over_tls_waits_for_all_records_that_had_arrived() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let mut rig = Rig::start_with(Some(tls.node)).await;
        let mut client = TlsClient::connect(&rig, &tls.client).await;
        client.says(1).await;
        assert!(is_keep_alive(&rig.events(2).await[1], 1));
        rig.drain(1);
        assert!(matches!(rig.events(3).await[2], Event::Drained(1)));

        client.says_at_once(2..5);
        rig.drain(2);
        let events = &rig.events(7).await[3..];
        TlsClient::assert_said(events, 2..5);
        assert!(matches!(events[3], Event::Drained(2)), "{events:?}");
    })
    .await;
}

/// A connection in its TLS handshake has sent no request, so a barrier does not wait for it.
#[tokio::test]
async fn barrier_does_not_wait_for_a_tls_handshake_that_goes_no_further() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let mut rig = Rig::start_with(Some(certificates(folder.path()).node)).await;
        let mut half = TcpStream::connect(rig.address).await.unwrap();
        half.write_all(&[0x16, 3, 1]).await.unwrap();
        rig.drain(1);
        assert!(matches!(rig.events(1).await[..], [Event::Drained(1)]));
        assert_eq!(rig.front.connections(), 1, "it is still open");
    })
    .await;
}

async fn ended_by(end: impl AsyncFnOnce(&mut TlsClient)) -> bool {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let mut rig = Rig::start_with(Some(tls.node)).await;
        let mut client = TlsClient::connect(&rig, &tls.client).await;
        client.says(7).await;
        assert!(is_keep_alive(&rig.events(2).await[1], 7));
        end(&mut client).await;
        match rig.events(3).await[2] {
            Event::StreamClosed { cause, .. } => cause == StreamCloseCause::Client,
            ref other => panic!("the stream was to end: {other:?}"),
        }
    })
    .await
}

#[tokio::test]
async fn tls_close_notify_counts_as_closed_by_client() {
    let close = async |client: &mut TlsClient| {
        client.stream.get_mut().1.send_close_notify();
        client.stream.flush().await.unwrap();
    };
    assert!(ended_by(close).await);
}

/// A killed process leaves only a FIN, without `close_notify`.
#[tokio::test]
async fn bare_fin_under_tls_counts_as_closed_by_client() {
    let close = async |client: &mut TlsClient| {
        client.finishes();
    };
    assert!(ended_by(close).await);
}

/// The last request and the end of the connection arrive together: the request counts before the end does,
/// also with a barrier in between.
#[tokio::test]
async fn request_that_arrives_together_with_fin_is_handed_on_before_the_barrier_passes() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let mut rig = Rig::start_with(Some(tls.node)).await;
        let mut client = TlsClient::connect(&rig, &tls.client).await;
        client.says(1).await;
        assert!(is_keep_alive(&rig.events(2).await[1], 1));
        client.says_at_once(2..5);
        client.finishes();
        rig.drain(1);
        let events = &rig.events(7).await[2..];
        TlsClient::assert_said(events, 2..5);
        let drained = events.iter().position(|event| matches!(event, Event::Drained(1)));
        assert!(drained.is_some_and(|at| at >= 3), "{events:?}");
    })
    .await;
}

/// The limit of unauthenticated connections of one address: half of the total limit, which is 100 in this
/// test.
const PLACES_OF_SOURCE: usize = 50;

#[tokio::test]
async fn silent_connections_of_one_address_keep_no_other_address_out() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let limits = ConnectionLimits { of_client: 80, ..ServerOptions::new("").connection_limits(100) };
        let mut rig = Rig::start_limited(Some(tls.node), None, &AccessFiles::default(), limits).await;
        let mut silent = Vec::new();
        for _ in 0..PLACES_OF_SOURCE {
            silent.push(TcpStream::connect(rig.address).await.unwrap());
        }
        // The oldest gives way to a further one.
        silent.push(TcpStream::connect(rig.address).await.unwrap());
        assert!(matches!(silent.remove(0).read(&mut [0]).await, Ok(0) | Err(_)));
        assert_eq!(rig.front.connections(), PLACES_OF_SOURCE);
        let elsewhere = TcpSocket::new_v4().unwrap();
        elsewhere.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let socket = elsewhere.connect(rig.address).await.unwrap();
        let stream = tls.client.connect("localhost".try_into().unwrap(), socket).await.unwrap();
        let mut client = TlsClient { stream, frames: Frames { is_first: true } };
        client.says(1).await;
        assert!(is_keep_alive(&rig.events(2).await[1], 1));
        // Closed connections make room again, and a connection with a certificate leaves the limit of
        // unauthenticated ones after its handshake.
        drop(silent);
        let mut certified = Vec::new();
        let until = tokio::time::Instant::now() + DEADLINE;
        for id in 0..PLACES_OF_SOURCE as u64 + 10 {
            let mut client = loop {
                let socket = TcpStream::connect(rig.address).await.unwrap();
                // The node may not have noticed yet that the silent ones are gone.
                match tls.client.connect("localhost".try_into().unwrap(), socket).await {
                    Ok(stream) => break TlsClient { stream, frames: Frames { is_first: true } },
                    Err(error) => {
                        assert!(tokio::time::Instant::now() < until, "there was to be room: {error}");
                        tokio::task::yield_now().await;
                    }
                }
            };
            client.says(id).await;
            certified.push(client);
        }
    })
    .await;
}

/// Also one of the same address, as an operator beside a host that misbehaves: its handshake is over before
/// as many others have come after it.
#[tokio::test]
async fn silent_connections_keep_no_client_out_that_says_who_it_is() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let mut rig = Rig::start_with(Some(tls.node)).await;
        let (mut silent, mut served) = (Vec::new(), Vec::new());
        // Every place of the network in turn, that of one which waits too.
        for id in 0..PLACES_OF_SOURCE as u64 / 2 {
            for _ in 0..PLACES_OF_SOURCE + 1 {
                silent.push(TcpStream::connect(rig.address).await.unwrap());
            }
            let mut client = TlsClient::connect(&rig, &tls.client).await;
            client.says(id).await;
            served.push(client);
            // Each stream begins with an event of its own.
            assert!(is_keep_alive(rig.events(2 * served.len()).await.last().unwrap(), id));
        }
        let records = rig.front.callers.audit.recent(None, 100, None).records;
        assert!(
            records.iter().any(|it| it.what == "quota" && it.reason.contains("has given way")),
            "{records:?}"
        );
        // Those that are served do not give way.
        let before = 2 * served.len();
        for (client, count) in served.iter_mut().zip(1..) {
            client.says(99).await;
            assert!(is_keep_alive(rig.events(before + count).await.last().unwrap(), 99));
        }
    })
    .await;
}

/// The client may not learn the reason: it has sent its first call before the node has read its certificate.
#[tokio::test]
async fn refused_certificate_is_in_the_audit_trail_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let rig = Rig::start_with(Some(tls.node)).await;
        for (client, reason) in tls.untimely.iter().zip(["ended at 2021-01-01T00", "only from 2900-01-01T00"])
        {
            let mut client = TlsClient::connect(&rig, client).await;
            assert!(client.stream.read(&mut [0]).await.is_err());
            let recorded = async {
                loop {
                    let records = rig.front.callers.audit.recent(None, 1, None).records;
                    if let Some(record) = records.into_iter().find(|it| it.reason.contains(reason)) {
                        return record;
                    }
                    tokio::task::yield_now().await;
                }
            };
            let record = tokio::time::timeout(DEADLINE, recorded).await.expect("a record");
            assert_eq!((&*record.what, &*record.result), ("unauthenticated", "refused"));
            assert!(!record.address.is_empty(), "{record:?}");
        }
    })
    .await;
}

/// The status of a call: in the headers, or in the trailers. Only nodes' calls are passed on.
async fn status_of(rig: &Rig, tls: &TlsConnector, path: &str, body: usize) -> String {
    let socket = TcpStream::connect(rig.address).await.unwrap();
    let stream = tls.connect("localhost".try_into().unwrap(), socket).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::task::spawn_local(connection);
    let request = http::Request::post(format!("https://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header(FORWARDED, "0f")
        .header(IDENTITY, "ops")
        .body(())
        .unwrap();
    let (answer, mut stream) = requests.ready().await.unwrap().send_request(request, false).unwrap();
    let mut message = vec![0];
    message.extend_from_slice(&u32::try_from(body).unwrap().to_be_bytes());
    message.resize(5 + body, 0);
    // The node may have answered before it has read everything.
    let _ = stream.send_data(bytes::Bytes::from(message), true);
    let mut answer = answer.await.unwrap();
    if let Some(status) = answer.headers().get("grpc-status") {
        return status.to_str().unwrap().to_owned();
    }
    while let Some(part) = answer.body_mut().data().await {
        part.unwrap();
    }
    let trailers = answer.body_mut().trailers().await.unwrap().unwrap();
    trailers["grpc-status"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn stranger_is_answered_by_the_health_service_only_and_in_small_messages() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let rig = Rig::start_with(Some(tls.node)).await;
        let health = "/grpc.health.v1.Health/Check";
        assert_eq!(status_of(&rig, &tls.stranger, health, 0).await, "0");
        let large = status_of(&rig, &tls.stranger, health, 5_000).await;
        assert_eq!(large, (tonic::Code::OutOfRange as i32).to_string());
        let refused = (tonic::Code::Unauthenticated as i32).to_string();
        for path in [
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/lockkeeper.v1.Lockkeeper/Status",
            "/lockkeeper.v1.Lockkeeper/Session",
            "/",
        ] {
            assert_eq!(status_of(&rig, &tls.stranger, path, 0).await, refused, "{path}");
        }
    })
    .await;
}

/// The right to issue certificates of nodes does not make its owner a member.
#[tokio::test]
async fn identity_of_a_forwarded_call_is_believed_from_members_only() {
    let folder = tempfile::tempdir().unwrap();
    local(async {
        let tls = certificates(folder.path());
        let rig = Rig::start_with(Some(tls.node)).await;
        let [member, other] = &tls.nodes;
        let audit = "/lockkeeper.v1.Lockkeeper/Audit";
        let denied = (tonic::Code::PermissionDenied as i32).to_string();
        assert_eq!(
            status_of(&rig, member, audit, 0).await,
            denied,
            "a node that is alone has no other members"
        );
        let nodes = [1, 2].map(|node| (node, Member { node, ..Member::default() }));
        let members = Members { nodes: nodes.into(), ..Members::default() };
        let founding = Founding { node: 1, ..Founding::default() };
        let addresses = Addresses { client: "", peer: "" };
        let directory = Directory::new(founding, addresses, members, 1, crate::ELECTION_TIMEOUT, None);
        rig.front.has_peers(directory);
        assert_eq!(status_of(&rig, member, audit, 0).await, "0");
        assert_eq!(status_of(&rig, other, audit, 0).await, denied);
    })
    .await;
}
