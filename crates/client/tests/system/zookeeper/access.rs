//! TLS.

use lockkeeper::Locks;
use lockkeeper_rig::ZooKeeper;

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
