//! The parameters `tls-ca`, `tls-cert` and `tls-key` of a URL: files in PEM.

use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::url::Url;

/// The URL parameters of TLS.
pub const TLS_PARAMETERS: [&str; 3] = ["tls-ca", "tls-cert", "tls-key"];

/// The contents of the files.
#[derive(Clone)]
pub struct TlsFiles {
    /// Trusted certificates, in place of the system's.
    pub ca: Option<String>,
    /// This client's certificate and key.
    pub identity: Option<(String, String)>,
    paths: TlsPaths,
}

/// The paths: of the trusted certificates, and of this client's certificate and key.
#[derive(Clone)]
struct TlsPaths {
    ca: Option<String>,
    identity: Option<(String, String)>,
}

impl TlsFiles {
    /// Reads the files, if the URL's scheme is `scheme`; with another one, a parameter is an error, with this
    /// hint.
    pub fn of(url: &Url, scheme: &str, hint: &'static str) -> Result<Option<Self>, ConnectError> {
        let [ca, certificate, key] =
            TLS_PARAMETERS.map(|key| url.parameter::<String>(key, "the path of a file"));
        let (ca, certificate, key) = (ca?, certificate?, key?);
        if url.scheme != scheme {
            return match ca.or(certificate).or(key) {
                Some(file) => Err(url.bad_part(file, hint).into()),
                None => Ok(None),
            };
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(url.bad_part("tls-cert", "complete: give both `tls-cert` and `tls-key`").into()),
        };
        Ok(Some(Self::read(TlsPaths { ca, identity })?))
    }

    /// The files, read again; those that were read last if they can't be read or `check` refuses them.
    pub fn latest<T, E: std::error::Error + 'static>(
        rotated: &crate::rotated::Rotated<Self>,
        check: impl Fn(&Self) -> Result<T, E>,
    ) -> Self {
        rotated.latest("files of TLS", |files| -> Result<Self, Box<dyn std::error::Error>> {
            let new = files.read_again()?;
            check(&new)?;
            Ok(new)
        })
    }

    /// Reads the same files once more.
    pub fn read_again(&self) -> Result<Self, BackendError> {
        Self::read(self.paths.clone())
    }

    /// The configuration of a client that uses them.
    ///
    /// # Errors
    /// The files can't be used.
    #[cfg(feature = "rustls")]
    pub fn client_config(&self) -> Result<rustls::ClientConfig, BackendError> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let unusable = |error: &dyn std::fmt::Display| {
            let what = format!("the files of `tls-ca`, `tls-cert` and `tls-key` can't be used: {error}");
            BackendError::new(BackendErrorKind::Operator, what)
        };
        let certificates = |pem: &str| {
            let all = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
            all.map_err(|error| unusable(&error))
        };
        let trusted = match &self.ca {
            Some(ca) => certificates(ca)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = rustls::RootCertStore::empty();
        if roots.add_parsable_certificates(trusted).0 == 0 {
            return Err(unusable(
                &"there is no certificate to trust: name a file of PEM certificates with `tls-ca=`",
            ));
        }
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| unusable(&error))?;
        let builder = builder.with_root_certificates(roots);
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| unusable(&error))?;
        builder.with_client_auth_cert(certificates(certificate)?, key).map_err(|error| unusable(&error))
    }

    /// This client's certificate; `None` if there is none, or it can't be read.
    #[cfg(feature = "grpc-tls")]
    pub(crate) fn certificate(&self) -> Option<crate::certificate::ClientCertificate> {
        let ((file, _), (pem, _)) = (self.paths.identity.as_ref()?, self.identity.as_ref()?);
        crate::certificate::ClientCertificate::of_pem(file, pem)
    }

    fn read(paths: TlsPaths) -> Result<Self, BackendError> {
        let read = |path: &String| {
            std::fs::read_to_string(path).map_err(|error| {
                let what = format!("`{path}` can't be read: {error}; name a file in PEM");
                BackendError::caused(BackendErrorKind::Operator, what, error)
            })
        };
        let identity = match &paths.identity {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        Ok(Self { ca: paths.ca.as_ref().map(read).transpose()?, identity, paths })
    }
}
