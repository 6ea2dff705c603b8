//! Reads the process id that the server sent when a connection was opened. If it is not the id of the process
//! that executes the connection's statements, a pooler lies in between.
//!
//! PostgreSQL sends each connection the id of its server process, for cancel requests. A pooler can't forward
//! this id: a client keeps one id for its whole connection to the pooler, while the server process behind it
//! changes. So `PgBouncer` and similar poolers invent an id. (Pgpool-II forwards the server's id, and resets
//! a process before reuse: the user documentation names the required settings.) `tokio_postgres` shows the id
//! in its cancel request only, so the request is written to memory here and never sent.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::CancelToken;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The id of the server process that a cancel request would name, as the peer reported it at startup.
pub(super) async fn process_of(token: &CancelToken) -> Option<i32> {
    let mut request = Vec::new();
    token.cancel_query_raw(Paper(&mut request), Plain).await.ok()?;
    // Four bytes each: length, request code, process id; then the secret key.
    let process = request.get(8..12)?;
    Some(i32::from_be_bytes(process.try_into().ok()?))
}

/// A stream in memory that stores what is written. Reads return `S`, with which a server accepts a request
/// for TLS.
struct Paper<'a>(&'a mut Vec<u8>);

impl AsyncRead for Paper<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paper<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for Paper<'_> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// A TLS connector without encryption: the bytes stay in memory.
struct Plain;

impl<'a> TlsConnect<Paper<'a>> for Plain {
    type Stream = Paper<'a>;
    type Error = Infallible;
    type Future = Ready<Result<Paper<'a>, Infallible>>;

    fn connect(self, stream: Paper<'a>) -> Self::Future {
        // Discards the SSLRequest message, so that only the cancel request is left.
        stream.0.clear();
        ready(Ok(stream))
    }
}
