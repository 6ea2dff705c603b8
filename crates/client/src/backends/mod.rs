//! Backends: the lock services behind the API, selected by URL scheme.

pub(crate) mod file;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod leased;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
#[cfg(feature = "service")]
pub(crate) mod service;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::ConnectError;
use crate::url::{Url, UrlError, did_you_mean};

/// Every scheme with the cargo feature that enables it.
const SCHEMES: &[(&str, Option<&str>)] = &[
    ("file", None),
    ("memory", None),
    ("lockkeeper", Some("service")),
    ("postgres", Some("postgres")),
    ("postgresql", Some("postgres")),
    ("redis", Some("redis")),
    ("rediss", Some("redis-tls")),
    ("redlock", Some("redlock")),
    ("redlocks", Some("redlock")),
];

type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, ConnectError>> + Send + 'a>>;

#[cfg_attr(
    not(any(feature = "postgres", feature = "redis", feature = "service")),
    allow(unreachable_code, unused_variables, reason = "what is always compiled in needs no connection")
)]
pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Backend>, ConnectError> {
    let known: Vec<&str> = SCHEMES.iter().map(|(scheme, _)| *scheme).collect();
    let url = Url::parse(url, &known)?;
    // Boxed, so that the caller's future does not have the size of all connect futures together.
    let connecting: Connecting<'_> = match url.scheme.as_str() {
        "file" => return file::FileBackend::open(&url),
        "memory" => return memory::connect(&url),
        #[cfg(feature = "service")]
        "lockkeeper" => Box::pin(service::connect(&url)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Box::pin(postgres::connect(&url)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Box::pin(redis::connect(&url)),
        #[cfg(feature = "redlock")]
        "redlock" | "redlocks" => Box::pin(redlock::connect(&url)),
        scheme => {
            return Err(match SCHEMES.iter().find(|(known, _)| *known == scheme) {
                Some(&(_, Some(feature))) => UrlError::NotCompiledIn { scheme: url.scheme, feature },
                _ => UrlError::UnknownScheme {
                    hint: did_you_mean(scheme, &known, ":"),
                    known: known.join(", "),
                    scheme: url.scheme,
                },
            }
            .into());
        }
    };
    connecting.await
}
