//! A socket that can move between runtimes.
//!
//! A tokio socket is bound to the runtime that created it: a task elsewhere is woken from another thread, and never
//! woken once that runtime has stalled or ended. This socket waits in the runtime that [entered](Roaming::enter) it
//! last.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::runtime::{Handle, Id};

use crate::fd::{Steady, watch};

/// Maximum bytes per read. Most answers are shorter.
const READ_BYTES: usize = 2048;

const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// Clones share the socket. A task enters the socket before it polls, which registers the task's waker. Wakers passed
/// to single read and write calls are ignored, since a library in between may pass its own.
#[derive(Clone)]
pub(super) struct Roaming(Arc<Inner>);

struct Inner {
    socket: Arc<Socket>,
    place: Mutex<Place>,
}

/// The runtime and the task in which the socket waits.
struct Place {
    waker: Waker,
    runtime: Option<(Id, AsyncFd<Arc<Socket>>)>,
    /// Whether reads return at once instead of waiting.
    looks: bool,
}

/// A nonblocking socket.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Roaming {
    /// The socket must be nonblocking.
    pub(super) fn new(socket: Socket) -> Self {
        let place = Place { waker: Waker::noop().clone(), runtime: None, looks: false };
        Self(Arc::new(Inner { socket: Arc::new(socket), place: Mutex::new(place) }))
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the socket wait in the current runtime, and wake this task. Without a runtime, reads fail.
    pub(super) fn enter(&self, context: &Context<'_>) {
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let mut place = self.place();
        let there = place.runtime.as_ref().map(|(runtime, _)| *runtime);
        if there != here {
            // Deregister first: if both runtimes have one poller, it does not accept a socket twice.
            place.runtime = None;
            place.runtime = here.and_then(|here| Some((here, watch(self.0.socket.clone(), BOTH).ok()?)));
        }
        if !place.waker.will_wake(context.waker()) {
            place.waker = context.waker().clone();
        }
    }

    /// Runs `work`, which reads and writes this socket, and enters the current runtime at each poll.
    pub(super) async fn carry<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.enter(context);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Sets whether reads return at once instead of waiting, which needs no runtime.
    pub(super) fn look(&self, looks: bool) {
        self.place().looks = looks;
    }
}

impl Place {
    fn fd(&self) -> io::Result<&AsyncFd<Arc<Socket>>> {
        let fd = self.runtime.as_ref().map(|(_, fd)| fd);
        fd.ok_or_else(|| io::Error::other("there is no tokio runtime here to wait in"))
    }
}

impl Socket {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => (&*socket).read(bytes),
            Self::Unix(socket) => (&*socket).read(bytes),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => (&*socket).write(bytes),
            Self::Unix(socket) => (&*socket).write(bytes),
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Self::Unix(socket) => socket.shutdown(Shutdown::Write),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(socket) => socket.as_raw_fd(),
            Self::Unix(socket) => socket.as_raw_fd(),
        }
    }
}

// SAFETY: a stream owns its descriptor until it is dropped, and no code here moves the stream out of the `Arc`.
unsafe impl Steady for Arc<Socket> {}

impl AsyncRead for Roaming {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (socket, place) = (&self.0.socket, self.place());
        let bytes = buffer.initialize_unfilled_to(buffer.remaining().min(READ_BYTES));
        if place.looks {
            return match socket.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                read => Poll::Ready(read.map(|read| buffer.advance(read))),
            };
        }
        let (fd, mut context) = (place.fd()?, Context::from_waker(&place.waker));
        loop {
            let mut readiness = ready!(fd.poll_read_ready(&mut context))?;
            let Ok(read) = readiness.try_io(|_| socket.read(bytes)) else { continue };
            let read = read?;
            if 0 < read && read < bytes.len() {
                // A short read has emptied the receive buffer: the next wait needs no read attempt first.
                readiness.clear_ready();
            }
            buffer.advance(read);
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for Roaming {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let socket = &self.0.socket;
        // The send buffer is rarely full, so try without registration first.
        match socket.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
        let place = self.place();
        let (fd, mut context) = (place.fd()?, Context::from_waker(&place.waker));
        loop {
            let mut readiness = ready!(fd.poll_write_ready(&mut context))?;
            if let Ok(written) = readiness.try_io(|_| socket.write(bytes)) {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.socket.shut_down())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::io::AsyncReadExt;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_io().build().unwrap()
    }

    fn pair() -> (Roaming, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        (Roaming::new(Socket::Tcp(ours)), listener.accept().unwrap().0)
    }

    async fn read(socket: &Roaming) -> Vec<u8> {
        let mut bytes = [0; 5];
        let mut reader = socket.clone();
        socket.carry(reader.read_exact(&mut bytes)).await.unwrap();
        bytes.to_vec()
    }

    #[test]
    fn socket_is_readable_in_several_runtimes_in_turn() {
        let (socket, mut other) = pair();
        let (first, second) = (runtime(), runtime());
        other.write_all(b"first").unwrap();
        assert_eq!(first.block_on(read(&socket)), b"first");
        let reading = std::thread::spawn({
            let socket = socket.clone();
            move || {
                let read = second.block_on(read(&socket));
                drop(second);
                read
            }
        });
        other.write_all(b"other").unwrap();
        assert_eq!(reading.join().unwrap(), b"other");
        other.write_all(b"again").unwrap();
        assert_eq!(first.block_on(read(&socket)), b"again");
    }

    #[test]
    fn immediate_reads_need_no_runtime_and_waiting_reads_fail_without() {
        let (mut socket, mut other) = pair();
        let mut context = Context::from_waker(Waker::noop());
        let mut bytes = [0; 8];
        let mut buffer = ReadBuf::new(&mut bytes);
        assert!(matches!(Pin::new(&mut socket).poll_read(&mut context, &mut buffer), Poll::Ready(Err(_))));
        socket.look(true);
        assert!(Pin::new(&mut socket).poll_read(&mut context, &mut buffer).is_pending());
        other.write_all(b"here").unwrap();
        while Pin::new(&mut socket).poll_read(&mut context, &mut buffer).is_pending() {
            std::thread::yield_now();
        }
        assert_eq!(buffer.filled(), b"here");
    }
}
