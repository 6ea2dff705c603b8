//! A node and clients for it. Every wait has a deadline.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use lockkeeper_rig::Port;
use lockkeeper_server::access::{AccessFiles, NewToken};
use lockkeeper_server::{HttpListen, Running, ServeError, ServerOptions, run};
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self, client_item, server_item};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};

/// Far longer than any test here takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const SECRET: [u8; 16] = [7; 16];

/// A node on a thread of its own.
pub(crate) struct Server {
    pub(crate) running: Running,
    thread: JoinHandle<Result<(), ServeError>>,
    /// What a member of a cluster has for itself: dropped with it.
    _own: Option<(TempDir, Port)>,
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(ServerOptions { listen: "127.0.0.1:0".to_owned(), ..ServerOptions::new(data) })
    }

    pub(crate) fn start_with(options: ServerOptions) -> Self {
        let options = ServerOptions { http: HttpListen::At("127.0.0.1:0".to_owned()), ..options };
        let (sender, ready) = mpsc::channel();
        let thread = std::thread::spawn(move || run(options, move |running| sender.send(running).unwrap()));
        match ready.recv_timeout(DEADLINE) {
            Ok(running) => Self { running, thread, _own: None },
            Err(_) => panic!("the node did not start: {:?}", thread.join()),
        }
    }

    /// Starts a node that knows these callers by tokens, and has these permissions, in files of this
    /// directory. Returns the tokens.
    pub(crate) fn start_for<const N: usize>(
        data: &Path,
        files: &Path,
        callers: [&str; N],
        permissions: Option<&str>,
    ) -> (Self, [String; N]) {
        let made = callers.map(|caller| NewToken::make(caller).unwrap());
        let write = |name: &str, text: &str| {
            let file = files.join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let lines: String = made.iter().map(|token| format!("{}\n", token.line)).collect();
        let access = AccessFiles {
            tokens: Some(write("tokens", &lines)),
            permissions: permissions.map(|text| write("permissions", text)),
        };
        let listen = "127.0.0.1:0".to_owned();
        let server = Self::start_with(ServerOptions { listen, access, ..ServerOptions::new(data) });
        (server, made.map(|token| token.token))
    }

    pub(crate) async fn stop(self) -> Result<(), ServeError> {
        self.running.stop();
        self.ended().await
    }

    /// Waits without blocking the thread, whose clients must process the end of their connections.
    pub(crate) async fn ended(self) -> Result<(), ServeError> {
        let ended = tokio::task::spawn_blocking(|| self.thread.join().unwrap());
        tokio::time::timeout(DEADLINE, ended).await.expect("the node was to end").unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        let url = format!("http://{}", self.running.address());
        Endpoint::from_shared(url).unwrap().timeout(DEADLINE).connect().await.unwrap()
    }

    pub(crate) async fn calls(&self) -> LockkeeperClient<Channel> {
        LockkeeperClient::new(self.channel().await)
    }
}

/// Starts the nodes of a cluster, which listen for each other on these ports, and know each other by these
/// addresses.
pub(crate) async fn start_cluster(
    ports: [(u64, Port); 3],
    addresses: &BTreeMap<u64, String>,
) -> BTreeMap<u64, Server> {
    let starting = ports.map(|(node, port)| {
        let cluster = addresses.clone();
        tokio::task::spawn_blocking(move || {
            let data = directory();
            let server = Server::start_with(ServerOptions {
                listen: "127.0.0.1:0".to_owned(),
                node: Some(node),
                cluster,
                peer_listen: Some(format!("127.0.0.1:{}", port.number())),
                // No election that only the machine's load causes.
                election_timeout: Duration::from_secs(1),
                ..ServerOptions::new(data.path())
            });
            (node, Server { _own: Some((data, port)), ..server })
        })
    });
    let mut nodes = BTreeMap::new();
    for node in starting {
        let (node, server) = node.await.unwrap();
        nodes.insert(node, server);
    }
    nodes
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A client's stream.
pub(crate) struct Client {
    frames: UnboundedSender<v1::ClientFrame>,
    inbound: Streaming<v1::ServerFrame>,
    items: VecDeque<v1::ServerItem>,
}

impl Client {
    pub(crate) async fn connect(server: &Server) -> Self {
        Self::connect_as(server.running.address(), None).await
    }

    /// Connects as the client of a token.
    pub(crate) async fn connect_as(address: SocketAddr, token: Option<&str>) -> Self {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self::over(channel, token).await
    }

    /// Opens a stream, as the client of a token if there is one.
    pub(crate) async fn over(channel: Channel, token: Option<&str>) -> Self {
        let (frames, outbound) = unbounded_channel();
        let mut request = Request::new(UnboundedReceiverStream::new(outbound));
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let answer = LockkeeperClient::new(channel).session(request).await;
        Self { frames, inbound: answer.unwrap().into_inner(), items: VecDeque::new() }
    }

    pub(crate) fn send(&self, session: u64, what: client_item::What) {
        self.send_all(vec![v1::ClientItem { session, what: Some(what) }]);
    }

    pub(crate) fn send_all(&self, items: Vec<v1::ClientItem>) {
        self.frames.send(v1::ClientFrame { items }).unwrap();
    }

    /// The next item, without news of the nodes' addresses; `None` after the stream's end.
    pub(crate) async fn item(&mut self) -> Option<v1::ServerItem> {
        while self.items.is_empty() {
            let frame =
                tokio::time::timeout(DEADLINE, self.inbound.message()).await.expect("an answer was due");
            let items = frame.unwrap()?.items.into_iter();
            self.items.extend(items.filter(|item| !matches!(item.what, Some(server_item::What::Nodes(_)))));
        }
        self.items.pop_front()
    }

    pub(crate) async fn what(&mut self) -> server_item::What {
        self.item().await.expect("the stream is open").what.expect("a known item")
    }

    pub(crate) async fn stream_end(&mut self) -> v1::StreamEnd {
        match self.what().await {
            server_item::What::StreamEnd(end) => {
                assert!(self.item().await.is_none(), "nothing follows");
                end
            }
            other => panic!("the stream was to end: {other:?}"),
        }
    }

    /// Opens a session with a ttl of 30 s.
    pub(crate) async fn open(&mut self, secret: [u8; 16], label: &str) -> u64 {
        let open = v1::OpenSession {
            secret: secret.to_vec(),
            ttl_ms: 30_000,
            label: label.to_owned(),
            attach: 1,
            ..v1::OpenSession::default()
        };
        self.send(0, client_item::What::Open(open));
        let item = self.item().await.expect("the stream is open");
        assert!(matches!(item.what, Some(server_item::What::Opened(_))), "{item:?}");
        item.session
    }

    pub(crate) fn acquire(&self, session: u64, seq: u64, name: &str, wait: bool) {
        self.send(session, client_item::What::Acquire(acquire(seq, name, wait)));
    }

    /// Acquires a lock that is free; returns the token.
    pub(crate) async fn hold(&mut self, session: u64, seq: u64, name: &str) -> u64 {
        self.acquire(session, seq, name, false);
        self.granted().await
    }

    pub(crate) async fn granted(&mut self) -> u64 {
        match self.what().await {
            server_item::What::Granted(granted) => granted.token,
            other => panic!("the lock was to be granted: {other:?}"),
        }
    }

    pub(crate) fn finish(&self, session: u64, seq: u64, target: u64) {
        self.send(session, client_item::What::Finish(v1::Finish { seq, target, done_through: 0 }));
    }
}

pub(crate) fn acquire(seq: u64, name: &str, wait: bool) -> v1::Acquire {
    v1::Acquire {
        seq,
        names: vec![name.to_owned()],
        mode: v1::Mode::Exclusive.into(),
        wait,
        ..v1::Acquire::default()
    }
}
