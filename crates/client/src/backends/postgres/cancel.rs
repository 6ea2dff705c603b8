//! Cancels a running statement, over a separate connection that stays open until the request was processed.
//!
//! `CancelToken::cancel_query` closes its connection as soon as the request is written. PgBouncer drops a request whose
//! sender is gone, and with PostgreSQL the sender could not detect when the request has taken effect. Both close the
//! connection after they have processed the request.

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

/// Cancels statements of one connection.
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

    /// The server process that the peer reported when the connection was opened; a pooler invents one.
    pub(super) async fn process(&self) -> Option<i32> {
        process_of(&self.token).await
    }

    /// Sends the cancel request, and returns when the peer has closed the connection. Must run in a runtime with I/O.
    ///
    /// # Errors
    /// The error, as shown to users.
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

/// A stream whose shutdown waits until the peer closes it.
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
            // End of stream and read errors both mean that the peer has closed it.
            let read = ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
