//! Sections at a service behind the gate, over HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::Token;
use lockkeeper_history::{HistoryEvent, HistoryWriter, ReadEvent, WriteOutcome, WroteEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::claims::WorkerClock;

/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(3);

/// The service of all tasks.
#[derive(Clone)]
pub(crate) struct GatedService {
    pub(crate) gate: SocketAddr,
    pub(crate) history: HistoryWriter,
    pub(crate) clock: WorkerClock,
    pub(crate) service: String,
    /// Unique for this process.
    pub(crate) by: String,
    pub(crate) versions: Arc<AtomicU64>,
}

impl GatedService {
    /// A section at the resource of this lock's name: reads the version, takes its time, and writes a new
    /// one. The gate writes down which tokens it lets in.
    pub(crate) async fn section(&self, name: &str, token: Token, takes: Duration) {
        let asked = self.clock.now();
        let Ok((200, saw)) = self.request("GET", name, token, "").await else { return };
        let read = ReadEvent { resource: name.into(), asked, version: saw.clone() };
        self.history.write(self.clock.now(), HistoryEvent::Read(read));
        sleep(takes).await;
        let made = format!("{}-gated-{}", self.by, self.versions.fetch_add(1, Ordering::Relaxed));
        let asked = self.clock.now();
        let outcome = match self.request("PUT", name, token, &made).await {
            Ok((200, _)) => WriteOutcome::Done,
            // Stale, or put off: nothing was done.
            Ok((412 | 503, _)) => WriteOutcome::Stale,
            _ => WriteOutcome::Unknown,
        };
        let (resource, service, lock) = (name.to_owned(), self.service.clone(), name.into());
        let token = Some(token.get());
        let wrote = WroteEvent { resource, service, lock, token, asked, saw, made, outcome };
        self.history.write(self.clock.now(), HistoryEvent::Wrote(wrote));
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
