//! The bytes of a connection between nodes, by TLS or plain: async for the handshakes, then synchronous on the thread
//! that keeps the connection.

use std::io::{self, Read, Write};
use std::net;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::Connection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A connection to another node during its handshakes.
pub(crate) enum PeerStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl PeerStream {
    /// The connection for a thread, with what its TLS layer has read ahead. The socket is non-blocking.
    pub(crate) fn into_transport(self) -> io::Result<Transport<net::TcpStream>> {
        match self {
            Self::Plain(socket) => Ok(Transport { socket: socket.into_std()?, tls: None }),
            Self::Tls(stream) => {
                let (socket, tls) = match *stream {
                    TlsStream::Client(stream) => {
                        let (socket, tls) = stream.into_inner();
                        (socket, Connection::Client(tls))
                    }
                    TlsStream::Server(stream) => {
                        let (socket, tls) = stream.into_inner();
                        (socket, Connection::Server(tls))
                    }
                };
                Ok(Transport { socket: socket.into_std()?, tls: Some(Box::new(tls)) })
            }
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A connection to another node after its handshakes, on a socket that blocks or does not.
#[derive(Debug)]
pub(crate) struct Transport<S> {
    socket: S,
    tls: Option<Box<Connection>>,
}

impl<S> Transport<S> {
    /// Without TLS.
    #[cfg(test)]
    pub(crate) fn plain(socket: S) -> Self {
        Self { socket, tls: None }
    }

    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }

    pub(crate) fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// The same connection on another type of socket.
    pub(crate) fn map<T>(self, change: impl FnOnce(S) -> T) -> Transport<T> {
        Transport { socket: change(self.socket), tls: self.tls }
    }

    /// Whether bytes that were written are still here, because the socket took no more.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether a read that returned fewer bytes than there was room for has emptied the socket. With TLS it may have
    /// returned the rest of a record.
    pub(crate) fn short_read_empties(&self) -> bool {
        self.tls.is_none()
    }
}

impl<S: Read + Write> Read for Transport<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.tls.as_deref_mut() {
            None => self.socket.read(buf),
            Some(Connection::Client(tls)) => rustls::Stream::new(tls, &mut self.socket).read(buf),
            Some(Connection::Server(tls)) => rustls::Stream::new(tls, &mut self.socket).read(buf),
        }
    }
}

impl<S: Read + Write> Write for Transport<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls.as_deref_mut() {
            None => self.socket.write(bytes),
            Some(Connection::Client(tls)) => {
                taken(rustls::Stream::new(tls, &mut self.socket).write(bytes), bytes)
            }
            Some(Connection::Server(tls)) => {
                taken(rustls::Stream::new(tls, &mut self.socket).write(bytes), bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.tls.as_deref_mut() {
            None => self.socket.flush(),
            Some(Connection::Client(tls)) => rustls::Stream::new(tls, &mut self.socket).flush(),
            Some(Connection::Server(tls)) => rustls::Stream::new(tls, &mut self.socket).flush(),
        }
    }
}

/// The TLS layer takes nothing while its buffer is full, which is no end of the connection.
fn taken(written: io::Result<usize>, bytes: &[u8]) -> io::Result<usize> {
    match written {
        Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
        other => other,
    }
}
