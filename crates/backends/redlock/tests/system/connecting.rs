//! URLs, logins, TLS, and servers that are not independent: each refusal names the cause and a remedy.

use lockkeeper::{ConnectError, Locks};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, Servers, address, try_to_hold};

/// Connects, which must fail, and returns the error.
async fn refused(url: &str) -> String {
    let made = tokio::time::timeout(20 * SECOND, Locks::connect(url)).await.expect("it does not hang");
    match made {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing: {error}");
    }
}

#[tokio::test]
async fn invalid_urls_are_refused_with_the_reason() {
    says(&refused("redlock://a,b").await, &["`a:6379,b:6379`", "3 or more independent servers", "redis://"]);
    says(&refused("redlock:").await, &["3 or more independent servers"]);
    says(&refused("redlock://a,b:6379,b").await, &["`b:6379`", "vote twice"]);
    says(&refused("redlock://a,b,c?fencing=counter").await, &["tokens", "no one counter", "lockkeeper://"]);
    says(&refused("redlock://a,b,c?prefx=x").await, &["did you mean `prefix`"]);
    says(&refused("redlock://a,b,c?tls-ca=/x").await, &["TLS"]);
    says(&refused("redlock://a,b,c/x").await, &["number of a database"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_majority_is_an_error_that_names_every_server() {
    let servers = Servers::start(5);
    servers.0[..3].iter().for_each(Redis::kill);
    let error = refused(&servers.url()).await;
    says(&error, &["2 of 5 servers can be used, 3 must"]);
    for server in &servers.0 {
        says(&error, &[&address(server)]);
    }
    says(&error, &[&format!("{}: answers", address(&servers.0[4])), "refused"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_servers_do_not_block_connecting() {
    let servers = Servers::start(3);
    servers.0[1].stop();
    let locks = tokio::time::timeout(20 * SECOND, servers.client("a")).await.expect("two of three answer");
    assert!(try_to_hold(&locks).await.is_some());
    servers.0[2].stop();
    says(&refused(&servers.url()).await, &["1 of 3 servers can be used, 2 must"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_a_finding_at_one_server_and_an_error_at_a_majority() {
    let secret = |secret: &str| Redis::with(&["--requirepass", secret]);
    let servers = Servers::of([secret("right"), secret("right"), secret("another")]);
    let url = format!("redlock://:right@{}", servers.hosts());
    let locks = Locks::connect(&url).await.unwrap();
    assert!(try_to_hold(&locks).await.is_some());
    let findings = locks.findings().await.unwrap();
    let of_it = |says: &str| says.starts_with(&format!("{}: does not take part", address(&servers.0[2])));
    assert!(findings.iter().any(|finding| finding.spoils && of_it(&finding.says)), "{findings:?}");
    let error = refused(&format!("redlock://:another@{}", servers.hosts())).await;
    says(&error, &["1 of 3 servers can be used, 2 must", "password", &address(&servers.0[0])]);
    assert!(!error.contains("another@") && !error.contains(":another"), "no password is shown: {error}");
    let error = refused(&servers.url()).await;
    says(&error, &["0 of 3 servers can be used"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_at_every_server() {
    let servers = Servers::of((0..3).map(|_| Redis::with_tls()));
    let folder = tempfile::tempdir().unwrap();
    // Each server here has an authority of its own; all of them are trusted.
    let all: Vec<String> =
        servers.0.iter().map(|server| std::fs::read_to_string(server.ca()).unwrap()).collect();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, all.concat()).unwrap();
    let url = format!("redlocks://{}?tls-ca={}", servers.hosts(), ca.display());
    let locks = Locks::connect(&url).await.unwrap();
    let held = try_to_hold(&locks).await.expect("it is free");
    assert!(servers.keys(crate::support::NAME) >= 2);
    held.release().await.unwrap();
    // With the authority of only one server, the other two are not trusted.
    let one = format!("redlocks://{}?tls-ca={}", servers.hosts(), servers.0[0].ca().display());
    says(&refused(&one).await, &["1 of 3 servers can be used, 2 must", "certificate"]);
    says(&refused(&servers.url()).await, &["0 of 3 servers can be used"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_not_independent_are_refused() {
    let servers = Servers::start(3);
    let replica = servers.0[0].replica();
    let with_a_replica =
        format!("redlock://{},{},{}", address(&servers.0[0]), address(&servers.0[1]), address(&replica));
    says(&refused(&with_a_replica).await, &[&address(&replica), "replica of", &address(&servers.0[0])]);
    let twice = format!("redlock://{},localhost:{}", servers.hosts(), servers.0[1].port());
    says(&refused(&twice).await, &[&address(&servers.0[1]), "the same server", "vote twice"]);
}

/// Unsupported operations are never replaced by weaker ones (P11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_operations_are_refused_with_the_reason() {
    let servers = Servers::start(3);
    let locks = servers.client("a").await;
    let error = locks.semaphore("seats", 3).acquire().await.unwrap_err().to_string();
    says(&error, &["`redlock` can't count permits"]);
    let error = locks.rw("table").read().acquire().await.unwrap_err().to_string();
    says(&error, &["`redlock` can't share"]);
    let Err(error) = locks.fenced() else { panic!("there are no tokens") };
    says(&error.to_string(), &["no one counter", "postgres://"]);
    let error: ConnectError = error.into();
    assert!(matches!(error, ConnectError::Unsupported(_)));
}
