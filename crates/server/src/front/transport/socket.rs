//! The bytes of a connection, plain or by TLS: proves that the socket is empty, and records how it ended.

use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::connection::Connection;

/// What HTTP reads from and writes to.
pub(in crate::front) type ClientIo = tokio_util::either::Either<Socket, TlsSocket>;

/// The socket under HTTP/2, or under its TLS; records events, such as FIN, that HTTP/2 streams can't see.
pub(in crate::front) struct Socket {
    socket: TcpStream,
    connection: Arc<Connection>,
    above: Above,
    /// The last read was proven to find the socket empty.
    found_empty: bool,
    /// FIN or RST was read.
    has_ended: bool,
}

/// The layer above a [`Socket`]. A TLS layer may hold input that it has read, so then [`TlsSocket`] records
/// the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Above {
    Http,
    /// No request was read yet, but the last read of the handshake may be followed by requests and by FIN at
    /// once.
    Handshake,
    Tls,
}

impl Socket {
    pub(super) fn new(socket: TcpStream, connection: Arc<Connection>, above: Above) -> Self {
        Self { socket, connection, above, found_empty: false, has_ended: false }
    }

    /// Reads by a direct system call, regardless of the runtime's readiness flag. Returns `None` if the read
    /// would block.
    fn read_now(&self, buf: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        loop {
            match (&*SockRef::from(&self.socket)).read(buf.initialize_unfilled()) {
                Ok(bytes) => {
                    buf.advance(bytes);
                    return Some(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let must_prove = self.connection.wants_proof() && buf.remaining() > 0;
        let read = match must_prove.then(|| self.read_now(buf)).flatten() {
            Some(read) => Poll::Ready(read),
            None => Pin::new(&mut self.socket).poll_read(cx, buf),
        };
        self.found_empty = read.is_pending() && must_prove;
        match &read {
            Poll::Pending if self.above == Above::Tls => {}
            Poll::Pending => self.connection.would_block(cx, must_prove),
            Poll::Ready(Ok(())) => self.has_ended |= buf.filled().len() == before && buf.remaining() > 0,
            Poll::Ready(Err(error)) => self.has_ended |= error.kind() == io::ErrorKind::ConnectionReset,
        }
        if self.has_ended && self.above == Above::Http {
            self.connection.peer_closed();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The TLS layer under HTTP/2. All input that had arrived was passed on once this layer has no more *and* the
/// socket below was found empty in the same read.
///
/// The client counts as having closed the stream if TLS ended properly (`close_notify`), and also after a
/// bare FIN or RST: a killed process leaves nothing else, and `linger` is for killed processes.
pub(in crate::front) struct TlsSocket {
    stream: TlsStream<Socket>,
    connection: Arc<Connection>,
}

impl TlsSocket {
    /// A connection whose TLS handshake is over.
    pub(super) fn new(mut stream: TlsStream<Socket>) -> Self {
        let socket = stream.get_mut().0;
        socket.above = Above::Tls;
        let connection = socket.connection.clone();
        Self { stream, connection }
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.stream.get_mut().0.found_empty = false;
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &read {
            Poll::Pending => self.connection.would_block(cx, self.stream.get_ref().0.found_empty),
            Poll::Ready(Ok(())) if buf.filled().len() == before && buf.remaining() > 0 => {
                self.connection.peer_closed();
            }
            // Only after an error: the read that reached the end of the socket may have returned earlier
            // input.
            Poll::Ready(Err(_)) if self.stream.get_ref().0.has_ended => self.connection.peer_closed(),
            Poll::Ready(_) => {}
        }
        read
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
