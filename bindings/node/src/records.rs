//! Records of work that is done once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper::backends::RedisConnection;
use lockkeeper::once::{
    DynamoDbRecords, FileRecords, KEY_BYTES_MAX, OUTCOME_BYTES_MAX, OnceRecord, OnceStore, RedisRecords,
};
use lockkeeper::url::Url;
use lockkeeper::{BackendError, BackendErrorKind, ConnectError};
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use serde_json::json;

use crate::bridge::{Bridge, CallAnswer};
use crate::errors::{NativeError, throw};
use crate::options::milliseconds;

/// The limit of a request to Redis.
const REDIS_LIMIT: Duration = Duration::from_secs(5);

enum RecordStore {
    File(FileRecords),
    Redis(RedisRecords<RedisConnection>),
    DynamoDb(DynamoDbRecords),
}

macro_rules! with {
    ($store:expr, $it:ident => $do:expr) => {
        match $store {
            RecordStore::File($it) => $do.map_err(failed),
            RecordStore::Redis($it) => $do.map_err(failed),
            RecordStore::DynamoDb($it) => $do.map_err(failed),
        }
    };
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> NativeError {
    BackendError::new(BackendErrorKind::Unreachable, format!("the records: {}", error.into())).into()
}

/// A store of records.
#[napi(js_name = "Records")]
pub struct NativeRecords(Arc<RecordStore>);

async fn connect(url: String, keep: Option<Duration>) -> Result<RecordStore, NativeError> {
    let parsed: Url = url.parse().map_err(ConnectError::Url)?;
    Ok(match parsed.scheme.as_str() {
        "file" => RecordStore::File(FileRecords::new(PathBuf::from(&parsed.path))),
        "dynamodb" => {
            let records = DynamoDbRecords::connect(&url).await?;
            RecordStore::DynamoDb(match keep {
                Some(time) => records.keep_for(time),
                None => records,
            })
        }
        "redis" | "rediss" => {
            let records = RedisRecords::new(RedisConnection::connect(&parsed, REDIS_LIMIT).await?);
            RecordStore::Redis(match keep {
                Some(time) => records.keep_for(time),
                None => records,
            })
        }
        scheme => {
            let (option, value) = ("url", scheme.to_owned());
            let allowed = "give file:///dir, redis://host:port or dynamodb://table";
            return Err(NativeError::Option { option, value, allowed });
        }
    })
}

fn shown(record: Option<OnceRecord>) -> CallAnswer {
    record.map_or(CallAnswer::Null, |OnceRecord { attempt, outcome }| {
        CallAnswer::Json(json!({ "attempt": attempt, "outcome": STANDARD.encode(outcome) }))
    })
}

/// # Errors
/// The key is too long, or empty.
fn checked(key: &str) -> Result<(), NativeError> {
    match (1..=KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => {
            let (option, value) = ("key", format!("{} bytes", key.len()));
            Err(NativeError::Option { option, value, allowed: "give 1 to 512 bytes" })
        }
    }
}

#[napi]
impl Bridge {
    /// Connects to a store of records, which are deleted after `keep_for` milliseconds, except for files.
    #[napi]
    pub fn records(&self, call: u32, url: String, keep_for: Option<f64>) -> napi::Result<()> {
        let keep = keep_for.map(|time| milliseconds("keepFor", time)).transpose().map_err(throw)?;
        self.begin(call, async move {
            let store = connect(url, keep).await?;
            Ok(CallAnswer::object(NativeRecords(Arc::new(store))))
        });
        Ok(())
    }

    /// The record of a key; `null` if there is none.
    #[napi]
    pub fn get_record(&self, call: u32, records: &NativeRecords, key: String) {
        let store = records.0.clone();
        self.begin(call, async move {
            checked(&key)?;
            Ok(shown(with!(&*store, records => records.get(&key).await)?))
        });
    }

    /// Stores a record unless the key has one; the key's record.
    #[napi]
    pub fn put_record(
        &self,
        call: u32,
        records: &NativeRecords,
        key: String,
        attempt: String,
        outcome: Uint8Array,
    ) {
        let (store, record) = (records.0.clone(), OnceRecord { attempt, outcome: outcome.to_vec() });
        self.begin(call, async move {
            if record.outcome.len() > OUTCOME_BYTES_MAX {
                let (option, value) = ("outcome", format!("{} bytes", record.outcome.len()));
                let allowed = "the work was done, but only outcomes of at most 64 KiB can be recorded";
                return Err(NativeError::Option { option, value, allowed });
            }
            Ok(shown(Some(with!(&*store, records => records.put(&key, &record).await)?)))
        });
    }
}
