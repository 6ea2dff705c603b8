//! Records of work that is done once.

use std::sync::Arc;

use lockkeeper::once::OnceRecord;
use lockkeeper_bindings::RecordStore;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::calls::{InLoop, IntoObject, call};
use crate::options::seconds;
use crate::process::Owned;

/// A store of records.
#[pyclass(frozen, name = "Records")]
pub(crate) struct NativeRecords(Owned<Arc<RecordStore>>);

impl IntoObject for RecordStore {
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
    let keep = keep_for.map(|time| seconds("keep_for", time)).transpose()?;
    call(py, place, async move { RecordStore::connect(&url, keep).await })
}

#[pymethods]
impl NativeRecords {
    #[pyo3(signature = (key, place=None))]
    fn get(&self, py: Python<'_>, key: String, place: Option<InLoop<'_>>) -> PyResult<Py<PyAny>> {
        let store = self.0.get()?.clone();
        call(py, place, async move { Ok(StoredRecord(store.get(&key).await?)) })
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
        let (store, record) = (self.0.get()?.clone(), OnceRecord { attempt, outcome });
        call(py, place, async move { Ok(StoredRecord(Some(store.put(&key, &record).await?))) })
    }
}
