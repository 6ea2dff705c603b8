//! `postgres://`: locks in a database that is there already.
//!
//! Three kinds, of which the address names one (`?lock=`): advisory locks of a session or of a transaction
//! ([`advisory`]), and rows with an expiry ([`row`]). [`settings`] reads the address, [`connect`](self::connect) makes
//! the connections of all three, [`keys`] makes numbers of names for advisory locks.

mod advisory;
mod connect;
mod keys;
mod row;
mod settings;
mod tls;

use std::sync::Arc;

pub use keys::{AdvisoryKey, KeyError, NoSuchKey, PgKey};

use crate::backend::Backend;
use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::url::Url;
use settings::LockKind;

/// Makes a client, if the server answers.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    match LockKind::of(url)? {
        kind @ (LockKind::Session | LockKind::Transaction) => advisory::connect(url, kind).await,
        LockKind::Row => row::connect(url).await,
    }
}

/// The SQL of [`init`].
#[must_use]
pub fn schema_sql(_role: Option<&str>) -> String {
    String::new()
}

/// Makes the schema.
///
/// # Errors
/// [`ConnectError`].
pub async fn init(url: &str, _role: Option<&str>) -> Result<(), ConnectError> {
    Err(BackendError::new(BackendErrorKind::Unsupported, format!("{url}: not built yet")).into())
}
