//! Accepts connections on both ports, and ends those that are idle, unauthenticated or given up.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use lockkeeper_places::network;

use super::Transport;
use super::connection::Connection;
use super::socket::{Above, ClientIo, Socket, TlsSocket};
use crate::tls::{ClientProtocol, NodeTls};

/// The flow-control window of a stream, in bytes.
pub(in crate::front) const STREAM_WINDOW: u32 = 1 << 20;
/// Limit on a message of the services from tonic (health checks, reflection), in bytes. Health checks are
/// decoded before their sender is authenticated.
pub(in crate::front) const FOREIGN_MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Most concurrent streams and calls of one connection.
pub(in crate::front) const STREAMS_MAX: u32 = 256;
pub(in crate::front) const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Maximum lifetime of a connection whose client must authenticate and has not: enough for a health check.
const PROVISIONAL_LIFE: Duration = Duration::from_secs(30);
/// Time limit for the calls in progress when this node closes a connection.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// How long sent data may stay unacknowledged by the client; see [`give_up_unread`].
const UNREAD_TIME: Duration = Duration::from_secs(30);
/// The pause after a failed accept.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections.
pub(crate) struct Acceptor {
    ports: Vec<Port>,
    transport: Arc<Transport>,
}

/// A listener, and what serves its connections.
pub(in crate::front) struct Port {
    pub(in crate::front) listener: TcpListener,
    pub(in crate::front) interface: Arc<dyn Interface>,
}

/// What serves the connections of a port.
pub(in crate::front) trait Interface: Send + Sync {
    fn protocol(&self) -> ClientProtocol;

    /// Serves a connection until it ends.
    fn serve(&self, io: ClientIo, connection: Arc<Connection>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

impl Acceptor {
    pub(in crate::front) fn new(ports: Vec<Port>, transport: Arc<Transport>) -> Arc<Self> {
        Arc::new(Self { ports, transport })
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
                () = self.transport.replica.stopping.cancelled() => return,
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
    pub(in crate::front) fn accept_waiting(&self) -> bool {
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
        let is_http = interface.protocol() == ClientProtocol::Http;
        let (transport, ip) = (&self.transport, address.map(|address| address.ip()));
        let accept = || transport.places.accept(ip, is_http, transport.tls.is_some());
        let place = accept()
            .or_else(|why| if transport.make_way(ip.map(network), None, &why) { accept() } else { Err(why) });
        let place = match place {
            Ok(place) => place,
            Err(why) => {
                let address = address.map(|address| address.to_string()).unwrap_or_default();
                return transport.refuse_connection(&address, &why);
            }
        };
        if place.is_waiting() {
            transport.close_idle();
        }
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it was served");
            return;
        }
        if is_http {
            give_up_unread(&socket);
        }
        let connection = transport.open_connection(address, place);
        tokio::spawn(serve(socket, connection, interface));
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
async fn serve(socket: TcpStream, connection: Arc<Connection>, interface: Arc<dyn Interface>) {
    let io = match &connection.transport().tls {
        None => Some(Either::Left(Socket::new(socket, connection.clone(), Above::Http))),
        Some(tls) => {
            let socket = Socket::new(socket, connection.clone(), Above::Handshake);
            let accepted = accept_tls(tls, socket, &connection, interface.protocol()).await;
            accepted.map(|stream| Either::Right(TlsSocket::new(stream)))
        }
    };
    if let Some(io) = io {
        interface.serve(io, connection.clone()).await;
    }
    connection.over();
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
        () = connection.transport().replica.stopping.cancelled() => return None,
    };
    match accepted {
        Ok(stream) => {
            let chain = stream.get_ref().1.peer_certificates();
            if let Some(certificate) = chain.and_then(<[_]>::first) {
                connection.show_certificate(certificate);
            }
            Some(stream)
        }
        Err(error) => {
            tracing::debug!(connection = connection.id, %error, "a client's TLS handshake failed: {error}");
            if let Some(why) = refused_certificate(&error) {
                connection.certificate_refused(&why);
            }
            None
        }
    }
}

/// Why the certificate that the client has shown is not accepted; `None` if the handshake has failed for
/// another reason, such as bytes that are no TLS.
fn refused_certificate(error: &io::Error) -> Option<String> {
    use rustls::CertificateError as Fault;
    let rustls::Error::InvalidCertificate(fault) = error.get_ref()?.downcast_ref()? else { return None };
    let seconds = |time: &rustls::pki_types::UnixTime| {
        humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()))
    };
    Some(match fault {
        Fault::ExpiredContext { not_after, .. } => {
            format!("its client's certificate ended at {}", seconds(not_after))
        }
        Fault::NotValidYetContext { not_before, .. } => {
            format!("its client's certificate is valid only from {} on", seconds(not_before))
        }
        Fault::UnknownIssuer => "no authority of this node has signed its client's certificate".to_owned(),
        other => format!("its client's certificate is not accepted: {other}"),
    })
}

/// Completes when the connection has ended, or this node closes it.
pub(in crate::front) async fn until_end<C>(
    mut http: Pin<&mut C>,
    graceful_shutdown: impl Fn(Pin<&mut C>),
    connection: &Connection,
) where
    C: Future<Output = hyper::Result<()>>,
{
    let transport = connection.transport();
    let idle_timeout = transport.limits.idle_timeout;
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
            () = transport.replica.stopping.cancelled(), if !is_stopping => {
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
