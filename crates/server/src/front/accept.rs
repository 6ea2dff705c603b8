//! Accepts connections on both ports, and serves gRPC on those of the gRPC port.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lockkeeper_wire::FRAME_BYTES_MAX;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower_service::Service as _;

use super::Front;
use super::api::Api;
use super::arriving::{Arriving, ArrivingBody};
use super::caller::{Certified, admit_certified, identify, is_open_to_all};
use super::connection::{Above, Connection, Socket, TlsSocket};
use super::forward;
use super::http::{Hazards, HttpInterface, Metrics};
use super::session_calls::SESSION_CALL;
use crate::options::{HazardPlayer, MetricsPage};
use crate::tls::{ClientProtocol, NodeTls};

/// The flow-control window of a stream, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
/// Maximum number of bytes that have been read from the socket for a stream and not handed to its reader,
/// beyond the frame that is still incomplete: the stream's flow-control window, and the HTTP/2 frame in which
/// the incomplete frame ends.
pub(super) const UNREAD_MAX: usize = STREAM_WINDOW as usize + (16 << 10);
/// The flow-control window of a connection, in bytes. It must be large: h2 sets its budget for unread small
/// frames to half of this window, and closes connections that exceed the budget. After a stall of this
/// process, thousands of small frames may be unread.
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The limit of a stream's unsent bytes in h2, in addition to the stream's own buffer here.
const SEND_BYTES_MAX: usize = 256 << 10;
/// Most concurrent streams and calls of one connection.
pub(super) const STREAMS_MAX: u32 = 256;
pub(super) const HEADER_BYTES_MAX: u32 = 16 << 10;
/// The idle time after which a connection is pinged, and the time limit for the answer.
const PING_AFTER: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum lifetime of a connection whose client must authenticate and has not: enough for a health check.
const PROVISIONAL_LIFE: Duration = Duration::from_secs(30);
/// Time limit for the calls in progress when this node closes a connection.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// Limit on a message of the services from tonic (health checks, reflection), in bytes. Health checks are
/// decoded before their sender is authenticated.
pub(crate) const FOREIGN_MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Maximum number of concurrent calls without authentication (health checks) per connection.
pub(super) const OPEN_CALLS_MAX: usize = 4;
/// Time limit until the answer to such a call begins; includes the arrival of the request.
const OPEN_CALL: Duration = Duration::from_secs(10);
/// How long sent data may stay unacknowledged by the client; see [`give_up_unread`].
const UNREAD_TIME: Duration = Duration::from_secs(30);
/// The pause after a failed accept.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections.
pub(crate) struct Acceptor {
    ports: Vec<Port>,
    front: Arc<Front>,
}

/// The listener for HTTP, and the optional pages that the embedding process supplies.
pub(crate) struct HttpPort {
    pub(crate) listener: TcpListener,
    pub(crate) metrics: Option<MetricsPage>,
    pub(crate) hazards: Option<HazardPlayer>,
}

/// A listener, and the protocol of its connections.
struct Port {
    listener: TcpListener,
    interface: Interface,
}

/// The protocol of a connection.
#[derive(Clone)]
enum Interface {
    Grpc(Routes),
    Http(HttpInterface),
}

impl Acceptor {
    /// Serves gRPC on `listener`, and HTTP/JSON on `http`.
    pub(crate) fn new(
        listener: TcpListener,
        http: Option<HttpPort>,
        front: Arc<Front>,
        health: HealthServer<impl Health>,
    ) -> Result<Arc<Self>, tonic_reflection::server::Error> {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(lockkeeper_wire::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let service = lockkeeper_wire::v1::lockkeeper_server::LockkeeperServer::new(Api(front.clone()))
            .max_decoding_message_size(FRAME_BYTES_MAX);
        let routes = Routes::new(service)
            .add_service(health.max_decoding_message_size(FOREIGN_MESSAGE_BYTES_MAX))
            .add_service(reflection().build_v1()?.max_decoding_message_size(FOREIGN_MESSAGE_BYTES_MAX))
            .add_service(reflection().build_v1alpha()?.max_decoding_message_size(FOREIGN_MESSAGE_BYTES_MAX))
            .prepare();
        let mut ports = vec![];
        if let Some(HttpPort { listener, metrics, hazards }) = http {
            let is_local = front.tls.is_none()
                && listener.local_addr().is_ok_and(|it| it.ip().to_canonical().is_loopback());
            let interface = HttpInterface::new(
                routes.clone(),
                is_local,
                metrics.map(|page| Arc::new(Metrics::new(page))),
                hazards.map(|player| Arc::new(Hazards::new(player))),
            );
            ports.push(Port { listener, interface: Interface::Http(interface) });
        }
        ports.push(Port { listener, interface: Interface::Grpc(routes) });
        Ok(Arc::new(Self { ports, front }))
    }

    /// Starts a task for each port, which accepts connections until the process stops.
    pub(crate) fn run(self: &Arc<Self>) {
        for index in 0..self.ports.len() {
            tokio::spawn(self.clone().run_port(index));
        }
    }

    async fn run_port(self: Arc<Self>, index: usize) {
        let port = &self.ports[index];
        loop {
            let accepted = tokio::select! {
                accepted = port.listener.accept() => accepted,
                () = self.front.stopping.cancelled() => return,
            };
            match accepted {
                Ok((socket, address)) => self.serve(socket, Some(address), port),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Accepts all connections in the kernel's queues by direct system calls: the runtime may not have polled
    /// the listeners' readiness yet. Returns whether the queues were found empty. Returns false if
    /// descriptors have run out, or after [`FAILURES_MAX`] failed accepts: connections may remain in the
    /// queues then.
    pub(super) fn accept_waiting(&self) -> bool {
        let mut are_empty = true;
        for port in &self.ports {
            are_empty &= self.accept_waiting_at(port);
        }
        are_empty
    }

    fn accept_waiting_at(&self, port: &Port) -> bool {
        let mut failed = 0;
        while failed < FAILURES_MAX {
            let accepted = SockRef::from(&port.listener).accept().and_then(|(socket, address)| {
                socket.set_nonblocking(true)?;
                Ok((TcpStream::from_std(socket.into())?, address.as_socket()))
            });
            match accepted {
                Ok((socket, address)) => self.serve(socket, address, port),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if out_of_descriptors(&error) => {
                    tracing::warn!(%error, "a connection could not be accepted: {error}");
                    return false;
                }
                // This error concerns only the connection that was to be accepted.
                Err(_) => failed += 1,
            }
        }
        false
    }

    fn serve(&self, socket: TcpStream, address: Option<SocketAddr>, port: &Port) {
        let interface = port.interface.clone();
        let is_http = matches!(interface, Interface::Http(_));
        let (front, ip) = (&self.front, address.map(|address| address.ip()));
        let place = match front.connection_places.accept(ip, is_http, front.tls.is_some()) {
            Ok(place) => place,
            Err(why) => return front.refuse_connection(address, &why),
        };
        if place.is_waiting() {
            front.close_idle();
        }
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it was served");
            return;
        }
        if is_http {
            give_up_unread(&socket);
        }
        let connection = front.open_connection(address, place);
        tokio::spawn(serve(socket, connection, interface));
    }
}

impl Interface {
    fn protocol(&self) -> ClientProtocol {
        match self {
            Self::Grpc(_) => ClientProtocol::Grpc,
            Self::Http(_) => ClientProtocol::Http,
        }
    }
}

/// Makes the kernel end the connection if the client does not acknowledge sent data for [`UNREAD_TIME`].
/// HTTP/1.1 needs this since it has no ping; on the gRPC port, HTTP/2 pings detect clients that are gone.
fn give_up_unread(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = SockRef::from(socket).set_tcp_user_timeout(Some(UNREAD_TIME)) {
        tracing::debug!(%error, "a connection has no time limit for what is unread: {error}");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Maximum number of failed accepts in one call of `accept_waiting`. Each failed accept is skipped, since its
/// error concerns one connection only.
const FAILURES_MAX: u32 = 1024;

/// Whether the process or the system is out of descriptors or memory: the connection then stays in the queue.
fn out_of_descriptors(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let of_the_process = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|code| of_the_process.contains(&Errno::from_raw(code)))
}

/// Serves one connection until it ends.
async fn serve(socket: TcpStream, connection: Arc<Connection>, interface: Interface) {
    match connection.front().tls.clone() {
        None => serve_on(Socket::new(socket, connection.clone(), Above::Http), &connection, interface).await,
        Some(tls) => {
            let protocol = interface.protocol();
            let socket = Socket::new(socket, connection.clone(), Above::Handshake);
            if let Some(stream) = accept_tls(&tls, socket, &connection, protocol).await {
                serve_on(TlsSocket::new(stream), &connection, interface).await;
            }
        }
    }
    connection.over();
}

async fn serve_on(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: &Arc<Connection>,
    interface: Interface,
) {
    match interface {
        Interface::Grpc(routes) => serve_grpc(io, connection, routes).await,
        Interface::Http(http) => http.serve(io, connection).await,
    }
}

/// The TLS handshake of a connection; `None` if it failed, was late, or this node closes the connection.
async fn accept_tls(
    tls: &NodeTls,
    socket: Socket,
    connection: &Connection,
    protocol: ClientProtocol,
) -> Option<TlsStream<Socket>> {
    let accepted = tokio::select! {
        accepted = tls.accept_client(socket, protocol) => accepted,
        () = connection.kill.cancelled() => return None,
        () = connection.front().stopping.cancelled() => return None,
    };
    match accepted {
        Ok(stream) => {
            let chain = stream.get_ref().1.peer_certificates();
            if let Some(certificate) = chain.and_then(<[_]>::first) {
                // Never fails: set only here.
                let _ = connection.certified.set(Certified::of(certificate));
                admit_certified(connection);
            }
            Some(stream)
        }
        Err(error) => {
            tracing::debug!(connection = connection.id, %error, "a client's TLS handshake failed: {error}");
            None
        }
    }
}

/// Serves gRPC on a connection until it ends.
async fn serve_grpc(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: &Arc<Connection>,
    routes: Routes,
) {
    let calls = Calls { connection: connection.clone(), routes };
    let http = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(io), calls);
    until_end(pin!(http), http2::Connection::graceful_shutdown, connection).await;
}

/// Completes when the connection has ended, or this node closes it.
pub(super) async fn until_end<C>(
    mut http: Pin<&mut C>,
    graceful_shutdown: impl Fn(Pin<&mut C>),
    connection: &Connection,
) where
    C: Future<Output = hyper::Result<()>>,
{
    let front = connection.front().clone();
    let idle_timeout = front.limits.idle_timeout;
    let (mut is_stopping, mut is_closing) = (false, false);
    let mut is_provisional = connection.is_provisional();
    let mut life = pin!(tokio::time::sleep(PROVISIONAL_LIFE));
    let mut idle = pin!(tokio::time::sleep(idle_timeout));
    let mut end = pin!(tokio::time::sleep(CLOSING_TIME));
    loop {
        tokio::select! {
            ended = http.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(connection = connection.id, %error, "a connection ended: {error}");
                }
                break;
            }
            () = connection.kill.cancelled() => break,
            () = front.stopping.cancelled(), if !is_stopping => {
                is_stopping = true;
                graceful_shutdown(http.as_mut());
            }
            () = connection.closing.cancelled(), if !is_closing => {
                is_closing = true;
                end.as_mut().reset(Instant::now() + CLOSING_TIME);
                graceful_shutdown(http.as_mut());
            }
            () = &mut end, if is_closing => break,
            () = &mut life, if is_provisional => {
                is_provisional = connection.is_provisional();
                if is_provisional {
                    tracing::debug!(connection = connection.id, "a connection is closed: its client did not say who it is");
                    break;
                }
            }
            () = &mut idle, if !is_closing => {
                let ends = connection.idle_since().unwrap_or_else(Instant::now) + idle_timeout;
                if ends <= Instant::now() {
                    tracing::debug!(connection = connection.id, "a connection is closed: it was not used");
                    connection.closing.cancel();
                }
                idle.as_mut().reset(ends);
            }
        }
    }
}

/// The HTTP/2 service of one connection.
struct Calls {
    connection: Arc<Connection>,
    routes: Routes,
}

impl hyper::service::Service<http::Request<Incoming>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: http::Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let call = self.connection.call();
        if is_open_to_all(path) {
            let answer = answer_anybody(self.connection.clone(), self.routes.clone(), request);
            return Box::pin(async move { answer.await.map(|response| holding(call, response)) });
        }
        let caller = match identify(&self.connection, request.headers()) {
            Ok(caller) => caller,
            Err(refusal) => return Box::pin(std::future::ready(Ok(refusal.into_http()))),
        };
        request.extensions_mut().insert(caller.clone());
        let (front, routes) = (self.connection.front().clone(), self.routes.clone());
        if request.uri().path() == SESSION_CALL {
            // Such a call may wait for long, and its answer is small, so it does not count towards the limit
            // of unsent answers.
            let arriving = Arriving::new(&self.connection);
            request.extensions_mut().insert(arriving.clone());
            let request = request.map(|body| Body::new(ArrivingBody { body, call: arriving }));
            return Box::pin(async move {
                Ok(holding(call, forward::route(front, routes, caller, request).await))
            });
        }
        if forward::has_one_answer(request.uri().path()) {
            let answers = self.connection.answers.clone();
            return Box::pin(async move {
                let slot = answers.acquire_owned().await.ok();
                let response = forward::route(front, routes, caller, request.map(Body::new)).await;
                Ok(holding((call, slot), response))
            });
        }
        if forward::opens_session_stream(request.uri().path()) {
            // The stream is registered here, on the connection's own task, so that no drain barrier passes
            // before the stream's reader exists.
            request.extensions_mut().insert(Arc::new(self.connection.starting()));
        }
        request.extensions_mut().insert(self.connection.clone());
        Box::pin(async move {
            Ok(holding(call, forward::route(front, routes, caller, request.map(Body::new)).await))
        })
    }
}

/// Answers a call that needs no authentication. A request that has not arrived completely keeps its headers
/// in memory, so the number and the duration of these calls are limited.
async fn answer_anybody(
    connection: Arc<Connection>,
    mut routes: Routes,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let Ok(slot) = connection.open_calls.clone().try_acquire_owned() else {
        let text = format!("a connection may have {OPEN_CALLS_MAX} health checks at once");
        return Ok(Status::resource_exhausted(text).into_http());
    };
    match tokio::time::timeout(OPEN_CALL, routes.call(request)).await {
        Ok(response) => response.map(|response| holding(slot, response)),
        Err(_) => Ok(Status::deadline_exceeded("the call did not arrive whole in its time").into_http()),
    }
}

/// Attaches `held` to the body of the response: dropped once the body was sent, or the connection has dropped
/// it.
pub(super) fn holding(held: impl Send + 'static, response: http::Response<Body>) -> http::Response<Body> {
    let hold = move |frame| {
        let _held = &held;
        frame
    };
    response.map(|body| Body::new(body.map_frame(hold)))
}
