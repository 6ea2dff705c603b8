//! The names in a certificate.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The URI of a node in its certificate: `lockkeeper:cluster/NAME/node/2`, or
/// `lockkeeper:cluster/NAME/node/any`.
const NODE_URI: &str = "lockkeeper:cluster/";
const ANY: &str = "any";

/// A node, as its certificate names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeName {
    /// The cluster's name, which `lockkeeper tls init` has chosen.
    pub cluster: String,
    /// The node's id; `None`: the certificate serves for each node of the cluster.
    pub node: Option<u64>,
}

impl NodeName {
    /// The URI that a node's certificate has among its subject's alternative names.
    #[must_use]
    pub fn uri(&self) -> String {
        let node = self.node.map_or_else(|| ANY.to_owned(), |node| node.to_string());
        format!("{NODE_URI}{}/node/{node}", self.cluster)
    }

    fn parse(uri: &str) -> Option<Self> {
        let (cluster, node) = uri.strip_prefix(NODE_URI)?.split_once("/node/")?;
        let number = || node.parse().ok().filter(|node| *node > 0);
        let node = if node == ANY { None } else { Some(number()?) };
        let is_name = !cluster.is_empty() && !cluster.contains('/');
        is_name.then(|| Self { cluster: cluster.to_owned(), node })
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "node {node} of the cluster `{}`", self.cluster),
            None => write!(f, "any node of the cluster `{}`", self.cluster),
        }
    }
}

/// Whom a certificate is of.
#[derive(Clone, Debug)]
pub struct CertificateNames {
    node: Option<NodeName>,
    /// The first URI, else the first DNS name, else the common name.
    identity: Option<String>,
    /// DNS names and IP addresses.
    hosts: Vec<String>,
    expires: SystemTime,
}

impl CertificateNames {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// It is none.
    pub fn of(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let alternative = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
        let alternative = alternative.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let uris: Vec<&str> = alternative
            .iter()
            .filter_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None })
            .collect();
        let dns = alternative
            .iter()
            .find_map(|name| if let GeneralName::DNSName(name) = name { Some(*name) } else { None });
        let host = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => ip(bytes).map(|ip| ip.to_string()),
            _ => None,
        };
        let common = certificate.subject().iter_common_name().find_map(|name| name.as_str().ok());
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        Ok(Self {
            node: uris.iter().find_map(|uri| NodeName::parse(uri)),
            identity: uris.first().copied().or(dns).or(common).map(str::to_owned),
            hosts: alternative.iter().filter_map(host).collect(),
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        })
    }

    /// Reads the first certificate of a text in PEM.
    ///
    /// # Errors
    /// There is none, or it can't be read.
    pub fn of_pem(pem: &[u8]) -> Result<Self, String> {
        let der = CertificateDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
        Self::of(&der)
    }

    /// The node, if it is the certificate of one.
    #[must_use]
    pub fn node(&self) -> Option<&NodeName> {
        self.node.as_ref()
    }

    /// The first URI among the subject's alternative names, else the first DNS name, else the common name.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// The DNS names and IP addresses among the subject's alternative names.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// When the certificate ends.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.expires
    }
}

impl fmt::Display for CertificateNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.node, &self.identity) {
            (Some(node), _) => write!(f, "{node}"),
            // Quoted: a text from a stranger must not look like another line of the log.
            (None, Some(identity)) => write!(f, "{identity:?}"),
            (None, None) => f.write_str("nobody: it has no name"),
        }
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_named_by_its_uri_and_nothing_else_is_a_node() {
        for node in [Some(2), None] {
            let name = NodeName { cluster: "9f2c".to_owned(), node };
            assert_eq!(NodeName::parse(&name.uri()), Some(name));
        }
        for other in [
            "lockkeeper:cluster//node/2",
            "lockkeeper:cluster/a/node/0",
            "lockkeeper:cluster/a/node/-1",
            "lockkeeper:cluster/a/b/node/1",
            "lockkeeper:cluster/a/node/1/x",
            "lockkeeper:client/a",
            "https://a/node/1",
        ] {
            assert_eq!(NodeName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_are_an_error() {
        assert!(CertificateNames::of(b"").is_err());
        assert!(CertificateNames::of(&[0x30, 0x82, 0xff, 0xff, 1, 2, 3]).is_err());
    }
}
