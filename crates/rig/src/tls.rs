//! Certificates for servers with TLS.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::folder::give_away;

/// The files of a certificate authority, and of a certificate that it issued for `localhost` and `127.0.0.1`.
pub(crate) struct Certificates {
    /// The authority that clients must trust.
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The certificate of another authority, which has signed nothing.
    pub(crate) stranger: PathBuf,
}

impl Certificates {
    pub(crate) fn make(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        let files = Self {
            ca: file("ca.pem"),
            certificate: file("server.pem"),
            key: file("server.key"),
            stranger: file("stranger.pem"),
        };
        let key = KeyPair::generate().expect("the system has randomness");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut server = CertificateParams::new(names).expect("both are names");
        server.distinguished_name.push(DnType::CommonName, "lockkeeper-rig server");
        let ca = authority();
        let certificate = server.signed_by(&key, &ca).expect("our authority signs everything");
        write(&files.ca, &ca.pem());
        write(&files.stranger, &authority().pem());
        write(&files.certificate, &certificate.pem());
        write(&files.key, &key.serialize_pem());
        // PostgreSQL requires that no other user can read its key.
        fs::set_permissions(&files.key, Permissions::from_mode(0o600)).expect("our folder is ours");
        give_away(&files.key);
        files
    }
}

/// A certificate authority with a new key. All authorities have the same name.
fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    // The name must differ from the server's: a certificate with the same issuer and subject counts as self-signed.
    params.distinguished_name.push(DnType::CommonName, "lockkeeper-rig authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("the system has randomness");
    CertifiedIssuer::self_signed(params, key).expect("an authority signs itself")
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
}
