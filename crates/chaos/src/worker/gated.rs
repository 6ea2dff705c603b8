//! Sections at a service behind the gate, over HTTP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::Token;
use lockkeeper_history::{HistoryEvent, WriteOutcome, WroteEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::ledger::Ledger;

/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(3);

/// The service of all tasks.
#[derive(Clone)]
pub(crate) struct GatedService {
    pub(crate) gate: SocketAddr,
    /// Its history, clock and versions are those of this service too.
    pub(crate) ledger: Ledger,
}

impl GatedService {
    /// A section at the resource of this lock's name: reads the version, takes its time, and writes a new
    /// one. The gate writes down which tokens it lets in.
    pub(crate) async fn section(&self, name: &str, token: Token, takes: Duration) {
        let ledger = &self.ledger.0;
        let asked = ledger.clock.now();
        let Ok((200, saw)) = self.request("GET", name, token, "").await else { return };
        ledger.has_read(name, asked, &saw);
        sleep(takes).await;
        let made = ledger.new_version();
        let asked = ledger.clock.now();
        let outcome = match self.request("PUT", name, token, &made).await {
            Ok((200, _)) => WriteOutcome::Done,
            // Stale, or put off: nothing was done.
            Ok((412 | 503, _)) => WriteOutcome::Stale,
            _ => WriteOutcome::Unknown,
        };
        let (resource, service, lock) = (name.to_owned(), ledger.service.clone(), name.into());
        let token = Some(token.get());
        let wrote = WroteEvent { resource, service, lock, token, asked, saw, made, outcome };
        ledger.history.write(ledger.clock.now(), HistoryEvent::Wrote(wrote));
    }

    /// A request on a connection of its own; returns the status and the body.
    async fn request(&self, method: &str, name: &str, token: Token, body: &str) -> io::Result<(u16, String)> {
        let (host, length) = (self.gate, body.len());
        let request = format!(
            "{method} /{name} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nFencing-Token: {token}\r\nFencing-Mode: \
             exclusive\r\nContent-Length: {length}\r\n\r\n{body}",
            token = token.get(),
        );
        let asked = async {
            let mut stream = TcpStream::connect(self.gate).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let head_and_body = answer.split_once("\r\n\r\n");
            let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
            match (status, head_and_body) {
                (Some(status), Some((_, body))) => Ok((status, body.to_owned())),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        timeout(LIMIT, asked).await?
    }
}
