//! The pages for browsers.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::Method;
use lockkeeper_server::{HazardPlayer, PageFile, ServerOptions};
use serde_json::json;

use super::client::HttpClient;
use crate::harness::{Server, directory};

fn start(data: &std::path::Path) -> Server {
    let files = vec![PageFile {
        path: "/hazard".to_owned(),
        media_type: "text/html; charset=utf-8",
        content: "<title>hazards</title>".into(),
    }];
    let trace = Arc::new(|query: &[(String, String)]| match query {
        [(key, value)] if key == "story" => Ok(format!("{{\"played\":\"{value}\"}}")),
        _ => Err("there is no such setting".to_owned()),
    });
    Server::start_with(ServerOptions {
        listen: "127.0.0.1:0".to_owned(),
        hazards: Some(HazardPlayer { files, trace }),
        ..ServerOptions::new(data)
    })
}

#[tokio::test]
async fn console_is_served_with_a_strict_policy_short_and_once() {
    let data = directory();
    let server = start(data.path());
    let mut client = HttpClient::connect(&server, 7).await;
    let page = client.request(Method::GET, "/").body(Full::default()).unwrap();
    let page = client.send(page).await;
    assert_eq!(
        (page.status(), &page.headers()["content-type"]),
        (200.try_into().unwrap(), &"text/html; charset=utf-8".parse().unwrap())
    );
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part) && !policy.contains("unsafe"), "{policy}");
    }
    let tag = page.headers()["etag"].clone();
    let text = String::from_utf8(page.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let script = text.split('"').find(|part| part.ends_with("main.js")).unwrap();

    let known = client.request(Method::GET, "/").header("if-none-match", &tag).body(Full::default()).unwrap();
    let known = client.send(known).await;
    assert_eq!(known.status(), 304);
    assert!(known.into_body().collect().await.unwrap().to_bytes().is_empty());

    let asked = client.request(Method::GET, &format!("/{script}")).header("accept-encoding", "br, gzip");
    let short = client.send(asked.body(Full::default()).unwrap()).await;
    assert_eq!(
        (&short.headers()["content-encoding"], &short.headers()["content-type"]),
        (&"gzip".parse().unwrap(), &"text/javascript; charset=utf-8".parse().unwrap())
    );
    let short = short.into_body().collect().await.unwrap().to_bytes();
    let plain = client.request(Method::GET, &format!("/{script}")).body(Full::default()).unwrap();
    let plain = client.send(plain).await;
    assert!(plain.headers().get("content-encoding").is_none());
    assert!(plain.into_body().collect().await.unwrap().to_bytes().len() > short.len());

    assert_eq!(client.get("/console/none.js").await.0, 404);
    assert_eq!(client.get("/console/..%2findex.html").await.0, 404);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn hazards_are_played_by_what_the_process_brings() {
    let data = directory();
    let server = start(data.path());
    let mut client = HttpClient::connect(&server, 7).await;
    assert_eq!(client.get("/hazard/trace?story=paused").await, (200, json!({ "played": "paused" })));
    let (status, problem) = client.get("/hazard/trace?ttl=1").await;
    assert_eq!((status, &problem["detail"]), (400, &json!("there is no such setting")));
    assert_eq!(client.get("/hazard/none").await.0, 404);
    server.stop().await.unwrap();
    // The library alone brings none.
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::connect(&server, 7).await;
    assert_eq!((client.get("/hazard").await.0, client.get("/hazard/trace?story=a").await.0), (404, 404));
    server.stop().await.unwrap();
}

/// A link on another site opens a page; everything else of this port is not for other sites.
#[tokio::test]
async fn other_sites_may_link_to_pages_only() {
    let data = directory();
    let server = start(data.path());
    let mut client = HttpClient::connect(&server, 7).await;
    for (path, status) in [("/", 200), ("/hazard", 200), ("/hazard/trace?story=a", 403), ("/v1/locks", 403)] {
        let linked = client.request(Method::GET, path).header("sec-fetch-site", "cross-site");
        let answer = client.send(linked.body(Full::default()).unwrap()).await;
        assert_eq!(answer.status(), status, "{path}");
        drop(answer.into_body().collect().await.unwrap());
    }
    server.stop().await.unwrap();
}
