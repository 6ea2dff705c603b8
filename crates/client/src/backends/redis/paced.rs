//! Batched writes: the commands of many callers in one system call.
//!
//! A connection's driver task is woken by the first caller that sends a command, and writes at once: with many
//! callers, this is a system call, a packet and a wake-up of the server for each command. This one first yields to
//! the other tasks that are ready, if further callers have pending calls, and then writes all queued commands
//! together.

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

/// Number of pending calls.
pub(super) type UnderWay = Arc<AtomicUsize>;

/// A connection and its driver, which must be polled.
pub(super) type Made = (MultiplexedConnection, BoxFuture<()>);

/// Opens a connection whose driver batches the writes of all `callers`. With TLS, whose stream the Redis client
/// library creates, it is an ordinary connection.
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
    /// The driver has yielded once since its last write.
    rested: bool,
}

impl Paced {
    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.stream)
    }

    /// Whether to write now. If not, the driver is polled again after the tasks that are ready.
    fn may_write(&mut self, context: &Context<'_>) -> bool {
        // A single caller has no other to wait for.
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
