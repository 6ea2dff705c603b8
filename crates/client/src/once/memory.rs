//! Records in this process.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{OnceRecord, OnceStore};

/// Records in this process, for tests. They are never removed.
#[derive(Debug, Default)]
pub struct MemoryRecords(Mutex<HashMap<String, OnceRecord>>);

impl MemoryRecords {
    fn records(&self) -> MutexGuard<'_, HashMap<String, OnceRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnceStore for MemoryRecords {
    type Error = Infallible;

    async fn get(&self, key: &str) -> Result<Option<OnceRecord>, Infallible> {
        Ok(self.records().get(key).cloned())
    }

    async fn put(&self, key: &str, record: &OnceRecord) -> Result<OnceRecord, Infallible> {
        Ok(self.records().entry(key.to_owned()).or_insert_with(|| record.clone()).clone())
    }
}
