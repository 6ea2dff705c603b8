//! A stub of the service on real ports, based on the stub for the carrier's tests ([`Peer`]): one node, or
//! several whose leader the test selects.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_wire::v1::lockkeeper_server::{Lockkeeper, LockkeeperServer};
use lockkeeper_wire::v1::{self, server_item::What};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tonic::codegen::tokio_stream::{Stream, StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::backends::service::carrier::StreamId;
use crate::backends::service::carrier::tests::peer::Peer;
use crate::locks::Locks;

/// A cluster whose nodes share one table, as if every entry were replicated at once.
#[derive(Clone)]
pub(super) struct StandIn(Arc<Inner>);

struct Inner {
    addresses: Vec<SocketAddr>,
    start: Instant,
    /// The nodes stop reading.
    deaf: AtomicBool,
    /// The nodes stop answering.
    mute: AtomicBool,
    state: Mutex<State>,
}

struct State {
    peer: Peer,
    next: u64,
    streams: BTreeMap<StreamId, Open>,
    leader: Option<usize>,
    term: u64,
    /// Dropping an element ends that node.
    lives: Vec<Option<oneshot::Sender<()>>>,
    /// The seqs of the commands received on each stream, in order.
    heard: BTreeMap<StreamId, Vec<u64>>,
    /// The number of received frames with commands.
    frames: usize,
}

/// A stream that has not ended.
struct Open {
    node: usize,
    answers: UnboundedSender<Result<v1::ServerFrame, Status>>,
    /// Whether the client has received the addresses of the nodes.
    knows_nodes: bool,
}

/// One node of the cluster.
struct Node {
    cluster: StandIn,
    index: usize,
}

impl StandIn {
    /// One node. Serves until the process ends, on a separate thread.
    pub(super) fn start() -> Self {
        Self::cluster(1)
    }

    /// A cluster of `nodes` nodes; the first is the leader.
    pub(super) fn cluster(nodes: usize) -> Self {
        let listeners: Vec<_> = (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let (lives, ends): (Vec<_>, Vec<_>) = (0..nodes)
            .map(|_| {
                let (life, end) = oneshot::channel();
                (Some(life), end)
            })
            .unzip();
        let cluster = Self(Arc::new(Inner {
            addresses: listeners.iter().map(|listener| listener.local_addr().unwrap()).collect(),
            start: Instant::now(),
            deaf: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            state: Mutex::new(State {
                peer: Peer::new(0),
                next: 1,
                streams: BTreeMap::new(),
                leader: Some(0),
                term: 1,
                lives,
                heard: BTreeMap::new(),
                frames: 0,
            }),
        }));
        for (index, (listener, end)) in listeners.into_iter().zip(ends).enumerate() {
            let node = Node { cluster: cluster.clone(), index };
            std::thread::spawn(move || node.live(listener, end));
        }
        let timer = cluster.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(10));
                timer.turn(|_| ());
            }
        });
        cluster
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address_of(0)
    }

    pub(super) fn address_of(&self, node: usize) -> SocketAddr {
        self.0.addresses[node]
    }

    pub(super) async fn client(&self, label: &str) -> Locks {
        self.client_of(0, label).await
    }

    /// A client with the address of one node only.
    pub(super) async fn client_of(&self, node: usize, label: &str) -> Locks {
        Locks::connect_as(&format!("lockkeeper://{}", self.address_of(node)), label).await.unwrap()
    }

    /// Stops or resumes reading and answering.
    pub(super) fn say_nothing(&self, silent: bool) {
        self.0.deaf.store(silent, Ordering::SeqCst);
        self.lose_answers(silent);
    }

    /// Stops or resumes answering; commands are executed all the same.
    pub(super) fn lose_answers(&self, lost: bool) {
        self.0.mute.store(lost, Ordering::SeqCst);
    }

    /// Ends every stream without a message; returns how many there were.
    pub(super) fn cut_streams(&self) -> usize {
        self.state().cut(|_| true)
    }

    /// `kill -9`: if the node was the leader, there is none until the next `elect`.
    pub(super) fn kill(&self, node: usize) {
        let mut state = self.state();
        state.lives[node] = None;
        state.cut(|at| at == node);
        if state.leader == Some(node) {
            state.leader = None;
        }
    }

    /// Makes a node the leader; streams at other nodes end with its address.
    pub(super) fn elect(&self, node: usize) {
        let mut state = self.state();
        state.leader = Some(node);
        state.term += 1;
        let last = self.not_leader(&state);
        let (here, elsewhere) =
            std::mem::take(&mut state.streams).into_iter().partition(|(_, open)| open.node == node);
        state.streams = here;
        let elsewhere: BTreeMap<StreamId, Open> = elsewhere;
        for (stream, open) in elsewhere {
            state.peer.closed((0, stream), false);
            let _ = open.answers.send(Ok(last.clone()));
        }
    }

    /// The number of streams at a node.
    pub(super) fn streams_of(&self, node: usize) -> usize {
        self.state().streams.values().filter(|open| open.node == node).count()
    }

    /// The seqs received on each stream, in the order of opening.
    pub(super) fn heard(&self) -> Vec<Vec<u64>> {
        self.state().heard.values().cloned().collect()
    }

    /// The number of received frames with commands.
    pub(super) fn frames(&self) -> usize {
        self.state().frames
    }

    /// The number of names that are held or waited for.
    pub(super) fn in_use(&self) -> usize {
        self.state().peer.table.names_in_use(None).len()
    }

    /// The tokens of a name's holders.
    pub(super) fn tokens(&self, name: &str) -> Vec<u64> {
        let described =
            self.state().peer.table.describe(&name.parse().unwrap(), lockkeeper_core::Page::first(0));
        described.holds.iter().map(|hold| hold.token.get()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_deaf(&self) -> bool {
        self.0.deaf.load(Ordering::SeqCst)
    }

    fn not_leader(&self, state: &State) -> v1::ServerFrame {
        let leader = state.leader.map(|leader| self.address_of(leader).to_string());
        let end = v1::StreamEnd {
            reason: v1::StreamEndReason::NotLeader.into(),
            text: "this node does not lead".to_owned(),
            leader: leader.unwrap_or_default(),
            term: state.term,
        };
        frame(What::StreamEnd(end))
    }

    /// Advances the peer's clock, runs `act`, and sends the resulting items, unless the nodes are mute.
    fn turn(&self, act: impl FnOnce(&mut State)) {
        let mut state = self.state();
        state.peer.pass(self.0.start.elapsed().as_millis() as u64);
        act(&mut state);
        if self.0.mute.load(Ordering::SeqCst) {
            return;
        }
        for ((_, stream), items) in std::mem::take(&mut state.peer.down) {
            let Some(open) = state.streams.get_mut(&stream) else { continue };
            let _ = open.answers.send(Ok(v1::ServerFrame { items }));
            if !std::mem::replace(&mut open.knows_nodes, true) {
                let addresses = self.0.addresses.iter().map(SocketAddr::to_string).collect();
                let _ = open.answers.send(Ok(frame(What::Nodes(v1::Nodes { addresses, at: 1 }))));
            }
        }
    }
}

fn frame(what: What) -> v1::ServerFrame {
    v1::ServerFrame { items: vec![v1::ServerItem { session: 0, seq: 0, what: Some(what) }] }
}

fn seq(item: &v1::ClientItem) -> Option<u64> {
    match item.what.as_ref()? {
        v1::client_item::What::Acquire(acquire) => Some(acquire.seq),
        v1::client_item::What::Finish(finish) => Some(finish.seq),
        _ => None,
    }
}

impl State {
    fn cut(&mut self, which: impl Fn(usize) -> bool) -> usize {
        let cut: Vec<StreamId> =
            self.streams.iter().filter(|(_, open)| which(open.node)).map(|(&stream, _)| stream).collect();
        for stream in &cut {
            self.streams.remove(stream);
            self.peer.closed((0, *stream), false);
        }
        cut.len()
    }

    fn frame(&mut self, stream: StreamId, items: Vec<v1::ClientItem>) {
        if self.streams.contains_key(&stream) {
            let heard = self.heard.entry(stream).or_default();
            let before = heard.len();
            heard.extend(items.iter().filter_map(seq));
            self.frames += usize::from(heard.len() > before);
            self.peer.frame((0, stream), items);
        }
    }
}

impl Node {
    fn live(self, listener: TcpListener, end: oneshot::Receiver<()>) {
        listener.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
            let server = tonic::transport::Server::builder()
                .serve_with_incoming(LockkeeperServer::new(self), incoming);
            tokio::select! {
                served = server => served.unwrap(),
                _ = end => {}
            }
        });
    }

    fn leads(&self) -> bool {
        self.cluster.state().leader == Some(self.index)
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn not_here<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the stand-in has streams only"))
}

#[tonic::async_trait]
impl Lockkeeper for Node {
    type SessionStream = Answers<v1::ServerFrame>;
    type WatchStream = Answers<v1::WatchResponse>;
    type BackupStream = Answers<v1::BackupResponse>;

    async fn session(
        &self,
        request: Request<Streaming<v1::ClientFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (answers, receiver) = unbounded_channel();
        let cluster = self.cluster.clone();
        let stream = {
            let mut state = cluster.state();
            let stream = StreamId::of(state.next);
            state.next += 1;
            if state.leader.is_some_and(|leader| leader != self.index) {
                let _ = answers.send(Ok(cluster.not_leader(&state)));
            } else {
                // Also without a leader: the stream then waits.
                state.streams.insert(stream, Open { node: self.index, answers, knows_nodes: false });
            }
            stream
        };
        let node = Self { cluster: cluster.clone(), index: self.index };
        let mut frames = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = frames.next().await {
                while cluster.is_deaf() || (!node.leads() && cluster.state().streams.contains_key(&stream)) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                cluster.turn(|state| state.frame(stream, frame.items));
            }
            cluster.turn(|state| {
                if state.streams.remove(&stream).is_some() {
                    state.peer.closed((0, stream), true);
                }
            });
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        Ok(Response::new(v1::StatusResponse::default()))
    }

    async fn session_call(
        &self,
        _: Request<v1::SessionCallRequest>,
    ) -> Result<Response<v1::SessionCallResponse>, Status> {
        not_here()
    }

    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        not_here()
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        not_here()
    }

    async fn list_sessions(
        &self,
        _: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        not_here()
    }

    async fn end_session(
        &self,
        _: Request<v1::EndSessionRequest>,
    ) -> Result<Response<v1::EndSessionResponse>, Status> {
        not_here()
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        not_here()
    }

    async fn backup(&self, _: Request<v1::BackupRequest>) -> Result<Response<Self::BackupStream>, Status> {
        not_here()
    }

    async fn check_token(
        &self,
        _: Request<v1::CheckTokenRequest>,
    ) -> Result<Response<v1::CheckTokenResponse>, Status> {
        not_here()
    }

    async fn r#break(&self, _: Request<v1::BreakRequest>) -> Result<Response<v1::BreakResponse>, Status> {
        not_here()
    }

    async fn members(&self, _: Request<v1::MembersRequest>) -> Result<Response<v1::MembersResponse>, Status> {
        not_here()
    }

    async fn change_members(
        &self,
        _: Request<v1::ChangeMembersRequest>,
    ) -> Result<Response<v1::ChangeMembersResponse>, Status> {
        not_here()
    }

    async fn transfer(
        &self,
        _: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferResponse>, Status> {
        not_here()
    }

    async fn audit(&self, _: Request<v1::AuditRequest>) -> Result<Response<v1::AuditResponse>, Status> {
        not_here()
    }

    async fn set_limit(
        &self,
        _: Request<v1::SetLimitRequest>,
    ) -> Result<Response<v1::SetLimitResponse>, Status> {
        not_here()
    }
}
