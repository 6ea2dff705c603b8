//! Records of work that is done once.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper::once::OnceRecord;
use lockkeeper_bindings::RecordStore;
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use serde_json::json;

use crate::bridge::{Bridge, CallAnswer};
use crate::errors::throw;
use crate::options::milliseconds;

/// A store of records.
#[napi(js_name = "Records")]
pub struct NativeRecords(Arc<RecordStore>);

fn shown(record: Option<OnceRecord>) -> CallAnswer {
    record.map_or(CallAnswer::Null, |OnceRecord { attempt, outcome }| {
        CallAnswer::Json(json!({ "attempt": attempt, "outcome": STANDARD.encode(outcome) }))
    })
}

#[napi]
impl Bridge {
    /// Connects to a store of records, which are deleted after `keep_for` milliseconds, except for files.
    #[napi]
    pub fn records(&self, call: u32, url: String, keep_for: Option<f64>) -> napi::Result<()> {
        let keep = keep_for.map(|time| milliseconds("keepFor", time)).transpose().map_err(throw)?;
        self.begin(call, async move {
            let store = RecordStore::connect(&url, keep).await?;
            Ok(CallAnswer::object(NativeRecords(Arc::new(store))))
        });
        Ok(())
    }

    /// The record of a key; `null` if there is none.
    #[napi]
    pub fn get_record(&self, call: u32, records: &NativeRecords, key: String) {
        let store = records.0.clone();
        self.begin(call, async move { Ok(shown(store.get(&key).await?)) });
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
        self.begin(call, async move { Ok(shown(Some(store.put(&key, &record).await?))) });
    }
}
