//! The carrier's stand-in for the service, on a real port.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lockkeeper_wire::v1::lockkeeper_server::{Lockkeeper, LockkeeperServer};
use lockkeeper_wire::v1::{self};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::codegen::tokio_stream::{Stream, StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::backends::service::carrier::StreamId;
use crate::backends::service::carrier::tests::peer::Peer;
use crate::locks::Locks;

#[derive(Clone)]
pub(super) struct StandIn(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    start: Instant,
    silent: AtomicBool,
    state: Mutex<State>,
}

struct State {
    peer: Peer,
    next: u64,
    streams: BTreeMap<StreamId, UnboundedSender<Result<v1::ServerFrame, Status>>>,
}

impl StandIn {
    /// Serves until the test is over, on a thread of its own.
    pub(super) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let inner = Arc::new(Inner {
            address: listener.local_addr().unwrap(),
            start: Instant::now(),
            silent: AtomicBool::new(false),
            state: Mutex::new(State { peer: Peer::new(0), next: 1, streams: BTreeMap::new() }),
        });
        let service = Self(inner);
        std::thread::spawn({
            let service = service.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let timer = service.clone();
                    tokio::spawn(async move {
                        loop {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                            timer.turn(|_| ());
                        }
                    });
                    let incoming = tonic::transport::server::TcpIncoming::from(
                        tokio::net::TcpListener::from_std(listener).unwrap(),
                    )
                    .with_nodelay(Some(true));
                    tonic::transport::Server::builder()
                        .serve_with_incoming(LockkeeperServer::new(service), incoming)
                        .await
                        .unwrap();
                });
            }
        });
        service
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub(super) async fn client(&self, label: &str) -> Locks {
        Locks::connect_as(&format!("lockkeeper://{}", self.address()), label).await.unwrap()
    }

    /// From now on nothing is read or answered, or again.
    pub(super) fn say_nothing(&self, silent: bool) {
        self.0.silent.store(silent, Ordering::SeqCst);
    }

    /// Ends every stream without a word; says how many there were.
    pub(super) fn cut_streams(&self) -> usize {
        let mut state = self.state();
        let streams = std::mem::take(&mut state.streams);
        for &stream in streams.keys() {
            state.peer.closed((0, stream), false);
        }
        streams.len()
    }

    /// How many names are held or waited for.
    pub(super) fn in_use(&self) -> usize {
        self.state().peer.table.names_in_use(None).len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn is_silent(&self) -> bool {
        self.0.silent.load(Ordering::SeqCst)
    }

    /// Does something, and sends what comes of it.
    fn turn(&self, act: impl FnOnce(&mut State)) {
        let mut state = self.state();
        state.peer.pass(self.0.start.elapsed().as_millis() as u64);
        act(&mut state);
        if self.is_silent() {
            return;
        }
        for ((_, stream), items) in std::mem::take(&mut state.peer.down) {
            if let Some(sender) = state.streams.get(&stream) {
                let _ = sender.send(Ok(v1::ServerFrame { items }));
            }
        }
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn not_here<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the stand-in has streams only"))
}

#[tonic::async_trait]
impl Lockkeeper for StandIn {
    type SessionStream = Answers<v1::ServerFrame>;
    type WatchStream = Answers<v1::WatchResponse>;
    type BackupStream = Answers<v1::BackupResponse>;

    async fn session(
        &self,
        request: Request<Streaming<v1::ClientFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (sender, receiver) = unbounded_channel();
        let stream = {
            let mut state = self.state();
            let stream = StreamId::of(state.next);
            state.next += 1;
            state.streams.insert(stream, sender);
            stream
        };
        let mut frames = request.into_inner();
        let service = self.clone();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = frames.next().await {
                while service.is_silent() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                service.turn(|state| {
                    if state.streams.contains_key(&stream) {
                        state.peer.frame((0, stream), frame.items);
                    }
                });
            }
            service.turn(|state| {
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

    async fn members(
        &self,
        _: Request<v1::MembersRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
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

    async fn set_limit(
        &self,
        _: Request<v1::SetLimitRequest>,
    ) -> Result<Response<v1::SetLimitResponse>, Status> {
        not_here()
    }
}
