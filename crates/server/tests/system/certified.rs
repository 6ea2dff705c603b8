//! A node's TLS files, and how a client with a certificate connects to it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use lockkeeper_rig::Authority;
use lockkeeper_server::{NodeName, TlsFiles};
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// A client's certificate, and the authority that it trusts.
#[derive(Clone)]
pub(crate) struct ClientTls(TlsConnector);

impl ClientTls {
    /// Writes the files of node 1 into `folder`.
    pub(crate) fn certify(folder: &Path) -> (TlsFiles, Self) {
        let authority = Authority::new();
        let name = NodeName { cluster: "attacked".to_owned(), node: Some(1) };
        let node = authority.issue(&["localhost"], &[&name.uri()]);
        let client = authority.issue(&["witness"], &[]);
        let [certificate, key] = node.write(folder, "node");
        let files = TlsFiles { certificate, key, ca: authority.write(folder, "ca") };
        let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&authority.certificate())).unwrap();
        let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate(&client.certificate)], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        (files, Self(TlsConnector::from(Arc::new(config))))
    }

    /// A connection after its handshake.
    ///
    /// # Errors
    /// There is no connection, or the node refuses the handshake.
    pub(crate) async fn connect(&self, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        self.0.connect("localhost".try_into().unwrap(), socket).await
    }

    /// A connection to the port for HTTP/JSON, after its handshake; without a certificate unless `certified`.
    ///
    /// # Errors
    /// As [`ClientTls::connect`].
    pub(crate) async fn connect_http(
        &self,
        address: SocketAddr,
        certified: bool,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = ClientConfig::clone(self.0.config());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if !certified {
            config.client_auth_cert_resolver = Arc::new(NoCertificate);
        }
        Self(TlsConnector::from(Arc::new(config))).connect(address).await
    }

    pub(crate) async fn channel(&self, address: SocketAddr) -> Channel {
        let tls = self.clone();
        let connect = service_fn(move |_| {
            let tls = tls.clone();
            async move { tls.connect(address).await.map(TokioIo::new) }
        });
        // Not `https`: with that, tonic asks for TLS of its own.
        Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap()
    }
}
