//! Opens a connection to one server: a socket that can move between runtimes, TLS, and the check for a primary.
//!
//! Replaces `Config::connect`, which supports tokio's sockets only.

use std::io;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Error, SimpleQueryMessage};

use super::carried::Carried;
use super::roaming::{Roaming, Socket};
use super::tls::Tls;

/// Why no connection was opened.
pub(super) enum NotMade {
    /// No server answers, or the connection ended early.
    NoSocket(io::Error),
    /// The host name is not valid in a certificate.
    NoTls(String),
    /// The server refuses, or it is not PostgreSQL.
    Refused(Error),
    /// A standby, or a server that is configured to be read-only.
    ReadOnly,
}

/// Connects to the one host of `config`, at the first of its addresses that accepts.
///
/// # Errors
/// [`NotMade`], for the last address.
pub(super) async fn dial(config: &Config, tls: Tls) -> Result<(Client, Carried), NotMade> {
    let port = config.get_ports().first().copied().unwrap_or_default();
    match config.get_hosts().first() {
        Some(Host::Tcp(name)) => {
            let mut last = NotMade::NoSocket(io::Error::other("the name leads to no address"));
            for address in lookup_host((name.as_str(), port)).await.map_err(NotMade::NoSocket)? {
                let made = match TcpStream::connect(address).await.and_then(|stream| tuned(stream, config)) {
                    Ok(socket) => greet(socket, name, config, tls.clone()).await,
                    Err(error) => Err(NotMade::NoSocket(error)),
                };
                match made {
                    Ok(made) => return Ok(made),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
        Some(Host::Unix(directory)) => {
            let stream = UnixStream::connect(directory.join(format!(".s.PGSQL.{port}"))).await;
            let socket = stream.and_then(UnixStream::into_std).map(Socket::Unix);
            // There is no TLS over Unix sockets; the host name is unused.
            greet(socket.map_err(NotMade::NoSocket)?, "", config, tls).await
        }
        None => Err(NotMade::NoSocket(io::Error::other("no host"))),
    }
}

fn tuned(stream: TcpStream, config: &Config) -> io::Result<Socket> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let options = SockRef::from(&stream);
    #[cfg(target_os = "linux")]
    options.set_tcp_user_timeout(config.get_tcp_user_timeout().copied())?;
    if config.get_keepalives() {
        let mut keepalive = TcpKeepalive::new().with_time(config.get_keepalives_idle());
        if let Some(interval) = config.get_keepalives_interval() {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(retries) = config.get_keepalives_retries() {
            keepalive = keepalive.with_retries(retries);
        }
        options.set_tcp_keepalive(&keepalive)?;
    }
    Ok(Socket::Tcp(stream))
}

async fn greet(
    socket: Socket,
    host: &str,
    config: &Config,
    mut tls: Tls,
) -> Result<(Client, Carried), NotMade> {
    let socket = Roaming::new(socket);
    let tls = MakeTlsConnect::<Roaming>::make_tls_connect(&mut tls, host);
    let tls = tls.map_err(|error| NotMade::NoTls(error.to_string()))?;
    let greeting = config.connect_raw(socket.clone(), tls);
    let (client, connection) = socket.carry(greeting).await.map_err(NotMade::Refused)?;
    let mut carried = Carried::new(connection, socket);
    if config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite {
        let asked = carried.until(client.simple_query("show transaction_read_only")).await;
        // If the server ends the connection now, the answer has the reason, if one arrives.
        let said =
            asked.map_err(|why| NotMade::NoSocket(io::Error::other(why)))?.map_err(NotMade::Refused)?;
        let is_on = |said: &SimpleQueryMessage| match said {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
            _ => false,
        };
        if said.iter().any(is_on) {
            return Err(NotMade::ReadOnly);
        }
    }
    Ok((client, carried))
}
