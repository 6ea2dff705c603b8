//! The way to one server: a socket that goes along with whoever uses it, TLS, and the check that it is the primary.
//!
//! What `Config::connect` does with sockets of tokio's own.

use std::io;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Error, SimpleQueryMessage};

use super::carried::Carried;
use super::roaming::{Roaming, Socket};
use super::tls::Tls;

/// Why there is no connection.
pub(super) enum NotMade {
    /// Nobody answers there.
    NoSocket(io::Error),
    /// The name of the host is none that a certificate could have.
    NoTls(String),
    /// The server refuses, or is none.
    Refused(Error),
    /// A standby, or a server that is set to be one.
    ReadOnly,
}

/// A connection to the one host of `config`, with the first of its addresses that has one to give.
///
/// # Errors
/// [`NotMade`], of the last address.
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
            // There is no TLS over a socket of Unix, whatever it is called.
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
        // A connection that ends meanwhile is told by the answer, if there is one.
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
