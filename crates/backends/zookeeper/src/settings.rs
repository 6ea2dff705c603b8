//! Settings from a URL: servers, login, and where locks are stored.

#[cfg(feature = "tls")]
use std::fmt;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{ConnectError, Login, TLS_PARAMETERS, TlsFiles, Url};
#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;

use super::layout::{NodeLayout, Recipe};
#[cfg(feature = "tls")]
use lockkeeper_backend::Rotated;
#[cfg(not(feature = "tls"))]
use lockkeeper_backend::UrlError;
#[cfg(feature = "tls")]
use lockkeeper_backend::{BackendError, BackendErrorKind};

/// The default port of ZooKeeper's clients.
const PORT: u16 = 2181;
/// The parameters of `zookeeper://`, without those of TLS.
const PARAMETERS: [&str; 3] = ["layout", "recipe", "tick_ms"];

/// The URL scheme with TLS, and the error's hint if TLS files are given with the plain scheme.
const TLS_SCHEME: &str = "zookeepers";
const WITHOUT_TLS: &str = "of use without TLS: write `zookeepers://`";

#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// `host:port` of each server; at least one.
    pub(super) servers: Vec<String>,
    pub(super) login: Option<Login>,
    pub(super) layout: NodeLayout,
    /// The servers' `tickTime`, if given.
    pub(super) tick: Option<Duration>,
    pub(super) tls: Option<ZooKeeperTls>,
}

/// TLS settings: the trusted certificates, and the client's own.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(super) struct ZooKeeperTls(Arc<Rotated<(TlsFiles, TlsOptions)>>);

#[cfg(feature = "tls")]
impl ZooKeeperTls {
    /// The options for a new session: the files are read again.
    pub(super) fn latest(&self) -> TlsOptions {
        let read = |(files, _): &(TlsFiles, TlsOptions)| -> Result<_, BackendError> {
            let files = files.read_again()?;
            let options = options(&files)?;
            Ok((files, options))
        };
        self.0.latest("files of TLS", read).1
    }
}

#[cfg(feature = "tls")]
impl fmt::Debug for ZooKeeperTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ZooKeeperTls")
    }
}

/// Never exists: the scheme with TLS is not compiled in.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug)]
pub(super) enum ZooKeeperTls {}

impl Settings {
    pub(super) fn parse(url: &Url) -> Result<Self, ConnectError> {
        url.only_parameters(&[&PARAMETERS[..], &TLS_PARAMETERS].concat())?;
        if url.hosts.is_empty() {
            return Err(url
                .bad_part("", "a list of servers, as in `zookeeper://10.0.0.1:2181,10.0.0.2`")
                .into());
        }
        let root = url.path.trim_end_matches('/');
        if root.split('/').skip(1).any(|node| matches!(node, "" | "." | "..")) {
            return Err(url.bad_part(url.path.clone(), "a path of ZooKeeper, as `/locks/shop`").into());
        }
        const RECIPES: &str = "`recipe=mutex`, `recipe=readwrite` or `recipe=kazoo`";
        let recipe = match url.parameter::<String>("recipe", RECIPES)?.as_deref() {
            None | Some("mutex") => Recipe::Mutex,
            Some("readwrite") => Recipe::ReadWrite,
            Some("kazoo") => Recipe::Kazoo,
            Some(other) => return Err(url.bad_part(format!("recipe={other}"), RECIPES).into()),
        };
        let layout = match url.parameter::<String>("layout", "`plain`")?.as_deref() {
            None => NodeLayout::encoded(root, recipe),
            Some("plain") => NodeLayout::plain(root, recipe),
            Some(other) => return Err(url.bad_part(format!("layout={other}"), "`layout=plain`").into()),
        };
        let tick = url.parameter::<u64>("tick_ms", "a number of milliseconds")?.map(Duration::from_millis);
        if tick.is_some_and(|tick| tick.is_zero() || tick > Duration::from_secs(60)) {
            return Err(url.bad_part("tick_ms", "between 1 and 60000 milliseconds").into());
        }
        let servers = url.hosts.iter().map(|host| host.address(PORT)).collect();
        Ok(Self { servers, login: url.login()?, layout, tick, tls: tls(url)? })
    }
}

/// The settings of `zookeepers://`.
#[cfg(feature = "tls")]
fn tls(url: &Url) -> Result<Option<ZooKeeperTls>, ConnectError> {
    let Some(files) = TlsFiles::of(url, TLS_SCHEME, WITHOUT_TLS)? else { return Ok(None) };
    // The client library uses the process's default crypto provider. A provider that the program has
    // installed is kept.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = options(&files)?;
    Ok(Some(ZooKeeperTls(Arc::new(Rotated::new((files, options))))))
}

#[cfg(feature = "tls")]
fn options(files: &TlsFiles) -> Result<TlsOptions, BackendError> {
    let unusable = |error: zookeeper_client::Error| {
        let what = format!(
            "the certificates can't be used: {error}; `tls-ca`, `tls-cert` and `tls-key` are files in PEM"
        );
        BackendError::caused(BackendErrorKind::Operator, what, error)
    };
    let ca = files.ca.clone().unwrap_or_else(system_certificates);
    let tls = TlsOptions::new().with_pem_ca(&ca).map_err(unusable)?;
    Ok(match &files.identity {
        Some((certificate, key)) => tls.with_pem_identity(certificate, key).map_err(unusable)?,
        None => tls,
    })
}

#[cfg(not(feature = "tls"))]
fn tls(url: &Url) -> Result<Option<ZooKeeperTls>, ConnectError> {
    match TlsFiles::of(url, TLS_SCHEME, WITHOUT_TLS)? {
        None => Ok(None),
        Some(_) => {
            Err(UrlError::NotCompiledIn { scheme: url.scheme.clone(), feature: "zookeeper-tls" }.into())
        }
    }
}

/// The certificates that the system trusts, in PEM.
#[cfg(feature = "tls")]
fn system_certificates() -> String {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    let pem = |certificate: &rustls::pki_types::CertificateDer<'_>| {
        format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            BASE64_STANDARD.encode(certificate)
        )
    };
    rustls_native_certs::load_native_certs().certs.iter().map(pem).collect()
}
