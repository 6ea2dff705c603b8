//! A reverse proxy that checks fencing tokens, in front of an HTTP service that can't.
//!
//! Each request passes these steps in this order:
//! 1. its headers are parsed strictly (`headers.rs`), and its resource is determined (`rules.rs`);
//! 2. its token is checked at the lock service, if that is configured;
//! 3. it is admitted, and its mark is made durable (the fence);
//! 4. it is forwarded (`service.rs`), and the gate waits for its end (`inside.rs`).
//!
//! `restart.rs` covers the requests that a killed gate leaves behind.
//!
//! If the connection of a request breaks, the gate can't know whether the upstream still works on the
//! request. The resource then admits only the same token for [`GateOptions::settle`]; after that, the promise
//! (P3) relies on the upstream having ended the request.
//!
//! # Invariants
//!
//! - A section begins at the upstream only when each request of another section has ended there, or its end
//!   has been unknown for the settling time. After a gate was killed, every resource with marks may have
//!   requests with unknown ends, so its next run admits only the last writers' tokens for that time
//!   (`restart.rs`, `marks.rs`).
//! - A guarded request is forwarded under one canonical path, and its mark is durable before that.
//! - A connection or a response that waits for its client has a time limit (`client.rs`, `reader.rs`), and no
//!   network can use more than half of a limit (`shares.rs`).
//! - The gate does not depend on a lock service. The command supplies a function that checks tokens, in
//!   addition to the marks.

mod admin;
mod client;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod headers;
mod inside;
mod marks;
mod observe;
mod problem;
mod reader;
mod restart;
mod rules;
mod service;
mod shares;
mod tls;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::uri::{Scheme, Uri};
use hyper::service::service_fn;
use hyper_rustls::{ConfigBuilderExt, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use lockkeeper_core::Token;
use lockkeeper_fence::http::Rules as FenceRules;
use lockkeeper_fence::{DurableMarks, HttpFence, MARKS_MAX_DEFAULT, MarksError, Section};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;

use admin::Admin;
use client::ClientConnection;
pub use problem::TYPE_PREFIX;
use restart::Restart;
pub use rules::{Rules, RulesError};
use service::{GateState, Upstream};
use shares::{Priority, Shares};
pub use tls::GateTls;

/// Time limit for the headers of a request.
const HEADERS_LIMIT: Duration = Duration::from_secs(30);
/// Limit on the headers of a request, in bytes.
const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// Time limit for a connection to the upstream.
const CONNECT: Duration = Duration::from_secs(5);
/// Idle connections to the upstream are closed after this time, which is shorter than the idle time of usual
/// servers (2 s and more): a request that is sent while the upstream closes the connection has an unknown
/// end.
const IDLE: Duration = Duration::from_secs(1);
/// The interval of HTTP/2 pings, and the time limit for the answer.
const PING: Duration = Duration::from_secs(30);
/// Time limit for a connection that ends without requests in progress. A client of HTTP/2 may keep streams
/// open.
const CLOSING: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example when no descriptors are left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// The interval at which an ending gate checks whether all requests have ended.
const END_CHECK_EVERY: Duration = Duration::from_millis(20);

/// Maximum of all times in the settings; longer ones are reduced to it, since the clock's type has a limit.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Checks at the lock service whether a token is current. The error says why the check was not possible.
pub type TokenCheck =
    Arc<dyn Fn(String, Token) -> Pin<Box<dyn Future<Output = Result<bool, String>> + Send>> + Send + Sync>;

/// Writes down what a gate decides.
pub trait GateHistory: Send + Sync {
    /// The time on the history's clock, in nanoseconds.
    fn now(&self) -> u64;

    /// Called before the request is forwarded, if the gate has admitted the token or refused it as stale; not
    /// for other refusals, such as 503.
    fn decided(&self, decision: &GateDecision<'_>);
}

/// What a gate has decided about a request with a token.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GateDecision<'request> {
    /// The resource.
    pub resource: &'request str,
    /// The lock whose token it is.
    pub lock: &'request str,
    /// The token and its mode.
    pub section: Section,
    /// [`GateHistory::now`] before the check.
    pub asked: u64,
    /// Whether it was let in.
    pub is_accepted: bool,
}

/// The settings of a gate. Times are a year at most.
#[derive(Clone)]
pub struct GateOptions {
    /// The address on which the gate accepts requests.
    pub listen: SocketAddr,
    /// TLS on that port; `None`: connections are plain.
    pub tls: Option<Arc<GateTls>>,
    /// The address of the port for operators; `None`: no such port.
    pub admin_listen: Option<SocketAddr>,
    /// The URL of the service: `http://host:port` or `https://host`.
    pub upstream: String,
    /// The directory of the marks; created if it does not exist.
    pub data: PathBuf,
    /// Which requests are guarded.
    pub rules: Rules,
    /// How long a resource admits only the same token after a request whose end is unknown.
    pub settle: Duration,
    /// How long a request waits until requests with lower tokens have ended.
    pub wait: Duration,
    /// Time limit of a guarded request at the upstream.
    pub timeout: Duration,
    /// Time limit for the requests in progress when the gate ends.
    pub drain: Duration,
    /// How long the gate waits for a client: on a connection without a request in progress, and for a
    /// response to be read, in all. Each KiB that is read adds a second, up to this time.
    pub client_timeout: Duration,
    /// Maximum number of client connections; at most half of them of one network.
    pub connections_max: usize,
    /// Maximum number of concurrent requests; at most half of them of one network. A quarter is reserved for
    /// guarded writes.
    pub requests_max: usize,
    /// Maximum number of stored marks: one for each resource, and one for each slot of permits.
    pub marks_max: u64,
    /// Checks each token at the lock service, in addition to the marks; `None`: the marks alone decide.
    pub tokens: Option<TokenCheck>,
    /// Where decisions are written down.
    pub history: Option<Arc<dyn GateHistory>>,
}

impl GateOptions {
    /// The defaults.
    #[must_use]
    pub fn new(listen: SocketAddr, upstream: impl Into<String>, data: impl Into<PathBuf>) -> Self {
        Self {
            listen,
            tls: None,
            admin_listen: None,
            upstream: upstream.into(),
            data: data.into(),
            rules: Rules::default(),
            settle: Duration::from_secs(30),
            wait: lockkeeper_fence::http::WAIT_DEFAULT,
            timeout: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            client_timeout: Duration::from_secs(30),
            connections_max: 8192,
            requests_max: 16_384,
            marks_max: MARKS_MAX_DEFAULT,
            tokens: None,
            history: None,
        }
    }
}

impl fmt::Debug for GateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateOptions")
            .field("listen", &self.listen)
            .field("upstream", &self.upstream)
            .field("data", &self.data)
            .field("settle", &self.settle)
            .finish_non_exhaustive()
    }
}

/// Why a gate can't run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The upstream's URL is unusable.
    #[error("the upstream `{url}` {why}; write `http://host:port` or `https://host`")]
    Upstream {
        /// The URL.
        url: String,
        /// The fault.
        why: &'static str,
    },
    /// An address can't be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The data directory can't be used.
    #[error("the data directory `{}` can't be used", path.display())]
    Data {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The marks can't be used.
    #[error(transparent)]
    Marks(#[from] MarksError),
    /// TLS can't be set up: the files of the gate's port, or the authorities for an upstream with `https`.
    #[error("TLS can't be set up: {0}")]
    Tls(String),
}

/// A gate that listens.
pub struct Gate {
    listener: TcpListener,
    tls: Option<Arc<GateTls>>,
    admin: Option<(TcpListener, Arc<Admin>)>,
    state: Arc<GateState>,
    connections_max: u32,
    connections: Arc<Shares>,
    is_ending: Arc<AtomicBool>,
    drain: Duration,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Gate {
    /// Opens the marks and the ports. Blocks while it reads the marks.
    ///
    /// # Errors
    /// [`GateError`].
    pub async fn start(mut options: GateOptions) -> Result<Self, GateError> {
        let GateOptions { settle, wait, timeout, drain, client_timeout, .. } = &mut options;
        for time in [settle, wait, timeout, drain, client_timeout] {
            *time = (*time).min(TIME_MAX);
        }
        let upstream = upstream(&options.upstream)?;
        // Listens before anything else, so that a gate that can't listen leaves the data unchanged.
        let listener = listen(options.listen).await?;
        let admin = match options.admin_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let data = |source| GateError::Data { path: options.data.clone(), source };
        std::fs::create_dir_all(&options.data).map_err(data)?;
        let marks = options.data.join("marks.redb");
        let is_new = !marks.exists();
        // Opens the marks first, which takes their file lock, so that the state of another running gate stays
        // unchanged.
        let store = DurableMarks::open_with_limit(&marks, options.marks_max)?;
        let restart = Restart::begin(&options.data, is_new, options.settle).map_err(data)?;
        if let Some(left) = restart.unsettled_for() {
            tracing::warn!("the last run did not end in an orderly way: resources settle for {left:?}");
        }
        let fence = HttpFence::with(store, FenceRules::default().wait_at_most(options.wait));
        let is_ending = Arc::new(AtomicBool::new(false));
        let state = Arc::new(GateState {
            fence,
            rules: options.rules,
            restart,
            settle: options.settle,
            timeout: options.timeout,
            tokens: options.tokens,
            history: options.history,
            upstream,
            client_timeout: options.client_timeout,
            requests: Shares::new(options.requests_max),
            unsettled: Arc::default(),
            is_closed: AtomicBool::new(false),
        });
        let connections_max = options.connections_max.min(Semaphore::MAX_PERMITS);
        let connections_max = u32::try_from(connections_max).unwrap_or(u32::MAX);
        let connections = Arc::new(Shares::new(options.connections_max));
        let admin = admin.map(|listener| {
            let (state, is_ending) = (Arc::clone(&state), Arc::clone(&is_ending));
            let connections = Arc::clone(&connections);
            (listener, Arc::new(Admin { metrics: observe::recorder(), state, connections, is_ending }))
        });
        let (tls, drain) = (options.tls, options.drain);
        Ok(Self { listener, tls, admin, state, connections_max, connections, is_ending, drain })
    }

    /// The address of the gate.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// The address of the port for operators.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// Serves until `end`; then waits for the requests in progress, for the drain time at most. Returns
    /// whether all of them have ended.
    ///
    /// # Errors
    /// The directory of the marks could not be written at the end. All marks are durable nevertheless.
    pub async fn run(self, end: impl Future<Output = ()>) -> io::Result<bool> {
        let Self { listener, tls, admin, state, connections_max, connections, is_ending, drain } = self;
        let admin = admin.map(|(listener, admin)| tokio::spawn(admin.serve(listener)));
        let places = Arc::new(Semaphore::new(connections_max as usize));
        // This channel is closed when the gate ends, which ends the connections.
        let (serving, serves) = watch::channel(());
        let accept = async {
            loop {
                // Further connections wait in the system's queue.
                let place = Arc::clone(&places).acquire_owned().await;
                let (stream, address) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "a connection can't be accepted"
                        );
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                        continue;
                    }
                };
                let Ok(share) = connections.take(address.ip(), Priority::First) else {
                    tracing::debug!(%address, "a connection is closed: its network has half of all");
                    observe::connection_refused();
                    continue;
                };
                let _ = stream.set_nodelay(true);
                let (state, tls, serves) = (Arc::clone(&state), tls.clone(), serves.clone());
                tokio::spawn(async move {
                    serve(stream, address, tls, state, serves).await;
                    drop((share, place));
                });
            }
        };
        tokio::select! {
            () = accept => {}
            () = end => {}
        }
        is_ending.store(true, Ordering::SeqCst);
        drop(listener);
        drop(serving);
        let deadline = Instant::now() + drain;
        // Waits until all connections have ended.
        let _ = timeout_at(deadline, places.acquire_many(connections_max)).await;
        // Waits for requests without a client, and for those whose end is unknown.
        while state.fence.doors_in_use() > 0 && Instant::now() < deadline {
            tokio::time::sleep(END_CHECK_EVERY).await;
        }
        state.is_closed.store(true, Ordering::SeqCst);
        let all_ended = state.fence.doors_in_use() == 0;
        if all_ended {
            state.restart.end()?;
        }
        if let Some(admin) = admin {
            admin.abort();
        }
        Ok(all_ended)
    }
}

/// Serves a connection until it ends, its client exceeds the time limit, or the gate ends.
async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<GateTls>>,
    state: Arc<GateState>,
    mut serves: watch::Receiver<()>,
) {
    let client = ClientConnection::new(address.ip(), tls.is_some());
    // The time limit of the HTTP server begins only with the first byte.
    let begin = async {
        stream.readable().await?;
        Ok::<_, io::Error>(match tls {
            None => Either::Left(stream),
            Some(tls) => Either::Right(TlsAcceptor::from(tls.config()).accept(stream).await?),
        })
    };
    let client_timeout = state.client_timeout;
    let begun = tokio::select! {
        begun = timeout(HEADERS_LIMIT.min(client_timeout), begin) => begun,
        // A connection without a first request would use up the drain time.
        _ = serves.changed() => return,
    };
    let Ok(Ok(stream)) = begun else { return };
    let of_requests = Arc::clone(&client);
    let service = service_fn(move |request| {
        let answer = Arc::clone(&state).answer(Arc::clone(&of_requests), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_LIMIT)
        .max_buf_size(HEADERS_BYTES_MAX);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    // Errors are ignored: the client has disconnected, or has sent something else than HTTP.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = client.idle_for(client_timeout) => {}
        _ = serves.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = client.idle_for(CLOSING.min(client_timeout)) => {}
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, GateError> {
    TcpListener::bind(address).await.map_err(|source| GateError::Listen { address, source })
}

fn upstream(url: &str) -> Result<Upstream, GateError> {
    let bad = |why| GateError::Upstream { url: url.to_owned(), why };
    let uri: Uri = url.parse().map_err(|_| bad("is no URL"))?;
    let scheme = uri.scheme().cloned().filter(|it| *it == Scheme::HTTP || *it == Scheme::HTTPS);
    let scheme = scheme.ok_or_else(|| bad("has another scheme"))?;
    let authority = uri.authority().cloned().ok_or_else(|| bad("has no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("has a user, which a gate can't send"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(bad("has a path, which a gate does not change"));
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_nodelay(true);
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| GateError::Tls(error.to_string()))?
        .with_native_roots()
        .map_err(|error| GateError::Tls(error.to_string()))?
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector);
    Ok(Upstream { client, scheme, authority })
}
