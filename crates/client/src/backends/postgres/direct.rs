//! Whether a connection leads to the server process itself, with no pooler between.
//!
//! A server tells each connection, for requests to cancel, which process serves it. A pooler can't pass that on: its
//! client has one number for as long as it stays, while server processes change. So `PgBouncer` and its like invent one.
//! (Pgpool-II passes the server's on, and resets a process before it is used again: the page says what must stay set.)
//! `tokio_postgres` has the number in its request to cancel only, which is therefore written here to nobody.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::CancelToken;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The server process that cancels for a connection, as its other side said when it was made.
pub(super) async fn process_of(token: &CancelToken) -> Option<i32> {
    let mut request = Vec::new();
    token.cancel_query_raw(Paper(&mut request), Plain).await.ok()?;
    // Its length, what it is, the process, the key.
    let process = request.get(8..12)?;
    Some(i32::from_be_bytes(process.try_into().ok()?))
}

/// Keeps what is written, and consents to be encrypted.
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

/// Encrypts nothing: what is written goes nowhere.
struct Plain;

impl<'a> TlsConnect<Paper<'a>> for Plain {
    type Stream = Paper<'a>;
    type Error = Infallible;
    type Future = Ready<Result<Paper<'a>, Infallible>>;

    fn connect(self, stream: Paper<'a>) -> Self::Future {
        // The question whether to encrypt.
        stream.0.clear();
        ready(Ok(stream))
    }
}
