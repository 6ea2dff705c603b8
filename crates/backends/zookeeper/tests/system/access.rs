//! TLS, and passwords.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::{Faults, ZooKeeper};
use zookeeper_client::{Acls, Client};

use crate::{until, until_waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_asks_for_both_certificates() {
    let server = ZooKeeper::start_tls();
    let (port, files) = server.tls();
    let [ca, certificate, key] = files.map(|file| file.display().to_string());
    let address = format!("127.0.0.1:{port}");
    let url = format!("zookeepers://{address}?tls-ca={ca}&tls-cert={certificate}&tls-key={key}");
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    for (url, words) in [
        (format!("zookeeper://{address}"), "opens no session"),
        (format!("zookeepers://{address}?tls-ca={ca}"), "opens no session"),
        (format!("zookeepers://{address}?tls-cert={certificate}&tls-key={key}"), "opens no session"),
        (format!("zookeepers://{address}?tls-ca={key}"), "PEM"),
        (format!("zookeepers://{address}?tls-ca=/nowhere"), "/nowhere"),
        (format!("zookeepers://{address}?tls-ca={ca}&tls-cert={certificate}"), "tls-key"),
        (format!("zookeeper://{address}?tls-ca={ca}"), "zookeepers://"),
    ] {
        let error = Locks::connect(&url).await.expect_err(&url);
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}

/// A user of the scheme `digest` is a name with its password: during a change, the operator admits both to
/// the nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_is_read_again_for_each_session() {
    let server = ZooKeeper::start();
    let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let (faults, folder) = (Faults::default(), tempfile::tempdir().unwrap());
    let file = folder.path().join("password");
    fs::write(&file, "old").unwrap();
    let url = format!("zookeeper://ana@{}?password-file={}", faults.proxy("ana", address), file.display());
    let (holds, waits) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let held = holds.mutex("x").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("x").acquire().await });
    until_waiting(&holds, "x", 1).await;
    let both = Client::connector().with_auth("digest", b"ana:old").with_auth("digest", b"ana:new");
    let both = both.connect(&address.to_string()).await.unwrap();
    for node in ["/lockkeeper", "/lockkeeper/x"] {
        both.set_acl(node, &Acls::creator_all(), None).await.unwrap();
    }
    for child in both.list_children("/lockkeeper/x").await.unwrap() {
        both.set_acl(&format!("/lockkeeper/x/{child}"), &Acls::creator_all(), None).await.unwrap();
    }
    fs::write(&file, "new").unwrap();
    faults.close_connections("ana");
    until("it is confirmed", async || held.verify().await.ok()).await;
    // A session that begins now has the new password only.
    let last = Locks::connect(&url).await.unwrap();
    assert_eq!(last.inspect("x").await.unwrap().waiter_count, 1);
    let last = last.mutex("x");
    let last = tokio::spawn(async move { last.acquire().await });
    until_waiting(&holds, "x", 2).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    last.await.unwrap().unwrap().release().await.unwrap();
}
