//! HTTP/JSON by TLS.

use http_body_util::Full;
use hyper::{Method, Request};
use lockkeeper_server::ServerOptions;
use lockkeeper_server::access::{AccessFiles, NewToken};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client::HttpClient;
use crate::certified::ClientTls;
use crate::harness::{DEADLINE, Server, directory};

#[tokio::test]
async fn clients_show_a_certificate_or_a_token() {
    let (data, files) = (directory(), directory());
    let (tls, client) = ClientTls::certify(files.path());
    let token = NewToken::make("cron").unwrap();
    let tokens = files.path().join("tokens");
    std::fs::write(&tokens, format!("{}\n", token.line)).unwrap();
    let server = Server::start_with(ServerOptions {
        listen: "127.0.0.1:0".to_owned(),
        tls: Some(tls),
        access: AccessFiles { tokens: Some(tokens), permissions: None },
        ..ServerOptions::new(data.path())
    });
    let address = server.running.http_address().unwrap();

    let mut certified = HttpClient::over(client.connect_http(address, true).await.unwrap(), 7).await;
    certified.open_session(30_000).await;
    certified.hold(1, "a").await;
    assert_eq!(certified.get("/v1/locks/a").await.1["holds"][0]["identity"], "witness");

    let mut nobody = HttpClient::over(client.connect_http(address, false).await.unwrap(), 8).await;
    let (status, problem) = nobody.post("/v1/sessions", json!({ "ttl_ms": 30_000 })).await;
    assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{problem}");
    nobody.token = Some(token.token);
    nobody.open_session(30_000).await;
    nobody.hold(1, "b").await;
    assert_eq!(nobody.get("/v1/locks/b").await.1["holds"][0]["identity"], "cron");
    // With TLS, a certificate proves the name of the node, so any name is allowed in `Host`.
    let request =
        Request::builder().method(Method::GET).uri("/v1/openapi.json").header("host", "locks.example");
    assert_eq!(nobody.answer(request.body(Full::default()).unwrap()).await.0, 200);

    assert!(client.connect(address).await.is_err(), "the port for HTTP/JSON speaks no gRPC");
    let mut plain = TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut plain, b"GET /v1/status HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let ended = timeout(DEADLINE, plain.read_to_end(&mut answer)).await.expect("the node ends it");
    assert!(ended.is_err() || !answer.starts_with(b"HTTP"), "{answer:?}");
    server.stop().await.unwrap();
}
