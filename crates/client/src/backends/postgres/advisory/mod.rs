//! `lock=session` and `lock=transaction`: being built.

use std::sync::Arc;

use super::settings::LockKind;
use crate::backend::Backend;
use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::url::Url;

pub(super) async fn connect(url: &Url, _kind: LockKind) -> Result<Arc<dyn Backend>, ConnectError> {
    Err(BackendError::new(BackendErrorKind::Unsupported, format!("{url}: not built yet")).into())
}
