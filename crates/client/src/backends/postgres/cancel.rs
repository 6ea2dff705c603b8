//! Asks the server to give up a statement, over a connection of its own that lasts until it was heard.
//!
//! `CancelToken::cancel_query` closes its connection as soon as the request is written. PgBouncer forgets a request whose
//! sender is gone, and of PostgreSQL itself nobody would know when it has acted. Both close the connection once they have.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::CancelToken;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;

use super::answer::chain;
use super::direct::process_of;
use super::settings::Server;
use super::tls::Tls;

/// Asks for one connection's statements.
#[derive(Clone)]
pub(super) struct Cancel {
    token: CancelToken,
    server: Server,
    tls: Tls,
    timeout: Duration,
}

impl Cancel {
    pub(super) fn new(token: CancelToken, server: Server, tls: Tls, timeout: Duration) -> Self {
        Self { token, server, tls, timeout }
    }

    /// The address' `timeout=`.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// `host:port`, for people.
    pub(super) fn server(&self) -> &str {
        &self.server.shown
    }

    /// The server process that the other side named when the connection was made; a pooler invents one.
    pub(super) async fn process(&self) -> Option<i32> {
        process_of(&self.token).await
    }

    /// Sends the request, and returns once the other side has closed the connection. Must run where I/O is driven.
    ///
    /// # Errors
    /// What went wrong, for people.
    pub(super) async fn send(&self) -> Result<(), String> {
        match tokio::time::timeout(self.timeout, self.sent()).await {
            Ok(cancelled) => cancelled,
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        }
    }

    async fn sent(&self) -> Result<(), String> {
        let Self { token, server, tls, .. } = self;
        let port = server.config.get_ports().first().copied().unwrap_or_default();
        let said = |error: io::Error| error.to_string();
        match server.config.get_hosts().first() {
            Some(Host::Tcp(name)) => {
                let stream = TcpStream::connect((name.as_str(), port)).await.map_err(said)?;
                send(token, stream, name, tls.clone()).await
            }
            Some(Host::Unix(directory)) => {
                let path = directory.join(format!(".s.PGSQL.{port}"));
                send(token, UnixStream::connect(path).await.map_err(said)?, "", tls.clone()).await
            }
            None => Err("no host".to_owned()),
        }
    }
}

async fn send<S>(token: &CancelToken, stream: S, host: &str, mut tls: Tls) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let tls =
        MakeTlsConnect::<Patient<S>>::make_tls_connect(&mut tls, host).map_err(|error| error.to_string())?;
    token.cancel_query_raw(Patient(stream), tls).await.map_err(|error| chain(&error))
}

/// A stream that is shut down by the other side.
struct Patient<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            // However it ends, it has ended.
            let read = ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
