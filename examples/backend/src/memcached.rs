//! The four commands of memcached's text protocol that a lock needs. Each call opens a connection of its own, and closes it if it
//! is given up.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use lockkeeper_backend::percent_decode;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest line and the longest value that are read, in bytes.
const BYTES_MAX: usize = 4096;
/// The longest list of keys that is read.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// An item.
pub(crate) struct Item {
    pub(crate) value: String,
    /// Changes with every change of the item.
    pub(crate) version: u64,
}

/// A server, `host:port`.
#[derive(Clone)]
pub(crate) struct Memcached {
    pub(crate) address: String,
}

impl Memcached {
    /// The item of a key.
    pub(crate) async fn get(&self, key: &str, limit: Duration) -> Result<Option<Item>> {
        let (line, value) = self.call(format!("mg {key} v c\r\n"), limit).await?;
        let version = line.split(' ').find_map(|flag| flag.strip_prefix('c')?.parse().ok());
        match (line.as_str(), value, version) {
            ("EN", ..) => Ok(None),
            (_, Some(value), Some(version)) => Ok(Some(Item { value, version })),
            _ => Err(unexpected(&line)),
        }
    }

    /// Creates an item that lives for `ttl`; `false` if the key has one.
    pub(crate) async fn add(&self, key: &str, value: &str, ttl: Duration, limit: Duration) -> Result<bool> {
        self.store(key, value, "ME", ttl, limit).await
    }

    /// Replaces an item of this version, also by the same value, which then lives for `ttl` from now on.
    pub(crate) async fn replace(
        &self,
        key: &str,
        item: &Item,
        ttl: Duration,
        limit: Duration,
    ) -> Result<bool> {
        self.store(key, &item.value, &format!("C{}", item.version), ttl, limit).await
    }

    /// Deletes an item of this version.
    pub(crate) async fn delete(&self, key: &str, version: u64, limit: Duration) -> Result<bool> {
        done(&self.call(format!("md {key} C{version}\r\n"), limit).await?.0)
    }

    /// All keys.
    pub(crate) async fn keys(&self, limit: Duration) -> Result<Vec<String>> {
        let call = async {
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.write_all(b"lru_crawler metadump all\r\n").await?;
            let mut lines = BufReader::new(stream).take(LIST_BYTES_MAX).lines();
            let mut keys = Vec::new();
            while let Some(line) = lines.next_line().await? {
                match line.trim_end().strip_prefix("key=").and_then(|line| line.split(' ').next()) {
                    Some(key) => keys.extend(percent_decode(key)),
                    None if line.trim_end() == "END" => return Ok(keys),
                    None => return Err(unexpected(&line)),
                }
            }
            Err(unexpected("a list without an end"))
        };
        timeout(limit, call).await.map_err(|_| late())?
    }

    async fn store(&self, key: &str, value: &str, if_: &str, ttl: Duration, limit: Duration) -> Result<bool> {
        // The server counts whole seconds, from the last full one on.
        let seconds = ttl.as_secs() + 2;
        let command = format!("ms {key} {} {if_} T{seconds}\r\n{value}\r\n", value.len());
        done(&self.call(command, limit).await?.0)
    }

    /// Sends a command; returns the first line of the answer, and the value after it, if there is one.
    async fn call(&self, command: String, limit: Duration) -> Result<(String, Option<String>)> {
        let call = async {
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.write_all(command.as_bytes()).await?;
            let mut answer = BufReader::new(stream).take(2 * BYTES_MAX as u64);
            let mut line = String::new();
            answer.read_line(&mut line).await?;
            let line = line.strip_suffix("\r\n").ok_or_else(|| unexpected(&line))?.to_owned();
            let Some(length) = line.strip_prefix("VA ") else { return Ok((line, None)) };
            let length = length.split(' ').next().and_then(|length| length.parse().ok());
            let length = length.filter(|length| *length <= BYTES_MAX).ok_or_else(|| unexpected(&line))?;
            let mut value = vec![0; length];
            answer.read_exact(&mut value).await?;
            let value = String::from_utf8(value).map_err(|_| unexpected("a value that is not UTF-8"))?;
            Ok((line, Some(value)))
        };
        timeout(limit, call).await.map_err(|_| late())?
    }
}

fn done(line: &str) -> Result<bool> {
    match line {
        "HD" => Ok(true),
        "NS" | "EX" | "NF" => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn late() -> Error {
    Error::new(ErrorKind::TimedOut, "no answer in time")
}

fn unexpected(answer: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("memcached answers {answer:?}"))
}
