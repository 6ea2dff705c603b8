//! The commands of memcached's text protocol that a lock needs. Each call opens a connection of its own, and
//! closes it if it is given up.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use lockkeeper_backend::percent_decode;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest answer that is read, in bytes: a list of keys.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// An item.
pub(crate) struct Item {
    pub(crate) value: Vec<u8>,
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
        let read = async |answer: &mut Answer| {
            let line = answer.line().await?;
            let version = line.split(' ').find_map(|flag| flag.strip_prefix('c')?.parse().ok());
            match (line.strip_prefix("VA ").and_then(|line| line.split(' ').next()?.parse().ok()), version) {
                (Some(length), Some(version)) => {
                    Ok(Some(Item { value: answer.bytes(length).await?, version }))
                }
                _ if line == "EN" => Ok(None),
                _ => Err(unexpected(&line)),
            }
        };
        self.call(format!("mg {key} v c\r\n").as_bytes(), limit, read).await
    }

    /// Creates an item that lives for `ttl`; `false` if the key has one.
    pub(crate) async fn add(&self, key: &str, value: &[u8], ttl: Duration, limit: Duration) -> Result<bool> {
        self.store(key, value, "ME", ttl, limit).await
    }

    /// Lets an item of this version live for `ttl` from now on.
    pub(crate) async fn extend(
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
        self.call(format!("md {key} C{version}\r\n").as_bytes(), limit, Answer::done).await
    }

    /// All keys, by the hash table: an item may move between the LRU lists while those are read.
    pub(crate) async fn keys(&self, limit: Duration) -> Result<Vec<String>> {
        let read = async |answer: &mut Answer| {
            let mut keys = Vec::new();
            loop {
                let line = answer.line().await?;
                match line.strip_prefix("key=").and_then(|line| percent_decode(line.split(' ').next()?)) {
                    Some(key) => keys.push(key),
                    None if line == "END" => return Ok(keys),
                    None => return Err(unexpected(&line)),
                }
            }
        };
        self.call(b"lru_crawler metadump hash\r\n", limit, read).await
    }

    async fn store(
        &self,
        key: &str,
        value: &[u8],
        if_: &str,
        ttl: Duration,
        limit: Duration,
    ) -> Result<bool> {
        // The server counts whole seconds, from the last full one on.
        let head = format!("ms {key} {} {if_} T{}\r\n", value.len(), ttl.as_secs() + 2);
        self.call(&[head.as_bytes(), value, b"\r\n"].concat(), limit, Answer::done).await
    }

    async fn call<T>(
        &self,
        command: &[u8],
        limit: Duration,
        read: impl AsyncFnOnce(&mut Answer) -> Result<T>,
    ) -> Result<T> {
        let call = async {
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.write_all(command).await?;
            read(&mut Answer(BufReader::new(stream).take(ANSWER_BYTES_MAX))).await
        };
        timeout(limit, call).await.map_err(|_| Error::new(ErrorKind::TimedOut, "no answer in time"))?
    }
}

struct Answer(Take<BufReader<TcpStream>>);

impl Answer {
    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        line.strip_suffix('\n').map(|line| line.trim_end().to_owned()).ok_or_else(|| unexpected(&line))
    }

    async fn bytes(&mut self, length: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.0).take(length).read_to_end(&mut bytes).await?;
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(unexpected("half a value")) }
    }

    async fn done(&mut self) -> Result<bool> {
        match self.line().await?.as_str() {
            "HD" => Ok(true),
            "NS" | "EX" | "NF" => Ok(false),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(answer: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("memcached answers {answer:?}"))
}
