//! PostgreSQL backend (`postgres://`): locks in an existing database.
//!
//! `?lock=` in the address selects one of three kinds: session or transaction advisory locks (`advisory`), or lease
//! rows with an expiry (`row`). `settings` parses the address. `connect` opens connections for all three kinds, on
//! sockets that are bound to no Tokio runtime (`dial`, `roaming`, `carried`, `line`). `keys` maps lock names to
//! advisory lock keys. `schema` contains the DDL for fencing tokens and lease rows.

mod advisory;
mod answer;
mod cancel;
mod carried;
mod connect;
mod dial;
mod direct;
mod in_transaction;
mod keys;
mod line;
mod roaming;
mod row;
mod schema;
mod settings;
mod tls;

use std::sync::Arc;

pub use in_transaction::{
    TransactionLock, TransactionLockError, lock_in_transaction, try_lock_in_transaction,
};
pub use keys::{AdvisoryKey, KeyError, NoSuchKey, PgKey};
pub use schema::{init, schema_sql};
/// The client library whose transactions [`lock_in_transaction`] accepts.
pub use tokio_postgres;

use crate::backend::Backend;
use crate::error::ConnectError;
use crate::url::Url;
use settings::LockKind;

/// Opens a client; fails if the server does not answer.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    match LockKind::of(url)? {
        kind @ (LockKind::Session | LockKind::Transaction) => advisory::connect(url, kind).await,
        LockKind::Row => row::connect(url).await,
    }
}
