//! A follower's front with a scripted leader.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use http_body_util::BodyExt as _;
use hyper::body::Frame;

use super::*;
use crate::disk_space::DiskSpace;
use crate::front::{About, Front, pump};
use crate::inbox::{Inbox, Outbox};
use crate::options::ServerOptions;

const LEADER: u64 = 2;
/// Far longer than any test here takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// The leader's reaction to a call.
#[derive(Clone, Copy)]
enum Does {
    /// Answers that the token is current.
    Answers,
    /// Answers that it does not lead.
    Refuses,
    /// Dies before it answers.
    Dies,
    /// Neither answers nor dies.
    Hangs,
    /// Sends the first message of a stream, and no further one.
    Begins,
}

/// The path and headers of the calls that a leader received.
type Heard = Arc<Mutex<Vec<(String, HeaderMap)>>>;

/// A scripted leader with one reaction for each call, in order; the last one applies to all further calls.
struct Leader {
    address: SocketAddr,
    heard: Heard,
    /// Cancelled to close the leader's connections.
    dead: CancellationToken,
    task: JoinHandle<()>,
}

impl Leader {
    async fn that(does: &'static [Does]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Heard::default();
        let calls = heard.clone();
        let dead = CancellationToken::new();
        let all = dead.clone();
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let calls = calls.clone();
                let dead = all.child_token();
                let life = dead.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let (calls, dead) = (calls.clone(), dead.clone());
                    let before = {
                        let mut calls = calls.lock();
                        calls.push((request.uri().path().to_owned(), request.headers().clone()));
                        calls.len() - 1
                    };
                    let does = does[before.min(does.len() - 1)];
                    async move { Ok::<_, std::convert::Infallible>(answer(does, &dead).await) }
                });
                tokio::spawn(async move {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    tokio::select! {
                        _ = server.serve_connection(TokioIo::new(socket), service) => {}
                        () = life.cancelled() => {}
                    }
                });
            }
        });
        Self { address, heard, dead, task }
    }

    fn heard(&self) -> Vec<(String, HeaderMap)> {
        self.heard.lock().clone()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(does: Does, dead: &CancellationToken) -> Response<Body> {
    match does {
        Does::Answers => {
            let current = v1::TokenStatus::Current.into();
            let bytes = message(&v1::CheckTokenResponse { status: current, live: Vec::new() });
            let mut trailers = HeaderMap::new();
            Status::ok("").add_header(&mut trailers).unwrap();
            let body = Full::new(bytes).with_trailers(async move { Some(Ok(trailers)) });
            grpc(Body::new(body))
        }
        Does::Refuses => no_leader().into_http(),
        Does::Dies => {
            dead.cancel();
            std::future::pending().await
        }
        Does::Hangs => std::future::pending().await,
        Does::Begins => {
            let synced = v1::watch_response::What::Synced(v1::WatchSynced {});
            let first = Frame::data(message(&v1::WatchResponse { what: Some(synced) }));
            let rest = tokio_stream::StreamExt::chain(
                tokio_stream::once(Ok::<_, Status>(first)),
                tokio_stream::pending(),
            );
            grpc(Body::new(http_body_util::StreamBody::new(rest)))
        }
    }
}

fn message(message: &impl Message) -> Bytes {
    let mut bytes = vec![0, 0, 0, 0, u8::try_from(message.encoded_len()).unwrap()];
    message.encode(&mut bytes).unwrap();
    bytes.into()
}

fn grpc(body: Body) -> Response<Body> {
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

/// The front of a follower, without a replica: the test sets the replica's state.
struct Follower {
    front: Arc<Front>,
    address: SocketAddr,
}

impl Follower {
    async fn of(leader: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clients: BTreeMap<u64, String> =
            leader.iter().map(|leader| (LEADER, leader.to_string())).collect();
        let about = About {
            node: 1,
            disk: Arc::new(DiskSpace::new("data".to_owned(), 64 << 20)),
            cluster: String::new(),
            incarnation: "0f".to_owned(),
            clients,
            files_error: Default::default(),
        };
        let access = crate::access::Access::load(&Default::default()).unwrap();
        let front = Front::new(
            Arc::new(Inbox::default()),
            about,
            None,
            access,
            crate::audit::Audit::open(None).unwrap(),
            None,
            ServerOptions::new("").connection_limits(100),
        );
        let (_, health) = tonic_health::server::health_reporter();
        let acceptor = front.acceptor(listener, None, health).unwrap();
        let outbox = Arc::new(Outbox::default());
        if leader.is_some() {
            outbox.put(&mut Vec::new(), ReplicaStatus::Following { leader: LEADER });
        }
        tokio::spawn(pump(front.clone(), acceptor.clone(), outbox));
        acceptor.run();
        if leader.is_some() {
            let mut state = front.state();
            state.wait_for(|state| *state != ReplicaStatus::Waiting).await.unwrap();
        }
        Self { front, address }
    }

    async fn calls(&self) -> LockkeeperClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        LockkeeperClient::new(endpoint.timeout(DEADLINE).connect().await.unwrap())
    }
}

fn token() -> v1::CheckTokenRequest {
    v1::CheckTokenRequest { name: "a".to_owned(), token: 7 }
}

fn limit() -> v1::SetLimitRequest {
    v1::SetLimitRequest { name: "a".to_owned(), permits: Some(3) }
}

#[tokio::test]
async fn call_is_forwarded_to_the_leader_with_the_callers_deadline() {
    let leader = Leader::that(&[Does::Answers]).await;
    let mut calls = Follower::of(Some(leader.address)).await.calls().await;
    for _ in 0..3 {
        let mut asked = tonic::Request::new(token());
        asked.set_timeout(DEADLINE);
        let answer = calls.check_token(asked).await.unwrap().into_inner();
        assert_eq!(answer.status(), v1::TokenStatus::Current);
    }
    let heard = leader.heard();
    assert_eq!(heard.len(), 3);
    for (path, headers) in heard {
        assert_eq!(path, "/lockkeeper.v1.Lockkeeper/CheckToken");
        assert_eq!(headers[FORWARDED], "0f");
        let timeout = headers["grpc-timeout"].to_str().unwrap().strip_suffix('m').expect("milliseconds");
        let timeout = Duration::from_millis(timeout.parse().unwrap());
        assert!(timeout <= DEADLINE && timeout > Duration::ZERO, "{timeout:?}");
    }
}

#[tokio::test]
async fn forwarded_call_is_not_forwarded_again() {
    let leader = Leader::that(&[Does::Answers]).await;
    let follower = Follower::of(Some(leader.address)).await;
    let mut calls = follower.calls().await;
    let mut passed = tonic::Request::new(token());
    passed.metadata_mut().insert(FORWARDED, "ee".parse().unwrap());
    passed.set_timeout(Duration::from_millis(100));
    let status = calls.check_token(passed).await.unwrap_err();
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
        "no replica answers it: {status:?}"
    );
    assert!(leader.heard().is_empty());
    assert_eq!(kind("/lockkeeper.v1.Lockkeeper/Session"), None);
    assert_eq!(kind("/lockkeeper.v1.Lockkeeper/Status"), Some(CallKind::OfNode));
    assert_eq!(kind("/grpc.health.v1.Health/Check"), None);
}

#[tokio::test]
async fn idempotent_call_is_retried_until_a_leader_answers() {
    let leader = Leader::that(&[Does::Refuses, Does::Dies, Does::Refuses, Does::Answers]).await;
    let mut calls = Follower::of(Some(leader.address)).await.calls().await;
    let answer = calls.check_token(token()).await.unwrap().into_inner();
    assert_eq!(answer.status(), v1::TokenStatus::Current);
    assert_eq!(leader.heard().len(), 4);
}

/// The connections of a partitioned or stopped leader stay open, so a pending call must not wait for their
/// end.
#[tokio::test]
async fn pending_call_moves_to_the_next_leader_unless_it_must_not_be_repeated() {
    let (hangs, next) = (Leader::that(&[Does::Hangs]).await, Leader::that(&[Does::Answers]).await);
    let follower = Follower::of(Some(hangs.address)).await;
    follower.front.replica.clients().insert(LEADER + 1, next.address.to_string());
    let mut calls = follower.calls().await;
    let (mut once, mut watched) = (calls.clone(), calls.clone());
    let asked = tokio::spawn(async move { calls.check_token(token()).await });
    let watching = tokio::spawn(async move { watched.watch(v1::WatchRequest::default()).await });
    let setting = tokio::spawn(async move { once.set_limit(limit()).await });
    while hangs.heard().len() < 3 {
        tokio::task::yield_now().await;
    }
    follower.front.replica.set_state(ReplicaStatus::Following { leader: LEADER + 1 });
    asked.await.unwrap().unwrap();
    watching.await.unwrap().unwrap();
    assert!(!setting.is_finished(), "it may have been done");
    let heard: Vec<String> = next.heard().into_iter().map(|(path, _)| path).collect();
    assert!(heard.len() == 2 && !heard.iter().any(|path| path.ends_with("SetLimit")), "{heard:?}");
}

/// The last applied limit wins, so a repeat could undo a limit that another client has set meanwhile (O1).
#[tokio::test]
async fn set_limit_is_sent_once_and_a_missing_answer_is_reported_as_unknown() {
    for does in [&[Does::Dies, Does::Answers], &[Does::Refuses, Does::Answers]] {
        let leader = Leader::that(does).await;
        let mut calls = Follower::of(Some(leader.address)).await.calls().await;
        let status = calls.set_limit(limit()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("unknown"), "{status:?}");
        assert_eq!(leader.heard().len(), 1);
    }
}

#[tokio::test]
async fn call_without_a_leader_waits_until_one_is_known() {
    let leader = Leader::that(&[Does::Answers]).await;
    let follower = Follower::of(Some(leader.address)).await;
    follower.front.replica.set_state(ReplicaStatus::Waiting);
    let mut calls = follower.calls().await;
    let asked = tokio::spawn(async move { calls.check_token(token()).await });
    // Waits until the call's connection was accepted; the call itself can't be answered without a leader.
    while follower.front.connections() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(leader.heard().is_empty());
    follower.front.replica.set_state(ReplicaStatus::Following { leader: LEADER });
    asked.await.unwrap().unwrap();
    assert_eq!(leader.heard().len(), 1);
}

#[tokio::test]
async fn call_without_a_leader_is_refused_after_a_while_with_an_empty_leader_address() {
    let mut calls = Follower::of(None).await.calls().await;
    let status = calls.check_token(token()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get(LEADER_METADATA).unwrap(), "");
    assert!(status.message().contains("ask another"), "{status:?}");
}

#[tokio::test]
async fn forwarded_watch_ends_with_a_status_when_its_leader_dies() {
    let leader = Leader::that(&[Does::Begins]).await;
    let mut calls = Follower::of(Some(leader.address)).await.calls().await;
    let mut watch = calls.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    leader.dead.cancel();
    let status = watch.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(leader.heard()[0].0, "/lockkeeper.v1.Lockkeeper/Watch");
}

#[tokio::test]
async fn watch_that_came_before_the_election_is_answered_by_the_elected_node() {
    let node = Follower::of(None).await;
    let mut calls = node.calls().await;
    let subscribers = node.front.replica.state_receivers();
    let watch = tokio::spawn(async move { calls.watch(v1::WatchRequest::default()).await });
    // A call that waits for a leader is subscribed to the node's state.
    while node.front.replica.state_receivers() == subscribers {
        tokio::task::yield_now().await;
    }
    node.front.replica.set_state(ReplicaStatus::Ready);
    watch.await.unwrap().unwrap();
}

#[tokio::test]
async fn call_too_long_to_forward_is_refused_with_the_limit() {
    let leader = Leader::that(&[Does::Answers]).await;
    let mut calls = Follower::of(Some(leader.address)).await.calls().await;
    let name = "a".repeat(CALL_BYTES_MAX);
    let status = calls.check_token(v1::CheckTokenRequest { name, token: 7 }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains(&CALL_BYTES_MAX.to_string()), "{status:?}");
    assert!(leader.heard().is_empty());
}

/// Opens a stream with the header of a client that could not reach this address of the leader. Returns
/// whether the leader has got it.
async fn is_relayed(follower: &Follower, leader: &Leader, unreached: &str, forwarded: bool) -> bool {
    let before = leader.heard().len();
    let mut asked = tonic::Request::new(tokio_stream::pending::<v1::ClientFrame>());
    asked.metadata_mut().insert(lockkeeper_wire::RELAY_METADATA, unreached.parse().unwrap());
    if forwarded {
        asked.metadata_mut().insert(FORWARDED, "ee".parse().unwrap());
    }
    follower.calls().await.session(asked).await.unwrap();
    leader.heard().len() > before
}

#[tokio::test]
async fn stream_is_relayed_once_and_only_to_the_leader_that_its_client_could_not_reach() {
    let leader = Leader::that(&[Does::Begins]).await;
    let follower = Follower::of(Some(leader.address)).await;
    let address = leader.address.to_string();
    assert!(is_relayed(&follower, &leader, &address, false).await);
    let (path, headers) = leader.heard().remove(0);
    assert_eq!(path, "/lockkeeper.v1.Lockkeeper/Session");
    assert_eq!(headers[FORWARDED], "0f");
    assert!(
        !is_relayed(&follower, &leader, "192.0.2.1:5625", false).await,
        "it may reach this leader itself"
    );
    assert!(!is_relayed(&follower, &leader, &address, true).await, "another node has relayed it");
    follower.front.replica.set_state(ReplicaStatus::Ready);
    assert!(!is_relayed(&follower, &leader, &address, false).await, "this node leads");
}

#[tokio::test]
async fn relayed_stream_ends_when_its_leader_leads_no_more() {
    let leader = Leader::that(&[Does::Begins]).await;
    let follower = Follower::of(Some(leader.address)).await;
    let mut asked = tonic::Request::new(tokio_stream::pending::<v1::ClientFrame>());
    asked.metadata_mut().insert(lockkeeper_wire::RELAY_METADATA, leader.address.to_string().parse().unwrap());
    let mut stream = follower.calls().await.session(asked).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some(), "the scripted answer");
    assert_eq!(follower.front.calls.relays.count(), 1);
    follower.front.replica.set_state(ReplicaStatus::Waiting);
    let status = stream.message().await.unwrap_err();
    assert!(status.message().contains("leads no more"), "{status:?}");
    while follower.front.calls.relays.count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn leader_that_this_node_can_not_reach_either_is_named_with_its_address() {
    let leader = Leader::that(&[Does::Begins]).await;
    let follower = Follower::of(Some(leader.address)).await;
    let address = leader.address.to_string();
    leader.task.abort();
    while tokio::net::TcpStream::connect(leader.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let mut asked = tonic::Request::new(tokio_stream::pending::<v1::ClientFrame>());
    asked.metadata_mut().insert(lockkeeper_wire::RELAY_METADATA, address.parse().unwrap());
    let status = follower.calls().await.session(asked).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&address) && status.message().contains("--advertise"), "{status:?}");
    assert_eq!(follower.front.calls.relays.count(), 0);
}
