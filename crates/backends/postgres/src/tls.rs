//! TLS to the server. The crypto provider is chosen here; the process-wide default provider is left
//! unchanged.

#[cfg(feature = "tls")]
mod with {
    use std::path::PathBuf;
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
    use rustls::{
        CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    };
    use tokio_postgres_rustls::MakeRustlsConnect;

    use super::super::settings::{Settings, TlsMode};
    use lockkeeper_backend::{BackendError, BackendErrorKind};

    /// The TLS connector for `tokio_postgres`.
    pub(crate) type Tls = MakeRustlsConnect;

    /// # Errors
    /// The file of `tls-ca` can't be read or contains no certificate; the system's store has no trusted
    /// certificate.
    pub(crate) fn tls(settings: &Settings) -> Result<Tls, BackendError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| operator(format!("TLS can't be set up: {error}")))?;
        let builder = match settings.tls {
            TlsMode::VerifyFull => builder.with_root_certificates(roots(settings)?),
            mode => {
                let verified = match mode {
                    TlsMode::VerifyCa => {
                        let roots = Arc::new(roots(settings)?);
                        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
                        Some(
                            verifier
                                .build()
                                .map_err(|error| operator(format!("TLS can't be set up: {error}")))?,
                        )
                    }
                    _ => None,
                };
                let verifier = Arc::new(AnyHost { verified, provider });
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        let config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let unusable = |file: &PathBuf, error: &dyn std::fmt::Display| {
                    operator(format!("`{}` can't be used: {error}; name a file in PEM", file.display()))
                };
                let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
                let chain = chain.map_err(|error| unusable(certificate, &error))?;
                let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
                builder
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| unusable(certificate, &error))?
            }
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn roots(settings: &Settings) -> Result<RootCertStore, BackendError> {
        let mut roots = RootCertStore::empty();
        let (certificates, whose) = match &settings.tls_ca {
            Some(path) => {
                let whose = format!("`tls-ca={}`", path.display());
                let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
                let read: Vec<_> =
                    read.map_err(|error| operator(format!("{whose} can't be read: {error}")))?;
                (read, whose)
            }
            None => (rustls_native_certs::load_native_certs().certs, "the system's store".to_owned()),
        };
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            let what = "has no certificate to trust: name a file of PEM certificates with `tls-ca=`";
            return Err(operator(format!("{whose} {what}")));
        }
        Ok(roots)
    }

    fn operator(what: String) -> BackendError {
        BackendError::new(BackendErrorKind::Operator, what)
    }

    /// Verifies certificates for any host. `prefer` and `require` accept any certificate, as libpq does, and
    /// so protect against passive eavesdroppers only. `verify-ca` accepts certificates of trusted
    /// authorities. All verify the handshake signature.
    #[derive(Debug)]
    struct AnyHost {
        /// `None`: any certificate.
        verified: Option<Arc<WebPkiServerVerifier>>,
        provider: Arc<CryptoProvider>,
    }

    impl ServerCertVerifier for AnyHost {
        fn verify_server_cert(
            &self,
            end_entity: &CertificateDer<'_>,
            intermediates: &[CertificateDer<'_>],
            server_name: &ServerName<'_>,
            ocsp_response: &[u8],
            now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            use CertificateError::{NotValidForName, NotValidForNameContext};
            let Some(verified) = &self.verified else { return Ok(ServerCertVerified::assertion()) };
            match verified.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
                // The name is checked last.
                Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(
                message,
                certificate,
                signed,
                &self.provider.signature_verification_algorithms,
            )
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(
                message,
                certificate,
                signed,
                &self.provider.signature_verification_algorithms,
            )
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    }
}

#[cfg(feature = "tls")]
pub(super) use with::{Tls, tls};

/// Without the feature nothing is encrypted; `settings` refuses addresses that require TLS.
#[cfg(not(feature = "tls"))]
pub(super) type Tls = tokio_postgres::NoTls;

#[cfg(not(feature = "tls"))]
pub(super) fn tls(_settings: &super::settings::Settings) -> Result<Tls, lockkeeper_backend::BackendError> {
    Ok(tokio_postgres::NoTls)
}
