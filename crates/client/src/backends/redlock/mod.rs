//! `redlock://`: being built.

mod claim;
mod store;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::url::Url;

pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    Err(BackendError::new(BackendErrorKind::Unsupported, format!("{url}: not built yet")).into())
}
