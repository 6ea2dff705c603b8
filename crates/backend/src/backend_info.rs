//! The description of a lock service for users, and how to connect to it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::ConnectError;
use crate::url::Url;

/// One kind of lock service, as selected by the scheme of a URL. Each package has one, as `INFO`.
#[derive(Clone, Copy)]
pub struct BackendInfo {
    /// An example of its URLs, for help texts.
    pub example: &'static str,
    /// A summary, for help texts.
    pub summary: &'static str,
    /// The parts of its URLs before the colon.
    pub schemes: &'static [&'static str],
    /// The port of a host without one; `None` if its URLs have no hosts.
    pub default_port: Option<u16>,
    /// Whether its users log in with a password, which may be in a file or an environment variable
    /// ([`Url::find_password`]).
    pub has_password: bool,
    /// Other programs that wait for our holds, for help texts.
    pub excludes: &'static str,
    /// Other programs for whose holds ours wait, for help texts.
    pub excluded_by: &'static str,
    /// Its pages in `docs/backends`, without `.md`.
    pub pages: &'static [&'static str],
    /// Creates a client, after checking that the service answers.
    pub connect: Connect,
}

/// See [`BackendInfo::connect`].
pub type Connect = for<'a> fn(&'a Url) -> Connecting<'a>;

/// Boxed, so that the caller's future does not have the size of all connect futures together.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, ConnectError>> + Send + 'a>>;

impl fmt::Debug for BackendInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendInfo").field("schemes", &self.schemes).finish_non_exhaustive()
    }
}
