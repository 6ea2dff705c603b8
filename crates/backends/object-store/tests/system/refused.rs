//! Stores that can't hold locks, and buckets with settings that operators should know of.

use lockkeeper::{ConnectError, Locks};
use lockkeeper_rig::{Azurite, S3, SeaweedFs};

use crate::{address, foreign, request, token, url};

/// s3rver ignores the conditions of puts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_ignores_conditions_is_refused() {
    let server = S3::without_conditions(&foreign());
    for _ in 0..2 {
        let error = Locks::connect(&url(address(server.port()), "")).await.expect_err("unfit");
        assert!(error.to_string().contains("can't hold locks"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_bucket_and_missing_service_are_named() {
    let azurite = Azurite::start(&foreign());
    let url = format!("az://nowhere/locks?credentials=none&endpoint={}", azurite.url());
    let error = Locks::connect(&url).await.expect_err("no container");
    assert!(error.to_string().contains("no such bucket"), "{error}");
    let error = Locks::connect(&crate::url(address(1), "")).await.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Backend(_)), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

/// A bucket that keeps old versions works, and `doctor` tells what it costs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_of_a_bucket_are_told() {
    let server = SeaweedFs::start(&foreign());
    let url = url(address(server.port()), "");
    let says = async || -> String {
        let findings = Locks::connect(&url).await.unwrap().findings().await.unwrap();
        findings.iter().map(|finding| finding.says.as_str()).collect()
    };
    let told = says().await;
    assert!(told.contains("waiters poll every") && !told.contains("versions"), "{told}");
    let body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    assert_eq!(request(server.port(), "PUT", "/lockkeeper?versioning", "", body), "200");
    let other = url.replace("some/locks", "other");
    let locks = Locks::connect(&other).await.unwrap();
    for round in 1..=2 {
        let held = locks.mutex("x").acquire().await.unwrap();
        held.verify().await.unwrap();
        assert_eq!(token(&held), round);
        held.release().await.unwrap();
    }
    let findings = locks.findings().await.unwrap();
    assert!(findings.iter().any(|finding| finding.says.contains("keeps old versions")), "{findings:?}");
}
