//! Records of work that is done once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backends::RedisConnection;
use lockkeeper::once::{
    DynamoDbRecords, FileRecords, KEY_BYTES_MAX, OUTCOME_BYTES_MAX, OnceRecord, OnceStore, RedisRecords,
};
use lockkeeper::url::Url;
use lockkeeper::{BackendError, BackendErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::calls::{InLoop, IntoObject, call};
use crate::errors::{self, CallError};
use crate::process::Owned;

/// The limit of a request to Redis.
const REDIS_LIMIT: Duration = Duration::from_secs(5);

enum Store {
    File(FileRecords),
    Redis(RedisRecords<RedisConnection>),
    DynamoDb(DynamoDbRecords),
}

/// A store of records.
#[pyclass(frozen, name = "Records")]
pub(crate) struct NativeRecords(Owned<Arc<Store>>);

impl IntoObject for Store {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, NativeRecords(Owned::new(Arc::new(self))))?.into_any())
    }
}

/// The attempt and the outcome, or nothing.
struct StoredRecord(Option<OnceRecord>);

impl IntoObject for StoredRecord {
    fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let record = self.0.map(|record| (record.attempt, PyBytes::new(py, &record.outcome).unbind()));
        Ok(record.into_pyobject(py)?.into_any().unbind())
    }
}

/// Connects to a store: `file:///dir`, `redis://…`, `dynamodb://table`. Records are deleted after `keep_for`
/// seconds, except for files.
#[pyfunction]
#[pyo3(signature = (url, keep_for=None, place=None))]
pub(crate) fn records(
    py: Python<'_>,
    url: String,
    keep_for: Option<f64>,
    place: Option<InLoop<'_>>,
) -> PyResult<Py<PyAny>> {
    let parsed: Url = url.parse().map_err(|error| errors::url(&error))?;
    let keep = keep_for.map(|time| crate::options::seconds("keep_for", time)).transpose()?;
    match parsed.scheme.as_str() {
        "file" | "redis" | "rediss" | "dynamodb" => {}
        scheme => {
            let known = "give file:///dir, redis://host:port or dynamodb://table";
            return Err(errors::invalid_option("url", scheme, known));
        }
    }
    call(py, place, async move {
        Ok(match parsed.scheme.as_str() {
            "file" => Store::File(FileRecords::new(PathBuf::from(&parsed.path))),
            "dynamodb" => {
                let records = DynamoDbRecords::connect(&url).await?;
                Store::DynamoDb(match keep {
                    Some(time) => records.keep_for(time),
                    None => records,
                })
            }
            _ => {
                let records = RedisRecords::new(RedisConnection::connect(&parsed, REDIS_LIMIT).await?);
                Store::Redis(match keep {
                    Some(time) => records.keep_for(time),
                    None => records,
                })
            }
        })
    })
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CallError {
    BackendError::new(BackendErrorKind::Unreachable, format!("the records: {}", error.into())).into()
}

fn checked(key: &str) -> PyResult<()> {
    match (1..=KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => {
            let allowed = format!("it has {} bytes; 1 to {KEY_BYTES_MAX} are allowed", key.len());
            Err(errors::invalid_option("key", key, &allowed))
        }
    }
}

#[pymethods]
impl NativeRecords {
    #[pyo3(signature = (key, place=None))]
    fn get(&self, py: Python<'_>, key: String, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        checked(&key)?;
        let store = self.0.get()?.clone();
        call(py, place, async move {
            Ok(StoredRecord(match &*store {
                Store::File(records) => records.get(&key).await.map_err(failed)?,
                Store::Redis(records) => records.get(&key).await.map_err(failed)?,
                Store::DynamoDb(records) => records.get(&key).await.map_err(failed)?,
            }))
        })
    }

    /// Stores a record unless the key has one; returns the key's.
    #[pyo3(signature = (key, attempt, outcome, place=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: String,
        attempt: String,
        outcome: Vec<u8>,
        place: Option<InLoop<'_>>,
    ) -> PyResult<Py<PyAny>> {
        if outcome.len() > OUTCOME_BYTES_MAX {
            let allowed = format!(
                "the work was done, but only outcomes of at most {OUTCOME_BYTES_MAX} bytes can be recorded"
            );
            return Err(errors::invalid_option("outcome", &format!("{} bytes", outcome.len()), &allowed));
        }
        let (store, record) = (self.0.get()?.clone(), OnceRecord { attempt, outcome });
        call(py, place, async move {
            Ok(StoredRecord(Some(match &*store {
                Store::File(records) => records.put(&key, &record).await.map_err(failed)?,
                Store::Redis(records) => records.put(&key, &record).await.map_err(failed)?,
                Store::DynamoDb(records) => records.put(&key, &record).await.map_err(failed)?,
            })))
        })
    }
}
