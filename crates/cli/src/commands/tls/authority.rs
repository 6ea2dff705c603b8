//! The certificate authority of `tls init`, and the certificates that it issues.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockkeeper_server::NodeName;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::exit::{CANNOT_CREATE, CONFIG, Failure, INTERNAL};

/// The files of the authority in its directory.
const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";
const AUTHORITY_DAYS: u64 = 3650;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates are valid from this long before their creation, for hosts whose clocks are behind.
const EARLIER: Duration = Duration::from_secs(60 * 60);

/// Whom a certificate is for.
pub(super) enum Subject {
    Node(NodeName, Vec<String>),
    Client(String),
}

impl Subject {
    /// The name of its files, without the ending.
    fn stem(&self) -> String {
        match self {
            Self::Node(NodeName { node: Some(node), .. }, _) => format!("node-{node}"),
            Self::Node(_, _) => "node".to_owned(),
            Self::Client(name) => name.clone(),
        }
    }

    fn common_name(&self) -> String {
        match self {
            Self::Node(NodeName { node: Some(node), .. }, _) => format!("lockkeeper node {node}"),
            Self::Node(_, _) => "lockkeeper node".to_owned(),
            Self::Client(name) => name.clone(),
        }
    }

    fn alternative_names(&self) -> Result<Vec<SanType>, Failure> {
        let text = |text: &str| text.try_into().map_err(|error| bug(&error));
        match self {
            Self::Node(name, hosts) => {
                let mut names = vec![SanType::URI(text(&name.uri())?)];
                for host in hosts {
                    names.push(match host.parse::<IpAddr>() {
                        Ok(ip) => SanType::IpAddress(ip),
                        Err(_) => SanType::DnsName(text(host)?),
                    });
                }
                Ok(names)
            }
            Self::Client(name) => Ok(vec![SanType::DnsName(text(name)?)]),
        }
    }
}

/// An authority in a directory.
pub(super) struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority.
    ///
    /// `name` must be unique: of two authorities with one name, a verifier reports a bad signature instead of
    /// an unknown issuer.
    pub(super) fn create(dir: &Path, name: &str) -> Result<Self, Failure> {
        let made = fs::create_dir_all(dir);
        made.map_err(|error| {
            Failure::system(CANNOT_CREATE, &format!("cannot create `{}`", dir.display()), &error)
        })?;
        if dir.join(KEY).exists() || dir.join(CERTIFICATE).exists() {
            let why = format!(
                "`{}` has an authority already: `lockkeeper tls issue` makes further certificates by it; or take another \
                 directory",
                dir.display()
            );
            return Err(Failure::new(CANNOT_CREATE, why));
        }
        let key = KeyPair::generate().map_err(|error| bug(&error))?;
        let mut params = params(&format!("lockkeeper authority {name}"), AUTHORITY_DAYS);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(|error| bug(&error))?;
        write(&dir.join(KEY), &key.serialize_pem(), 0o600)?;
        write(&dir.join(CERTIFICATE), &certificate.pem(), 0o644)?;
        Self::open(dir)
    }

    /// The authority of a directory.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).map_err(|error| {
                let what = format!("no authority in `{}`, which `lockkeeper tls init` makes", dir.display());
                Failure::system(CONFIG, &what, &error)
            })
        };
        let unusable = |name: &str, error: rcgen::Error| {
            Failure::new(CONFIG, format!("`{}` can't be used: {error}", dir.join(name).display()))
        };
        let key = KeyPair::from_pem(&read(KEY)?).map_err(|error| unusable(KEY, error))?;
        // While the authority is being replaced, the file has both.
        let certificate = of_key(&read(CERTIFICATE)?, &key).ok_or_else(|| {
            let [certificate, key] = [CERTIFICATE, KEY].map(|name| dir.join(name));
            let [certificate, key] = [certificate.display(), key.display()];
            Failure::new(CONFIG, format!("`{certificate}` has no certificate of the key `{key}`"))
        })?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key);
        Ok(Self { dir: dir.to_owned(), issuer: issuer.map_err(|error| unusable(CERTIFICATE, error))? })
    }

    /// Makes a certificate and returns its file. `key`: an existing key to use instead of a new one.
    pub(super) fn issue(
        &self,
        subject: &Subject,
        days: u64,
        key: Option<KeyPair>,
    ) -> Result<PathBuf, Failure> {
        let (certificate, key_file) = self.files(subject);
        if key.is_none() && (certificate.exists() || key_file.exists()) {
            let why = format!(
                "`{}` is there already; `lockkeeper tls renew` makes it anew, or remove it first",
                certificate.display()
            );
            return Err(Failure::new(CANNOT_CREATE, why));
        }
        let is_new = key.is_none();
        let key = key.map_or_else(KeyPair::generate, Ok).map_err(|error| bug(&error))?;
        let mut params = params(&subject.common_name(), days);
        params.subject_alt_names = subject.alternative_names()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A node is also a client: of other nodes.
        params.extended_key_usages = match subject {
            Subject::Node(..) => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Subject::Client(_) => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let signed = params.signed_by(&key, &self.issuer).map_err(|error| bug(&error))?;
        if is_new {
            write(&key_file, &key.serialize_pem(), 0o600)?;
        }
        write(&certificate, &signed.pem(), 0o644)?;
        Ok(certificate)
    }

    /// The files of a certificate and its key.
    pub(super) fn files(&self, subject: &Subject) -> (PathBuf, PathBuf) {
        let stem = subject.stem();
        (self.dir.join(format!("{stem}.pem")), self.dir.join(format!("{stem}.key")))
    }
}

/// The parameters of a certificate that is valid from now on.
fn params(common_name: &str, days: u64) -> CertificateParams {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = date_time_ymd(1970, 1, 1) + now.saturating_sub(EARLIER);
    params.not_after = date_time_ymd(1970, 1, 1) + now + DAY * u32::try_from(days).unwrap_or(u32::MAX);
    params.use_authority_key_identifier_extension = true;
    params
}

/// The certificate with this key in a PEM text.
fn of_key(pem: &str, key: &KeyPair) -> Option<CertificateDer<'static>> {
    let own = key.subject_public_key_info();
    let is_own = |certificate: &CertificateDer<'_>| {
        X509Certificate::from_der(certificate).is_ok_and(|(_, it)| it.public_key().raw == own)
    };
    CertificateDer::pem_slice_iter(pem.as_bytes()).flatten().find(is_own)
}

/// Writes a file in one step: a node that reads it at this moment finds the old or the new content. It never
/// has more permissions than `mode`.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::system(CANNOT_CREATE, &format!("cannot write `{}`", path.display()), &error)
    };
    let temporary = path.with_extension("tmp");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed)?;
    file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

fn bug(error: &rcgen::Error) -> Failure {
    Failure::new(INTERNAL, format!("a certificate can't be made: {error}"))
}
