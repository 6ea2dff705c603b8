//! `postgres://`: locks in a database that is there already.
//!
//! Three kinds, of which the address names one (`?lock=`): advisory locks of a session or of a transaction
//! (`advisory`), and rows with an expiry (`row`). `settings` reads the address, `connect` makes the connections of all
//! three, over sockets that belong to no runtime (`dial`, `roaming`, `carried`, `line`), `keys` makes numbers of names for
//! advisory locks, `schema` is what a database must have for tokens and rows.

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
/// The client library whose transactions [`lock_in_transaction`] takes.
pub use tokio_postgres;

use crate::backend::Backend;
use crate::error::ConnectError;
use crate::url::Url;
use settings::LockKind;

/// Makes a client, if the server answers.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    match LockKind::of(url)? {
        kind @ (LockKind::Session | LockKind::Transaction) => advisory::connect(url, kind).await,
        LockKind::Row => row::connect(url).await,
    }
}
