//! Unary calls, watches, health and reflection.

use lockkeeper_wire::v1::{self, server_item::What, watch_response};
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::harness::{Client, DEADLINE, SECRET, Server, directory};

#[tokio::test]
async fn unary_calls_show_holds_and_break_them() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "worker 1").await;
    let token = client.hold(session, 1, "orders/42").await;
    let mut calls = server.calls().await;

    let describe = v1::DescribeRequest { name: "orders/42".to_owned(), ..v1::DescribeRequest::default() };
    let lock = calls.describe(describe).await.unwrap().into_inner().lock.unwrap();
    assert_eq!((lock.holds[0].session, lock.holds[0].token), (session, token));
    let list = calls.list(v1::ListRequest::default()).await.unwrap().into_inner();
    assert_eq!((list.locks[0].name.as_str(), list.next_after), ("orders/42", 0));
    let sessions =
        calls.list_sessions(v1::ListSessionsRequest::default()).await.unwrap().into_inner().sessions;
    assert_eq!(
        (sessions[0].label.as_str(), sessions[0].attached, sessions[0].ttl_ms),
        ("worker 1", true, 30_000)
    );

    let check = |token| v1::CheckTokenRequest { name: "orders/42".to_owned(), token };
    let status = calls.check_token(check(token)).await.unwrap().into_inner();
    assert_eq!(status.status(), v1::TokenStatus::Current);
    let status = calls.check_token(check(token + 1)).await.unwrap().into_inner();
    assert_eq!(status.status(), v1::TokenStatus::NeverIssued);

    let order = v1::BreakRequest {
        name: "orders/42".to_owned(),
        token,
        reason: "stuck".to_owned(),
        by: "me".to_owned(),
        now: false,
    };
    let broken = calls.r#break(order).await.unwrap().into_inner();
    assert_eq!(broken.result(), v1::BreakResult::Done);
    let What::Revoked(told) = client.what().await else { panic!("not revoked") };
    assert_eq!((told.token, &*told.by, &*told.reason), (token, "me", "stuck"));

    let limit = v1::SetLimitRequest { name: "pool".to_owned(), permits: Some(3) };
    calls.set_limit(limit).await.unwrap();
    let describe = v1::DescribeRequest { name: "pool".to_owned(), ..v1::DescribeRequest::default() };
    let pool = calls.describe(describe).await.unwrap().into_inner().lock.unwrap();
    assert_eq!((pool.permits, pool.permits_stored), (Some(3), true));

    let status = calls.status(v1::StatusRequest { node: 0 }).await.unwrap().into_inner();
    assert_eq!((status.role(), status.node, status.leader, status.sessions), (v1::Role::Leader, 1, 1, 1));
    assert_eq!((status.cluster.len(), status.incarnation.len()), (32, 32), "{status:?}");
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn invalid_argument_is_refused_with_the_value_and_the_limit() {
    let data = directory();
    let server = Server::start(data.path());
    let mut calls = server.calls().await;
    let describe = v1::DescribeRequest { name: "a//b".to_owned(), ..v1::DescribeRequest::default() };
    let refusals = [
        (calls.describe(describe).await.unwrap_err(), ["`name`", "a//b"]),
        (
            calls.list(v1::ListRequest { page_size: 1001, ..Default::default() }).await.unwrap_err(),
            ["`page_size`", "1000"],
        ),
        (
            calls.r#break(v1::BreakRequest { name: "a".to_owned(), ..Default::default() }).await.unwrap_err(),
            ["`token`", "9007199254740991"],
        ),
        (
            calls
                .set_limit(v1::SetLimitRequest { name: "a".to_owned(), permits: Some(1 << 20) })
                .await
                .unwrap_err(),
            ["1048576", "65536"],
        ),
    ];
    for (refusal, texts) in refusals {
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        for text in texts {
            let said = refusal.message().replace(',', "");
            assert!(said.contains(text), "{text}: {said}");
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn watch_sends_the_state_then_every_change_then_the_shutdown() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "").await;
    let token = client.hold(session, 1, "a/b").await;
    let mut watch =
        server.calls().await.watch(v1::WatchRequest { prefix: "a".to_owned() }).await.unwrap().into_inner();
    let mut next = async || {
        let told = tokio::time::timeout(DEADLINE, watch.message()).await.expect("news were due");
        told.map(|told| told.and_then(|told| told.what))
    };
    let state = next().await.unwrap();
    assert!(
        matches!(&state, Some(watch_response::What::State(lock)) if lock.holds[0].token == token),
        "{state:?}"
    );
    assert!(matches!(next().await.unwrap(), Some(watch_response::What::Synced(_))));
    client.finish(session, 2, 1);
    let change = next().await.unwrap();
    assert!(
        matches!(&change, Some(watch_response::What::Changed(lock)) if lock.name == "a/b" && lock.holds.is_empty()),
        "{change:?}"
    );
    server.running.stop();
    assert_eq!(next().await.unwrap_err().code(), Code::Unavailable);
    server.ended().await.unwrap();
}

#[tokio::test]
async fn health_and_reflection_services_answer() {
    let data = directory();
    let server = Server::start(data.path());
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", "lockkeeper.v1.Lockkeeper"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let mut answers =
        reflection.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    match answers.message().await.unwrap().unwrap().message_response {
        Some(MessageResponse::ListServicesResponse(list)) => {
            let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
            assert!(names.iter().any(|name| name == "lockkeeper.v1.Lockkeeper"), "{names:?}");
        }
        other => panic!("{other:?}"),
    }
    server.stop().await.unwrap();
}
