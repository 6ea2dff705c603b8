//! Settings from a URL: endpoints, login, and where locks are stored.

use std::sync::Arc;

use lockkeeper_backend::grpc::GrpcTls;
use lockkeeper_backend::{ConnectError, Login, TLS_PARAMETERS, Url};

use super::layout::Layout;

/// The default port of etcd's clients.
const PORT: u16 = 2379;
/// The parameters of `etcd://`, without those of TLS.
const PARAMETERS: [&str; 2] = ["layout", "prefix"];

/// The URL scheme with TLS, and the error's hint if TLS files are given with the plain scheme.
const TLS_SCHEME: &str = "etcds";
const WITHOUT_TLS: &str = "of use without TLS: write `etcds://`";

#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// `host:port` of each endpoint; at least one.
    pub(super) endpoints: Arc<[String]>,
    pub(super) login: Option<Login>,
    pub(super) layout: Layout,
    pub(super) tls: Option<GrpcTls>,
}

impl Settings {
    pub(super) fn parse(url: &Url) -> Result<Self, ConnectError> {
        url.only_parameters(&[&PARAMETERS[..], &TLS_PARAMETERS].concat())?;
        if !matches!(url.path.as_str(), "" | "/") {
            return Err(url.bad_part(url.path.clone(), "part of this address: etcd has no databases").into());
        }
        if url.hosts.is_empty() {
            return Err(url.bad_part("", "a list of members, as in `etcd://10.0.0.1:2379,10.0.0.2`").into());
        }
        let prefix = url.parameter::<String>("prefix", "text")?;
        let layout = match url.parameter::<String>("layout", "`plain`")?.as_deref() {
            None => Layout::encoded(prefix.as_deref()),
            Some("plain") => Layout::plain(prefix.as_deref()),
            Some(other) => return Err(url.bad_part(format!("layout={other}"), "`layout=plain`").into()),
        };
        Ok(Self {
            endpoints: url.hosts.iter().map(|host| host.address(PORT)).collect(),
            login: url.login()?,
            layout,
            tls: GrpcTls::of(url, TLS_SCHEME, "etcd-tls", WITHOUT_TLS)?,
        })
    }
}
