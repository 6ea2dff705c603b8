//! Opens connections: address, TLS, and the limit on replies. The client library does the login and
//! everything after it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::{HEAD_START, first_success};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, RedisFuture, RedisResult,
    Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_util::task::AbortOnDropHandle;

use super::reply_limit::ReplyLimit;

/// TCP keep-alive: idle time before the first probe, and the interval between probes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RedisAddress {
    Tcp { host: String, port: u16 },
    Socket(PathBuf),
}

/// One server and its login. Password and TLS files are as read at creation.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) address: RedisAddress,
    pub(super) login: RedisConnectionInfo,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
}

/// A connection to one Redis server, for many calls at once: for a Redis fence, or for
/// `RedisRecords` of the library. Replies of more than 16 MiB, or of more than 524,288 values,
/// are errors and close it, so that no server can exhaust the memory of its clients. It is closed when its
/// last clone is dropped.
#[derive(Clone)]
pub struct RedisConnection {
    pub(super) calls: MultiplexedConnection,
    _driver: Arc<AbortOnDropHandle<()>>,
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.calls.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.calls.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.calls.get_db()
    }
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConnection").finish_non_exhaustive()
    }
}

/// For callers that limit the time of each call.
pub(super) fn without_time_limit() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(None)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Dialer {
    /// The same, for a server without `HELLO`.
    pub(super) fn with_resp2(&self) -> Self {
        let login = self.login.clone().set_protocol(ProtocolVersion::RESP2);
        Self { login, ..self.clone() }
    }

    pub(super) fn is_resp2(&self) -> bool {
        self.login.protocol() == ProtocolVersion::RESP2
    }

    /// The caller limits the time.
    pub(super) async fn connect(&self, config: AsyncConnectionConfig) -> RedisResult<RedisConnection> {
        let stream = self.stream().await?;
        let (calls, driver) = MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        Ok(RedisConnection { calls, _driver: Arc::new(AbortOnDropHandle::new(tokio::spawn(driver))) })
    }

    /// A pub/sub connection, over RESP2.
    pub(super) async fn subscribe(&self) -> RedisResult<PubSub> {
        PubSub::new(&self.login, self.stream().await?).await
    }

    async fn stream(&self) -> io::Result<ReplyLimit<Box<dyn Stream>>> {
        let stream: Box<dyn Stream> = match &self.address {
            RedisAddress::Socket(path) => Box::new(UnixStream::connect(path).await?),
            RedisAddress::Tcp { host, port } => self.tls(host, tcp(host, *port).await?).await?,
        };
        Ok(ReplyLimit::new(stream))
    }

    #[cfg(not(feature = "tls"))]
    async fn tls(&self, _host: &str, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(stream))
    }

    #[cfg(feature = "tls")]
    async fn tls(&self, host: &str, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let Some(config) = &self.tls else { return Ok(Box::new(stream)) };
        let name = rustls::pki_types::ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Box::new(tokio_rustls::TlsConnector::from(config.clone()).connect(name, stream).await?))
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    let connected = first_success(addresses.into_iter().map(TcpStream::connect), HEAD_START).await;
    let no_address = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let stream = connected.map_err(|errors| errors.into_iter().next().unwrap_or_else(no_address))?;
    stream.set_nodelay(true)?;
    // Detects a peer that vanished without closing the connection, also while no command is pending.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}
