//! `postgres://`: being built.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::url::Url;

pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    Err(BackendError::new(BackendErrorKind::Unsupported, format!("{url}: not built yet")).into())
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
