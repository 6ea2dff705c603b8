//! Certificates for servers with TLS, and for their clients.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};

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
        let ca = Authority::new();
        let [certificate, key] = ca.issue(&["localhost", "127.0.0.1"], &[]).write(folder, "server");
        // PostgreSQL requires that no other user can read its key.
        fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("our folder is ours");
        give_away(&key);
        Self {
            ca: ca.write(folder, "ca"),
            certificate,
            key,
            stranger: Authority::new().write(folder, "stranger"),
        }
    }
}

/// A certificate authority with a new key. All authorities have the same name.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, in PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        // The name must differ from the servers': a certificate with the same issuer and subject counts as
        // self-signed.
        params.distinguished_name.push(DnType::CommonName, "lockkeeper-rig authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("the system has randomness");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority signs itself"))
    }

    /// Its certificate, in PEM.
    #[must_use]
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// Writes its certificate as `NAME.pem`; returns the path.
    ///
    /// # Panics
    /// If it can't be written.
    #[must_use]
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        write(folder.join(format!("{name}.pem")), &self.certificate())
    }

    /// Issues a certificate for servers and clients, with these hosts (names or IP addresses) and URIs as its
    /// subject's alternative names.
    ///
    /// # Panics
    /// If one of them is not valid.
    #[must_use]
    pub fn issue(&self, hosts: &[&str], uris: &[&str]) -> Issued {
        self.issue_between(hosts, uris, [1975, 4096])
    }

    /// As [`Authority::issue`], with a certificate that is valid between the beginnings of these years.
    ///
    /// # Panics
    /// If an argument is not valid.
    #[must_use]
    pub fn issue_between(&self, hosts: &[&str], uris: &[&str], years: [i32; 2]) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names of hosts");
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("an ASCII string")));
        params.subject_alt_names.extend(uris);
        params.distinguished_name.push(DnType::CommonName, "lockkeeper-rig");
        [params.not_before, params.not_after] = years.map(|year| rcgen::date_time_ymd(year, 1, 1));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("the system has randomness");
        let certificate = params.signed_by(&key, &self.0).expect("our authority signs everything");
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Issued {
    /// Writes `NAME.pem` and `NAME.key`; returns their paths.
    ///
    /// # Panics
    /// If they can't be written.
    #[must_use]
    pub fn write(&self, folder: &Path, name: &str) -> [PathBuf; 2] {
        [("pem", &self.certificate), ("key", &self.key)]
            .map(|(ending, text)| write(folder.join(format!("{name}.{ending}")), text))
    }
}

/// Returns the path.
fn write(file: PathBuf, text: &str) -> PathBuf {
    fs::write(&file, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
    file
}
