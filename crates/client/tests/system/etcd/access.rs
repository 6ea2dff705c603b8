//! TLS, and users.

use lockkeeper::{AcquireError, Locks, Wait};
use lockkeeper_rig::Etcd;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_asks_for_both_certificates() {
    let etcd = Etcd::start_tls();
    let [ca, certificate, key] = etcd.certificates().map(|file| file.display().to_string());
    let address = format!("127.0.0.1:{}", etcd.port());
    let url = format!("etcds://{address}?tls-ca={ca}&tls-cert={certificate}&tls-key={key}");
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    for (url, words) in [
        (format!("etcd://{address}"), "no member of etcd answers"),
        (format!("etcds://{address}?tls-ca={ca}"), "no member of etcd answers"),
        (format!("etcds://{address}?tls-cert={certificate}&tls-key={key}"), "UnknownIssuer"),
        (format!("etcds://{address}?tls-ca=/nowhere"), "/nowhere"),
        (format!("etcds://{address}?tls-ca={ca}&tls-cert={certificate}"), "tls-key"),
        (format!("etcd://{address}?tls-ca={ca}"), "etcds://"),
    ] {
        let error = Locks::connect(&url).await.expect_err(&url);
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_need_their_password_and_the_permission() {
    let etcd = Etcd::start();
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "ana:hers"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "lockkeeper"],
        &["user", "grant-role", "ana", "locks"],
        &["user", "add", "bob:his"],
        &["auth", "enable"],
    ] {
        // A role `root` must exist before it is given to the user.
        if command[..2] == ["user", "grant-role"] && command[2] == "root" {
            let _ = etcd.try_cli(&["role", "add", "root"]);
        }
        etcd.cli(command);
    }
    let as_user = |login: &str| format!("etcd://{login}@127.0.0.1:{}", etcd.port());
    let ana = Locks::connect(&as_user("ana:hers")).await.unwrap();
    ana.mutex("x").acquire().await.unwrap().release().await.unwrap();
    let error = Locks::connect(&as_user("ana:wrong")).await.expect_err("wrong password");
    assert!(error.to_string().contains("user and password"), "{error}");
    let bob = Locks::connect(&as_user("bob:his")).await.unwrap();
    let error = bob.mutex("x").wait(Wait::No).acquire().await.expect_err("no permission");
    assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
    assert!(error.to_string().contains("permission denied"), "{error}");
}
