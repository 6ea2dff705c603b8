//! Commands of many callers in one write.
//!
//! A connection's driver is woken by the first caller that sends something, and writes at once: with many callers, a
//! system call, a packet and a wake-up of the server for each command. This one lets the other callers that are ready
//! have their turn first, if there are any, and then writes what all of them sent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::settings;
use crate::backend::BoxFuture;

/// How many calls are under way.
pub(super) type UnderWay = Arc<AtomicUsize>;

/// A connection, and what must be polled for it to work.
pub(super) type Made = (MultiplexedConnection, BoxFuture<()>);

/// A connection whose driver writes for all `callers` together. By TLS, which has a stream of its own, it is an ordinary
/// one.
pub(super) async fn connect(
    client: &redis::Client,
    config: AsyncConnectionConfig,
    callers: UnderWay,
) -> RedisResult<Made> {
    let info = client.get_connection_info();
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        return Ok((client.get_multiplexed_async_connection_with_config(&config).await?, Box::pin(async {})));
    };
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&settings::keepalive())?;
    let stream = Paced { stream, callers, rested: false };
    let (wire, driver) =
        MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
    Ok((wire, Box::pin(driver)))
}

struct Paced {
    stream: TcpStream,
    callers: UnderWay,
    /// The others had their turn.
    rested: bool,
}

impl Paced {
    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.stream)
    }

    /// Whether to write now. If not, the task is polled again after those that are ready.
    fn may_write(&mut self, context: &Context<'_>) -> bool {
        // Who asks alone has nobody to wait for.
        if !self.rested && self.callers.load(Ordering::Relaxed) > 1 {
            self.rested = true;
            context.waker().wake_by_ref();
            return false;
        }
        self.rested = false;
        true
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, buffer)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.may_write(context) {
            return Poll::Pending;
        }
        self.stream().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}
