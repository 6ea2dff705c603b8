//! TLS of the services that speak gRPC: `lockkeepers://` and `etcds://`.

use std::fmt;

use tonic::transport::Endpoint;

use crate::error::ConnectError;
#[cfg(feature = "grpc-tls")]
use crate::error::{BackendError, BackendErrorKind};
#[cfg(feature = "grpc-tls")]
use crate::rotated::Rotated;
#[cfg(feature = "grpc-tls")]
use crate::tls_files::TlsFiles;
use crate::url::Url;

/// The TLS settings of a client.
#[derive(Clone)]
pub struct GrpcTls(Settings);

/// Never exists: TLS is not compiled in.
#[cfg(not(feature = "grpc-tls"))]
#[derive(Clone)]
enum Settings {}

#[cfg(feature = "grpc-tls")]
type Settings = std::sync::Arc<Rotated<TlsFiles>>;

impl fmt::Debug for GrpcTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrpcTls")
    }
}

#[cfg(feature = "grpc-tls")]
impl GrpcTls {
    /// The settings if the URL's scheme is `scheme`; with another one, a parameter of TLS is an error, with
    /// this hint.
    pub fn of(
        url: &Url,
        scheme: &str,
        _feature: &'static str,
        hint: &'static str,
    ) -> Result<Option<Self>, ConnectError> {
        let files = TlsFiles::of(url, scheme, hint)?;
        if let Some(files) = &files {
            // Otherwise files that can't be used would look like a service that does not answer.
            Endpoint::from_static("https://localhost").tls_config(configuration(files)).map_err(|error| {
                let cause =
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), |it| it.to_string());
                let what = format!("the files of `tls-ca`, `tls-cert` and `tls-key` can't be used: {cause}");
                BackendError::caused(BackendErrorKind::Operator, what, error)
            })?;
        }
        Ok(files.map(|files| Self(std::sync::Arc::new(Rotated::new(files)))))
    }

    /// Why no server accepts this client's certificate at present, as its file, read again, shows; `None` if
    /// it is valid, or there is none.
    #[must_use]
    pub fn certificate_fault(&self) -> Option<String> {
        let current = self.0.latest("files of TLS", |files| Ok::<_, std::convert::Infallible>(files.clone()));
        let newest = current.read_again().unwrap_or(current);
        newest.certificate()?.fault(std::time::SystemTime::now())
    }

    /// Sets TLS for a new connection. The files are read again.
    fn apply(&self, endpoint: Endpoint) -> Result<Endpoint, tonic::transport::Error> {
        let files = TlsFiles::latest(&self.0, |files| endpoint.clone().tls_config(configuration(files)));
        endpoint.tls_config(configuration(&files))
    }
}

#[cfg(feature = "grpc-tls")]
fn configuration(files: &TlsFiles) -> tonic::transport::ClientTlsConfig {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};
    let tls = match &files.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    match &files.identity {
        Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
        None => tls,
    }
}

#[cfg(not(feature = "grpc-tls"))]
impl GrpcTls {
    /// As with TLS compiled in; its scheme is an error that names the feature.
    pub fn of(
        url: &Url,
        scheme: &str,
        feature: &'static str,
        hint: &'static str,
    ) -> Result<Option<Self>, ConnectError> {
        match crate::tls_files::TlsFiles::of(url, scheme, hint)? {
            None => Ok(None),
            Some(_) => {
                Err(crate::url::UrlError::NotCompiledIn { scheme: url.scheme.clone(), feature }.into())
            }
        }
    }

    /// As with TLS compiled in.
    #[must_use]
    pub fn certificate_fault(&self) -> Option<String> {
        match self.0 {}
    }
}

/// The endpoint of a server, `host:port`.
#[cfg(feature = "grpc-tls")]
pub fn endpoint(address: &str, tls: Option<&GrpcTls>) -> Result<Endpoint, tonic::transport::Error> {
    match tls {
        Some(tls) => tls.apply(Endpoint::from_shared(format!("https://{address}"))?),
        None => Endpoint::from_shared(format!("http://{address}")),
    }
}

/// The endpoint of a server, `host:port`.
#[cfg(not(feature = "grpc-tls"))]
pub fn endpoint(address: &str, _: Option<&GrpcTls>) -> Result<Endpoint, tonic::transport::Error> {
    Endpoint::from_shared(format!("http://{address}"))
}
