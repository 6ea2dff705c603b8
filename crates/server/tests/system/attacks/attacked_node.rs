//! The node that is attacked, and how the attackers reach it: by plain connections, or by TLS with a
//! certificate.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use super::frames::{PREFACE, SETTINGS, frame};
use crate::certified::ClientTls;
use crate::harness::{Client, Server};

/// Where an attacker writes.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// A node under attack.
#[derive(Clone)]
pub(super) struct AttackedNode {
    pub(super) address: SocketAddr,
    pub(super) http_address: SocketAddr,
    pub(super) tls: Option<ClientTls>,
}

impl AttackedNode {
    pub(super) fn of(server: &Server, tls: Option<ClientTls>) -> Self {
        let http_address = server.running.http_address().expect("it serves HTTP");
        Self { address: server.running.address(), http_address, tls }
    }

    /// Opens a connection. `None`: the node has had enough.
    pub(super) async fn dial(&self) -> Option<Box<dyn Wire>> {
        Some(match &self.tls {
            Some(tls) => Box::new(tls.connect(self.address).await.ok()?),
            None => Box::new(TcpStream::connect(self.address).await.ok()?),
        })
    }

    /// As [`AttackedNode::dial`], to the port for HTTP/JSON.
    pub(super) async fn dial_http(&self) -> Option<Box<dyn Wire>> {
        Some(match &self.tls {
            Some(tls) => Box::new(tls.connect_http(self.http_address, true).await.ok()?),
            None => Box::new(TcpStream::connect(self.http_address).await.ok()?),
        })
    }

    /// Opens a connection, with the client's preface and settings.
    pub(super) async fn connect(&self, settings: &[(u16, u32)]) -> Option<Box<dyn Wire>> {
        let mut socket = self.dial().await?;
        let settings: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        let begin = [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat();
        write(&mut socket, &begin).await.then_some(socket)
    }

    /// A well-behaved client.
    pub(super) async fn client(&self) -> Client {
        let channel = match &self.tls {
            Some(tls) => tls.channel(self.address).await,
            None => {
                let url = format!("http://{}", self.address);
                Endpoint::from_shared(url).unwrap().connect().await.unwrap()
            }
        };
        Client::over(channel, None).await
    }
}

/// Writes all bytes; returns whether the node has taken them.
pub(super) async fn write(socket: &mut Box<dyn Wire>, bytes: &[u8]) -> bool {
    // A TLS layer may keep bytes until then.
    socket.write_all(bytes).await.is_ok() && socket.flush().await.is_ok()
}
