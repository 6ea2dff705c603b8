//! What a proxy must do besides.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Running, SOON, Upstream, ask, raw, until};

#[tokio::test]
async fn headers_of_one_connection_stay_there_and_the_others_pass() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    let request = "PUT /headers|Fencing-Token: 5|Connection: X-Private, Fencing-Token, keep-alive|X-Private: 1|Keep-Alive: 5|\
                   Proxy-Authorization: x|TE: gzip, trailers|Upgrade: h2c|Expect: 100-continue|X-Forwarded-For: 10.1.1.1|\
                   X-Own: 2|Via: 1.0 other";
    let answer = gate.ask(request).await;
    let seen = answer.body.replace('"', "");
    for there in [
        "PUT HTTP/1.1",
        "fencing-token: 5",
        "host: gate",
        "x-own: 2",
        "te: trailers",
        "via: 1.0 other, 1.1 lockkeeper",
        "x-forwarded-for: 10.1.1.1, 127.0.0.1",
        "x-forwarded-host: gate",
        "x-forwarded-proto: http",
    ] {
        assert!(seen.contains(there), "{there} is not in {seen}");
    }
    for gone in ["x-private", "keep-alive", "proxy-authorization", "upgrade", "expect", "gzip"] {
        assert!(!seen.contains(gone), "{gone} is in {seen}");
    }
    assert!(answer.headers.contains("via: 1.1 lockkeeper"), "{}", answer.headers);
    assert!(!answer.headers.contains("x-hop"), "{}", answer.headers);
}

#[tokio::test]
async fn times_may_be_of_any_length() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| {
        let times = [&mut options.settle, &mut options.wait, &mut options.timeout, &mut options.drain];
        times
            .into_iter()
            .chain([&mut options.client_timeout])
            .for_each(|time| *time = std::time::Duration::MAX);
    })
    .await;
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 5").await.status, 200);
    assert!(gate.end().await.1);
}

#[tokio::test]
async fn bodies_stream_both_ways_before_they_end() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    let mut stream = TcpStream::connect(gate.address).await.unwrap();
    let head = "PUT /echo HTTP/1.1\r\nHost: gate\r\nFencing-Token: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = String::new();
    for part in ["one", "two"] {
        stream.write_all(format!("3\r\n{part}\r\n").as_bytes()).await.unwrap();
        let echoed = async {
            while !seen.contains(part) {
                let mut some = [0; 1024];
                let count = stream.read(&mut some).await.unwrap();
                assert!(count > 0, "{seen}");
                seen.push_str(std::str::from_utf8(&some[..count]).unwrap());
            }
        };
        tokio::time::timeout(SOON, echoed).await.expect("echoed before the request has ended");
    }
    assert_eq!(gate.ask("PUT /echo|Fencing-Token: 6").await.status, 503, "the response has not ended");
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    gate.until_status("PUT /echo|Fencing-Token: 6", 200).await;
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
}

#[tokio::test]
async fn chunked_body_of_a_read_passes_and_other_codings_are_refused() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    let head = "GET /echo HTTP/1.1\r\nHost: gate\r\nConnection: close\r\nTransfer-Encoding: ";
    let ask = async |coding: &str| {
        raw(gate.address, format!("{head}{coding}\r\n\r\n3\r\none\r\n0\r\n\r\n").as_bytes()).await
    };
    let echoed = ask("chunked").await;
    assert!(echoed[0].status == 200 && echoed[0].body.contains("one"), "{echoed:?}");
    assert_eq!(ask("gzip, chunked").await[0].status, 400);
}

#[tokio::test]
async fn http_2_is_spoken_with_clients_and_large_bodies_pass() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let body = Bytes::from(vec![7; 3_000_000]);
    let mut all = Vec::new();
    for _ in 0..8 {
        let request = Request::put(format!("http://{}/echo", gate.address)).header("Fencing-Token", "5");
        all.push(client.request(request.body(Full::from(body.clone())).unwrap()));
    }
    for one in all {
        let response = one.await.unwrap();
        assert_eq!(response.status(), 200);
        let echoed = response.into_body().collect().await.unwrap().to_bytes();
        assert!(echoed == body, "{} bytes", echoed.len());
    }
    let seen = client.get(format!("http://{}/headers", gate.address).parse().unwrap()).await.unwrap();
    let seen = seen.into_body().collect().await.unwrap().to_bytes();
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert!(seen.contains(&format!("\"host\": \"{}\"", gate.address)), "{seen}");
    assert!(seen.contains("2 lockkeeper"), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_are_served_and_kept_alive() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.connections_max = 2000).await;
    let mut all = Vec::new();
    for index in 0..1000 {
        let address = gate.address;
        all.push(tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            for _ in 0..3 {
                let path = index % 100;
                let request = format!(
                    "PUT /{path} HTTP/1.1\r\nHost: g\r\nFencing-Token: 5\r\nContent-Length: 2\r\n\r\nok"
                );
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut seen = Vec::new();
                while !seen.ends_with(b"2 bytes") {
                    let mut some = [0; 1024];
                    let count = stream.read(&mut some).await.unwrap();
                    assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
                    seen.extend_from_slice(&some[..count]);
                }
            }
            stream
        }));
    }
    let mut open = Vec::new();
    for one in all {
        open.push(one.await.unwrap());
    }
    assert_eq!(gate.metric("lockkeeper_gate_resources_in_use").await, 0.0);
    drop(open);
}

#[tokio::test]
async fn health_says_that_the_gate_ends() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    assert_eq!(ask(gate.admin, "GET /healthz").await.status, 200);
    assert_eq!(ask(gate.admin, "GET /other").await.status, 404);
    assert_eq!(ask(gate.admin, "POST /metrics").await.status, 405);
    let admin = gate.admin;
    let held = gate.begin("PUT /hold/a|Fencing-Token: 5");
    upstream.until("begun PUT /hold/a 5").await;
    let ending = tokio::spawn(gate.end());
    until("it says so", async || ask(admin, "GET /healthz").await.status == 503).await;
    upstream.go_on.add_permits(1);
    assert_eq!(held.await.unwrap().status, 200);
    assert!(ending.await.unwrap().1);
}
