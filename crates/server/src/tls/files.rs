//! The files: certificate chain, key and authorities, in PEM.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::names::CertificateNames;
use crate::error::FileError;
use crate::files::{read, unusable};

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
pub(super) struct Parsed {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) roots: RootCertStore,
    /// The earliest end of an authority.
    pub(super) authority_expires: SystemTime,
}

impl Material {
    pub(super) fn read(files: &TlsFiles) -> Result<Self, FileError> {
        Ok(Self { certificate: read(&files.certificate)?, key: read(&files.key)?, ca: read(&files.ca)? })
    }

    pub(super) fn parse(&self, files: &TlsFiles) -> Result<Parsed, FileError> {
        let chain = certificates(&self.certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| unusable(&files.key, format!("it has no private key in PEM: {error}")))?;
        let mut roots = RootCertStore::empty();
        let authorities = certificates(&self.ca, &files.ca)?;
        let ends: Result<Vec<_>, _> =
            authorities.iter().map(|it| CertificateNames::of(it).map(|names| names.expires())).collect();
        let ends = ends.map_err(|why| unusable(&files.ca, why))?;
        for authority in authorities {
            roots.add(authority).map_err(|error| unusable(&files.ca, error.to_string()))?;
        }
        let authority_expires = ends.into_iter().min().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Parsed { chain, key, roots, authority_expires })
    }
}

fn certificates(bytes: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.map_err(|error| unusable(path, format!("it is no PEM: {error}")))?;
    if found.is_empty() {
        return Err(unusable(path, "it has no certificate in PEM".to_owned()));
    }
    Ok(found)
}
