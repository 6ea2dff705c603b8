//! Records of work that is done once.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::backends::RedisConnection;
use lockkeeper::once::{
    DynamoDbRecords, FileRecords, KEY_BYTES_MAX, OUTCOME_BYTES_MAX, OnceRecord, OnceStore, RedisRecords,
};
use lockkeeper::url::Url;
use lockkeeper::{BackendError, BackendErrorKind, ConnectError};

use crate::errors::{CallError, ErrorShown};

/// The limit of a request to Redis.
const REDIS_LIMIT: Duration = Duration::from_secs(5);

/// A store of records.
pub enum RecordStore {
    File(FileRecords),
    Redis(RedisRecords<RedisConnection>),
    DynamoDb(DynamoDbRecords),
}

macro_rules! with {
    ($store:expr, $it:ident => $do:expr) => {
        match $store {
            RecordStore::File($it) => $do.map_err(AnyError::from),
            RecordStore::Redis($it) => $do.map_err(AnyError::from),
            RecordStore::DynamoDb($it) => $do,
        }
    };
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A record can't be read: nothing was done.
fn unread(error: &AnyError) -> CallError {
    let kind =
        if error.is::<std::io::Error>() { BackendErrorKind::Operator } else { BackendErrorKind::Unreachable };
    BackendError::new(kind, format!("the records can't be read, and nothing was done: {error}")).into()
}

/// A record may not have been written, although the work was done.
fn unwritten(error: &AnyError) -> CallError {
    let text = format!("the work was done, and may not be recorded, so it may be done again: {error}");
    CallError::Other(ErrorShown::new("NotRecorded", &text))
}

impl RecordStore {
    /// Connects to a store: `file:///dir`, `redis://…`, `dynamodb://table`. Records are deleted after
    /// `keep_for`, except for files.
    ///
    /// # Errors
    /// The URL is none of these, or the store can't be used.
    pub async fn connect(url: &str, keep_for: Option<Duration>) -> Result<Self, CallError> {
        let parsed: Url = url.parse().map_err(ConnectError::Url)?;
        Ok(match parsed.scheme.as_str() {
            "file" => Self::File(FileRecords::new(PathBuf::from(&parsed.path))),
            "dynamodb" => {
                let records = DynamoDbRecords::connect(url).await?;
                Self::DynamoDb(match keep_for {
                    Some(time) => records.keep_for(time),
                    None => records,
                })
            }
            "redis" | "rediss" => {
                let records = RedisRecords::new(RedisConnection::connect(&parsed, REDIS_LIMIT).await?);
                Self::Redis(match keep_for {
                    Some(time) => records.keep_for(time),
                    None => records,
                })
            }
            scheme => {
                let (option, value) = ("url", scheme.to_owned());
                let allowed = "give file:///dir, redis://host:port or dynamodb://table";
                return Err(CallError::Option { option, value, allowed });
            }
        })
    }

    /// The record of a key; `None` if there is none.
    ///
    /// # Errors
    /// The key is empty or too long, or the store failed.
    pub async fn get(&self, key: &str) -> Result<Option<OnceRecord>, CallError> {
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            let (option, value) = ("key", format!("{} bytes", key.len()));
            return Err(CallError::Option { option, value, allowed: "give 1 to 512 bytes" });
        }
        with!(self, records => records.get(key).await).map_err(|error| unread(&error))
    }

    /// Stores a record unless the key has one; the key's record.
    ///
    /// # Errors
    /// The outcome is too large, or `NotRecorded`: the store failed.
    pub async fn put(&self, key: &str, record: &OnceRecord) -> Result<OnceRecord, CallError> {
        if record.outcome.len() > OUTCOME_BYTES_MAX {
            let (option, value) = ("outcome", format!("{} bytes", record.outcome.len()));
            let allowed = "the work was done, but only outcomes of at most 64 KiB can be recorded";
            return Err(CallError::Option { option, value, allowed });
        }
        with!(self, records => records.put(key, record).await).map_err(|error| unwritten(&error))
    }
}
