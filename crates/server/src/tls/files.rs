//! The files: certificate chain, key and authorities, in PEM.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The largest file that is read, in bytes: far more than any chain has.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The paths of a node's TLS files, each in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The certificate of this node, and those between it and an authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose certificates are accepted, of clients and of other nodes.
    pub ca: PathBuf,
}

impl fmt::Display for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [certificate, key, ca] = [&self.certificate, &self.key, &self.ca].map(|path| path.display());
        write!(f, "`{certificate}`, `{key}`, `{ca}`")
    }
}

/// Why files can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file can't be read.
    #[error("`{}` can't be read: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has no usable content.
    #[error("`{}` can't be used: {why}", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// Its fault.
        why: String,
    },
    /// The certificate names another node, or a node of another cluster, than this one.
    #[error("`{}` is the certificate of {found}, and this is {wanted}", file.display())]
    OtherNames {
        /// The file.
        file: PathBuf,
        /// The node in the certificate.
        found: String,
        /// This node.
        wanted: String,
    },
}

/// The contents of the files.
#[derive(PartialEq, Eq)]
pub(super) struct Material {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

/// Without the key.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

/// A certificate chain, its key, and the authorities.
type Parsed = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, RootCertStore);

impl Material {
    pub(super) fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self { certificate: read(&files.certificate)?, key: read(&files.key)?, ca: read(&files.ca)? })
    }

    pub(super) fn parse(&self, files: &TlsFiles) -> Result<Parsed, TlsError> {
        let chain = certificates(&self.certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| unusable(&files.key, format!("it has no private key in PEM: {error}")))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.ca, &files.ca)? {
            roots.add(authority).map_err(|error| unusable(&files.ca, error.to_string()))?;
        }
        Ok((chain, key, roots))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read;
    let failed = |source| TlsError::Read { file: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unusable(path, format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn certificates(bytes: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.map_err(|error| unusable(path, format!("it is no PEM: {error}")))?;
    if found.is_empty() {
        return Err(unusable(path, "it has no certificate in PEM".to_owned()));
    }
    Ok(found)
}

fn unusable(path: &Path, why: String) -> TlsError {
    TlsError::Unusable { file: path.to_owned(), why }
}
