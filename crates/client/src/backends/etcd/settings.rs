//! Settings from a URL: endpoints, login, and where locks are stored.

use std::sync::Arc;

use super::layout::Layout;
use crate::backends::tls_files::{TLS_PARAMETERS, TlsFiles};
use crate::error::ConnectError;
#[cfg(not(feature = "etcd-tls"))]
use crate::url::UrlError;
use crate::url::{Login, Url};

/// The default port of etcd's clients.
const PORT: u16 = 2379;
/// The parameters of `etcd://`, without those of TLS.
const PARAMETERS: [&str; 2] = ["layout", "prefix"];

/// The scheme with TLS, and the hint for who gives files of TLS with the other one.
const TLS_SCHEME: &str = "etcds";
const WITHOUT_TLS: &str = "of use without TLS: write `etcds://`";

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
            tls: tls(url)?,
        })
    }
}

/// The settings of `etcds://`.
#[cfg(feature = "etcd-tls")]
fn tls(url: &Url) -> Result<Option<EtcdTls>, ConnectError> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};

    let Some(files) = TlsFiles::of(url, TLS_SCHEME, WITHOUT_TLS)? else { return Ok(None) };
    let mut tls = ClientTlsConfig::new();
    tls = match files.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
        None => tls.with_native_roots(),
    };
    if let Some((certificate, key)) = files.identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Ok(Some(EtcdTls(tls)))
}

#[cfg(not(feature = "etcd-tls"))]
fn tls(url: &Url) -> Result<Option<EtcdTls>, ConnectError> {
    match TlsFiles::of(url, TLS_SCHEME, WITHOUT_TLS)? {
        None => Ok(None),
        Some(_) => Err(UrlError::NotCompiledIn { scheme: url.scheme.clone(), feature: "etcd-tls" }.into()),
    }
}
