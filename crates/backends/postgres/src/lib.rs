//! PostgreSQL backend (`postgres://`): locks in an existing database.
//!
//! `?lock=` in the address selects one of two kinds: advisory locks of a session (`advisory`), or lease rows
//! with an expiry (`row`). Advisory locks of a caller's own transaction need no client (`in_transaction`).
//! `settings` parses the address. `connect` opens connections. `keys` maps lock names to advisory lock keys.
//! `schema` contains the DDL for fencing tokens and lease rows.

mod advisory;
mod answer;
#[cfg_attr(not(feature = "tls"), allow(clippy::clone_on_copy, reason = "with TLS it is not `Copy`"))]
mod connect;
mod direct;
mod in_transaction;
mod keys;
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

use lockkeeper_backend::{Backend, BackendInfo, ConnectError, Url};
use settings::LockKind;

/// What users see of it.
pub const INFO: BackendInfo = BackendInfo {
    example: "postgres://host/database?lock=row",
    summary: "PostgreSQL: lease rows (`lock=row`) or advisory locks (`lock=session`)",
    schemes: &["postgres", "postgresql"],
    default_port: Some(5432),
    has_password: true,
    excludes: "`lock=session`: who locks the same advisory key (`key=`); `lock=row`: who calls its functions",
    excluded_by: "`lock=session`: who locks the same advisory key (`key=`); `lock=row`: who calls its functions",
    pages: &["postgres-session", "postgres-row"],
    connect: |url| Box::pin(connect(url)),
};

/// Opens a client; fails if the server does not answer.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    match LockKind::of(url)? {
        LockKind::Session => advisory::connect(url).await,
        LockKind::Row => row::connect(url).await,
    }
}
