//! Settings from a URL: endpoints, login, and where locks are stored.

use std::sync::Arc;

use super::layout::Layout;
use crate::error::ConnectError;
use crate::url::{Login, Url};

/// The default port of etcd's clients.
const PORT: u16 = 2379;
/// The parameters of `etcd://`.
const PARAMETERS: &[&str] = &["layout", "prefix", "tls-ca", "tls-cert", "tls-key"];

#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// `host:port` of each endpoint; at least one.
    pub(super) endpoints: Arc<[String]>,
    pub(super) login: Option<Login>,
    pub(super) layout: Layout,
    pub(super) tls: Option<EtcdTls>,
}

/// How servers are verified, and how this client identifies itself.
#[cfg(feature = "etcd-tls")]
#[derive(Clone)]
pub(super) struct EtcdTls(pub(super) tonic::transport::ClientTlsConfig);

/// Never exists: the scheme with TLS is not compiled in.
#[cfg(not(feature = "etcd-tls"))]
#[derive(Clone)]
pub(super) enum EtcdTls {}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EtcdTls")
    }
}

impl Settings {
    pub(super) fn parse(url: &Url) -> Result<Self, ConnectError> {
        url.only_parameters(PARAMETERS)?;
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
            tls: tls(url)?,
        })
    }
}

/// The settings of `etcds://`.
fn tls(url: &Url) -> Result<Option<EtcdTls>, ConnectError> {
    let file = |key| url.parameter::<String>(key, "the path of a file");
    let (ca, certificate, key) = (file("tls-ca")?, file("tls-cert")?, file("tls-key")?);
    if url.scheme != "etcds" {
        return match ca.or(certificate).or(key) {
            Some(file) => Err(url.bad_part(file, "of use without TLS: write `etcds://`").into()),
            None => Ok(None),
        };
    }
    #[cfg(feature = "etcd-tls")]
    {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};

        use crate::error::{BackendError, BackendErrorKind};

        let read = |path: &str| {
            std::fs::read(path).map_err(|error| {
                let what = format!("`{path}` can't be read: {error}; name a file in PEM");
                BackendError::caused(BackendErrorKind::Operator, what, error)
            })
        };
        let mut tls = ClientTlsConfig::new();
        tls = match ca {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(read(&ca)?)),
            None => tls.with_native_roots(),
        };
        tls = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                tls.identity(Identity::from_pem(read(&certificate)?, read(&key)?))
            }
            (None, None) => tls,
            _ => return Err(url.bad_part("tls-cert", "complete: give both `tls-cert` and `tls-key`").into()),
        };
        Ok(Some(EtcdTls(tls)))
    }
    #[cfg(not(feature = "etcd-tls"))]
    Err(crate::url::UrlError::NotCompiledIn { scheme: url.scheme.clone(), feature: "etcd-tls" }.into())
}
