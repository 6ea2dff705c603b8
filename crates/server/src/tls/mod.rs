//! TLS on both ports: the files, the configurations made from them, and their reload.
//!
//! Responsible for: one certificate identifies a node to clients and to other nodes; other nodes are accepted
//! by the names in their certificates ([`NodeName`]), not by host names; new files are taken only if all of
//! them are usable. Only TLS 1.3, without resumption: a certificate is checked at each connection.

mod files;
mod names;
mod stream;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme, version::TLS13,
};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub use files::TlsFiles;
pub use names::{CertificateNames, NodeName};
pub(crate) use stream::{PeerStream, Transport};

use crate::error::FileError;
use crate::files::Reload;
use files::{Material, Parsed};

/// The time that a client's connection has for its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The end of the certificate is logged when it is nearer than these days, ascending.
const WARN_DAYS: [u64; 3] = [1, 7, 30];
/// The protocol names (ALPN) of the ports: a client that connects to the peers' port, or a node that connects
/// to the clients', fails in the handshake.
const GRPC_PROTOCOL: &[u8] = b"h2";
const HTTP_PROTOCOL: &[u8] = b"http/1.1";
const PEER_PROTOCOL: &[u8] = b"lockkeeper-peer";

/// What a client speaks within TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientProtocol {
    Grpc,
    Http,
}

/// A node's TLS configurations. Each new connection uses those of the newest usable files.
#[derive(Debug)]
pub(crate) struct NodeTls {
    files: TlsFiles,
    current: Mutex<Arc<Loaded>>,
    /// Of the certificate, and of the authorities.
    warned: Mutex<[Option<Warned>; 2]>,
}

#[derive(Debug)]
struct Loaded {
    material: Material,
    name: NodeName,
    expires: SystemTime,
    /// The earliest end of an authority.
    authority_expires: SystemTime,
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    peers_in: Arc<ServerConfig>,
    peers_out: Arc<ClientConfig>,
    forwards: Arc<ClientConfig>,
}

impl NodeTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file can't be read or is not usable.
    pub(crate) fn load(files: &TlsFiles) -> Result<Arc<Self>, FileError> {
        let loaded = Loaded::new(Material::read(files)?, files)?;
        Ok(Arc::new(Self {
            files: files.clone(),
            current: Mutex::new(Arc::new(loaded)),
            warned: Mutex::default(),
        }))
    }

    /// The names in this node's certificate.
    pub(crate) fn name(&self) -> NodeName {
        self.current().name.clone()
    }

    /// When the certificate ends.
    pub(crate) fn expires(&self) -> SystemTime {
        self.current().expires
    }

    /// The handshake of a connection of a client, within [`HANDSHAKE`].
    ///
    /// # Errors
    /// The handshake failed or was late.
    pub(crate) async fn accept_client<S>(
        &self,
        socket: S,
        protocol: ClientProtocol,
    ) -> io::Result<server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let current = self.current();
        let config = match protocol {
            ClientProtocol::Grpc => &current.grpc,
            ClientProtocol::Http => &current.http,
        };
        let handshake = TlsAcceptor::from(config.clone()).accept(socket);
        tokio::time::timeout(HANDSHAKE, handshake)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")))
    }

    /// The handshake of a connection that another node has opened. The caller bounds its time.
    ///
    /// # Errors
    /// The handshake failed.
    pub(crate) async fn accept_peer(&self, socket: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        TlsAcceptor::from(self.current().peers_in.clone()).accept(socket).await
    }

    /// The handshake of a connection to another node's peer port. The caller checks the names, by
    /// [`NodeTls::check_node`], and bounds the time.
    ///
    /// # Errors
    /// The handshake failed.
    pub(crate) async fn connect_peer(&self, socket: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        connect(self.current().peers_out.clone(), socket).await
    }

    /// As [`NodeTls::connect_peer`], to another node's client port.
    ///
    /// # Errors
    /// The handshake failed.
    pub(crate) async fn connect_client(&self, socket: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        connect(self.current().forwards.clone(), socket).await
    }

    /// Checks that the certificate at the other end is a node's of this cluster, and `node`'s unless that
    /// is 0.
    ///
    /// # Errors
    /// The fault, as a text.
    pub(crate) fn check_node(&self, chain: Option<&[CertificateDer<'_>]>, node: u64) -> Result<(), String> {
        let own = self.name();
        let first = chain.and_then(<[_]>::first).ok_or("the other side has no certificate")?;
        let names =
            CertificateNames::of(first).map_err(|why| format!("the certificate can't be read: {why}"))?;
        let Some(found) = names.node() else {
            return Err(format!("the certificate is of {names}, which is no node"));
        };
        if found.cluster != own.cluster {
            return Err(format!(
                "the certificate is of a node of the cluster `{}`, this one is `{}`",
                found.cluster, own.cluster
            ));
        }
        if let Some(certified) = found.node.filter(|certified| node != 0 && *certified != node) {
            return Err(format!("the certificate is of node {certified}, not of node {node}"));
        }
        Ok(())
    }

    fn current(&self) -> Arc<Loaded> {
        self.current.lock().clone()
    }
}

impl Reload for NodeTls {
    /// New connections use the new files. Also an error: the new certificate has other names than the old
    /// one.
    fn reload(&self) -> Result<bool, FileError> {
        let material = Material::read(&self.files)?;
        let current = self.current();
        if material == current.material {
            return Ok(false);
        }
        let loaded = Loaded::new(material, &self.files)?;
        if loaded.name != current.name {
            return Err(FileError::OtherNames {
                file: self.files.certificate.clone(),
                found: loaded.name.to_string(),
                wanted: current.name.to_string(),
            });
        }
        *self.current.lock() = Arc::new(loaded);
        Ok(true)
    }

    fn names(&self) -> String {
        format!("TLS: {}", self.files)
    }

    /// Warns of the end of the certificate and of the authorities, once for each of [`WARN_DAYS`] and after
    /// it.
    fn after_check(&self) {
        let (certificate, authority) = {
            let current = self.current();
            (current.expires, current.authority_expires)
        };
        let mut warned = self.warned.lock();
        let [of_certificate, of_authority] = &mut *warned;
        warn_of_end(&self.files.certificate, "the certificate of this node", certificate, of_certificate);
        warn_of_end(&self.files.ca, "an authority of this node", authority, of_authority);
    }
}

/// The last warning of an end that was logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Warned {
    Days(u64),
    Ended,
}

fn warn_of_end(file: &Path, what: &str, expires: SystemTime, warned: &mut Option<Warned>) {
    let left = expires.duration_since(SystemTime::now()).ok().filter(|left| !left.is_zero());
    let days = left.map(|left| left.as_secs() / DAY.as_secs());
    let due = match days {
        None => Some(Warned::Ended),
        Some(days) => WARN_DAYS.into_iter().find(|warn| days < *warn).map(Warned::Days),
    };
    if due == *warned {
        return;
    }
    *warned = due;
    let file = file.display();
    match (due, days) {
        (Some(Warned::Ended), _) => {
            tracing::error!("{what} has ended: no new connection is possible until it is renewed (`{file}`)");
        }
        (Some(_), Some(days)) => {
            tracing::warn!(days, "{what} ends in {days} days: renew it (`{file}`)");
        }
        _ => {}
    }
}

/// The opening side of a handshake. Nodes are identified by the names in their certificates, so the server
/// name has no meaning.
async fn connect(config: Arc<ClientConfig>, socket: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
    let name = ServerName::try_from("lockkeeper.invalid").map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, socket).await
}

impl Loaded {
    fn new(material: Material, files: &TlsFiles) -> Result<Self, FileError> {
        let Parsed { chain, key, roots, authority_expires } = material.parse(files)?;
        let unusable = |why: String| FileError::Unusable { file: files.certificate.clone(), why };
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots);
        let names = chain.first().ok_or_else(|| unusable("it has no certificate".to_owned()))?;
        let names = CertificateNames::of(names).map_err(unusable)?;
        let name = names.node().cloned().ok_or_else(|| {
            unusable(format!(
                "it is of {names}, which is no node; `lockkeeper tls init` makes those of nodes"
            ))
        })?;
        let nodes = Arc::new(NodeVerifier {
            roots: roots.clone(),
            algorithms: provider.signature_verification_algorithms,
        });
        nodes
            .verify(&chain[0], &chain[1..], UnixTime::now())
            .map_err(|error| unusable(format!("`{}` does not confirm it: {error}", files.ca.display())))?;
        let guests = |is_client: bool| {
            let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
            // A client without a certificate is refused in words, by the answer to its calls.
            let builder = if is_client { builder.allow_unauthenticated() } else { builder };
            let unusable = |why: String| FileError::Unusable { file: files.ca.clone(), why };
            builder.build().map_err(|error| unusable(error.to_string()))
        };
        let to_serve = |protocol: &[u8]| -> Result<Arc<ServerConfig>, FileError> {
            let guests: Arc<dyn ClientCertVerifier> = guests(protocol != PEER_PROTOCOL)?;
            let mut config = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])
                .map_err(|error| unusable(error.to_string()))?
                .with_client_cert_verifier(guests)
                .with_single_cert(chain.clone(), key.clone_key())
                .map_err(|error| unusable(format!("it does not fit its key: {error}")))?;
            config.alpn_protocols = vec![protocol.to_vec()];
            config.send_tls13_tickets = 0;
            Ok(Arc::new(config))
        };
        let to_connect = |protocol: &[u8]| -> Result<Arc<ClientConfig>, FileError> {
            let mut config = ClientConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])
                .map_err(|error| unusable(error.to_string()))?
                .dangerous()
                .with_custom_certificate_verifier(nodes.clone())
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(|error| unusable(format!("it does not fit its key: {error}")))?;
            config.alpn_protocols = vec![protocol.to_vec()];
            config.resumption = rustls::client::Resumption::disabled();
            Ok(Arc::new(config))
        };
        Ok(Self {
            grpc: to_serve(GRPC_PROTOCOL)?,
            http: to_serve(HTTP_PROTOCOL)?,
            peers_in: to_serve(PEER_PROTOCOL)?,
            peers_out: to_connect(PEER_PROTOCOL)?,
            forwards: to_connect(GRPC_PROTOCOL)?,
            expires: names.expires(),
            authority_expires,
            name,
            material,
        })
    }
}

/// Verifies the chain of another node's certificate. The names in it are checked after the handshake, so that
/// a refusal can be sent in words.
#[derive(Debug)]
struct NodeVerifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl NodeVerifier {
    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let certificate = rustls::server::ParsedCertificate::try_from(certificate)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(certificate, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
