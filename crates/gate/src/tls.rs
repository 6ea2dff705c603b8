//! TLS on the gate's port: a certificate and its key, which can be exchanged while the gate runs.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::Notify;

use crate::GateError;

/// Limit on the size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The interval at which the files are compared with those in use.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The gate's certificate and key. TLS 1.2 and 1.3; clients need no certificate.
pub struct GateTls {
    certificate: PathBuf,
    key: PathBuf,
    current: Mutex<LoadedFiles>,
}

struct LoadedFiles {
    /// The contents of both files.
    content: [Vec<u8>; 2],
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for GateTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GateTls")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl GateTls {
    /// Reads a certificate, with its intermediate certificates, and its key; both in PEM.
    ///
    /// # Errors
    /// [`GateError::Tls`]: a file can't be read, or the files are not a certificate and its key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Arc<Self>, GateError> {
        let loaded = LoadedFiles::new(contents(certificate, key)?, certificate, key)?;
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Arc::new(Self { certificate, key, current: Mutex::new(loaded) }))
    }

    /// Reads the files again and uses them for new connections. Returns whether their contents have changed.
    /// Blocks the thread.
    ///
    /// # Errors
    /// [`GateError::Tls`]: the files can't be used; those before stay in use.
    pub fn reload(&self) -> Result<bool, GateError> {
        let content = contents(&self.certificate, &self.key)?;
        if content == self.current().content {
            return Ok(false);
        }
        let loaded = LoadedFiles::new(content, &self.certificate, &self.key)?;
        *self.current() = loaded;
        Ok(true)
    }

    /// Reloads the files when they have changed, and after a notification of `asked`. Runs until the future
    /// is dropped.
    pub async fn keep_current(self: Arc<Self>, asked: Arc<Notify>) {
        let mut failed = None;
        loop {
            let is_asked = tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => false,
                () = asked.notified() => true,
            };
            let read = self.clone();
            // Runs on a thread of its own, since a file system may hang.
            let Ok(reloaded) = tokio::task::spawn_blocking(move || read.reload()).await else { continue };
            match reloaded {
                Ok(true) => tracing::info!("new connections use the new certificate"),
                Ok(false) if is_asked => tracing::info!("the certificate has not changed"),
                Ok(false) => {}
                Err(error) => {
                    let text = error.to_string();
                    // The files may be in the middle of a replacement, so the same error is logged only once,
                    // and after each notification.
                    if is_asked || failed.as_ref() != Some(&text) {
                        tracing::error!("the certificate in use stays: {text}");
                    }
                    failed = Some(text);
                    continue;
                }
            }
            failed = None;
        }
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.current().config.clone()
    }

    fn current(&self) -> MutexGuard<'_, LoadedFiles> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn contents(certificate: &Path, key: &Path) -> Result<[Vec<u8>; 2], GateError> {
    let read = |file: &Path| {
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(file);
        let read = opened.and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        read.map(|_| bytes)
            .map_err(|error| GateError::Tls(format!("`{}` can't be read: {error}", file.display())))
    };
    Ok([read(certificate)?, read(key)?])
}

impl LoadedFiles {
    fn new(content: [Vec<u8>; 2], certificate: &Path, key: &Path) -> Result<Self, GateError> {
        let unusable =
            |file: &Path, why: String| GateError::Tls(format!("`{}` can't be used: {why}", file.display()));
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content[0]).collect();
        let chain = chain.map_err(|error| unusable(certificate, format!("it is no PEM: {error}")))?;
        let private = PrivateKeyDer::from_pem_slice(&content[1])
            .map_err(|error| unusable(key, format!("it has no private key in PEM: {error}")))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| GateError::Tls(error.to_string()))?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(|error| unusable(certificate, format!("with its key: {error}")))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { content, config: Arc::new(config) })
    }
}
