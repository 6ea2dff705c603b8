//! `https` on the gate's port.

use std::fs;
use std::sync::Arc;

use lockkeeper_gate::GateTls;
use lockkeeper_rig::Authority;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::rig::{Running, SOON, Upstream, raw};

/// A client that trusts this authority.
fn client(authority: &Authority) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// The answer to a request on a connection of its own.
async fn ask(gate: &Running, client: &TlsConnector) -> std::io::Result<String> {
    let socket = TcpStream::connect(gate.address).await?;
    let mut stream = client.connect("localhost".try_into().unwrap(), socket).await?;
    let request = "PUT /headers HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nFencing-Token: 5\r\nContent-Length: 2\r\n\r\nok";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
    read.expect("the connection is closed")?;
    Ok(String::from_utf8(answer).unwrap().replace('"', ""))
}

#[tokio::test]
async fn port_with_a_certificate_speaks_tls_only_and_takes_a_new_one() {
    let (folder, upstream) = (tempfile::tempdir().unwrap(), Upstream::start().await);
    let (first, second) = (Authority::new(), Authority::new());
    let [certificate, key] = first.issue(&["localhost"], &[]).write(folder.path(), "gate");
    let load = || GateTls::load(&certificate, &key);
    let tls = load().unwrap();
    let gate = Running::with(&upstream.url(), |options| options.tls = Some(tls.clone())).await;
    let (old, new) = (client(&first), client(&second));

    let answer = ask(&gate, &old).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-forwarded-proto: https") && answer.contains("fencing-token: 5"), "{answer}");
    assert!(ask(&gate, &new).await.is_err(), "another authority's");
    let plain = raw(gate.address, b"PUT /headers HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n\r\n").await;
    assert!(plain.is_empty(), "{plain:?}");

    assert!(!tls.reload().unwrap(), "nothing has changed");
    let renewed = second.issue(&["localhost"], &[]);
    // A new certificate whose key has not come yet.
    fs::write(&certificate, &renewed.certificate).unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("gate.pem` can't be used: with its key:"), "{error}");
    assert!(ask(&gate, &old).await.is_ok(), "the one before stays in use");
    fs::write(&key, &renewed.key).unwrap();
    assert!(tls.reload().unwrap());
    assert!(ask(&gate, &new).await.is_ok());
    assert!(ask(&gate, &old).await.is_err());
    // Clients that go no further than to connect, or into a handshake, do not keep the gate from ending.
    let _idle = TcpStream::connect(gate.address).await.unwrap();
    let mut half = TcpStream::connect(gate.address).await.unwrap();
    half.write_all(&[22]).await.unwrap();
    assert!(ask(&gate, &new).await.is_ok(), "the two are accepted before this one");
    let ended = tokio::time::timeout(SOON, gate.end()).await;
    assert!(ended.expect("nobody is waited for").1);

    fs::write(&key, "nothing").unwrap();
    assert!(load().unwrap_err().to_string().contains("no private key in PEM"));
    fs::remove_file(&certificate).unwrap();
    assert!(load().unwrap_err().to_string().contains("gate.pem` can't be read"));
}
