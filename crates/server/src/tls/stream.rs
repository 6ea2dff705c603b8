//! Byte streams between nodes, with or without TLS: async during the handshakes, then synchronous on the
//! thread that owns the connection.

use std::io::{self, Read, Write};
use std::net;

use rustls::Connection;
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_util::either::Either;

/// A connection to another node during its handshakes: plain, or by TLS.
pub(crate) type PeerStream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection to another node after its handshakes. Its socket may be blocking or non-blocking.
#[derive(Debug)]
pub(crate) struct Transport<S> {
    socket: S,
    tls: Option<Box<Connection>>,
}

impl Transport<net::TcpStream> {
    /// Converts a connection after its handshakes, including the bytes that its TLS layer has buffered. The
    /// socket is non-blocking.
    ///
    /// # Errors
    /// The socket can't be deregistered from the runtime.
    pub(crate) fn of(stream: PeerStream) -> io::Result<Self> {
        let (socket, tls) = match stream {
            Either::Left(socket) => (socket, None),
            Either::Right(stream) => match *stream {
                TlsStream::Client(stream) => {
                    let (socket, tls) = stream.into_inner();
                    (socket, Some(Connection::Client(tls)))
                }
                TlsStream::Server(stream) => {
                    let (socket, tls) = stream.into_inner();
                    (socket, Some(Connection::Server(tls)))
                }
            },
        };
        Ok(Self { socket: socket.into_std()?, tls: tls.map(Box::new) })
    }
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

    /// Whether the TLS layer still buffers written bytes that the socket has not accepted.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether a short read means that the socket is empty. With TLS, a short read may have returned only the
    /// rest of a record.
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

/// Maps a write of 0 bytes to `WouldBlock`: the TLS buffer is full, but the connection is open.
fn taken(written: io::Result<usize>, bytes: &[u8]) -> io::Result<usize> {
    match written {
        Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
        other => other,
    }
}
