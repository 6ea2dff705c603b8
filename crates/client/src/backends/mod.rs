//! The lock services behind the one API, by their URL scheme.

pub(crate) mod file;
pub mod memory;
#[cfg(feature = "service")]
pub(crate) mod service;

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::ConnectError;
use crate::url::{Url, UrlError, did_you_mean};

/// The schemes that are compiled in.
const SCHEMES: &[&str] = &[
    "file",
    "memory",
    #[cfg(feature = "service")]
    "lockkeeper",
];

pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Backend>, ConnectError> {
    let url = Url::parse(url, SCHEMES)?;
    match url.scheme.as_str() {
        "file" => file::FileBackend::open(&url),
        "memory" => Ok(memory::connect(&url)?),
        #[cfg(feature = "service")]
        "lockkeeper" => service::connect(&url).await,
        _ => Err(UrlError::UnknownScheme {
            hint: did_you_mean(&url.scheme, SCHEMES, ":"),
            scheme: url.scheme,
            known: SCHEMES.join(", "),
        }
        .into()),
    }
}
