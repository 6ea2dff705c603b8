//! Requests that two readers could understand in two ways, and other protocols.

use crate::rig::{Running, Upstream, raw};

/// Whatever a client sends, the upstream gets at most the requests that the gate has seen and checked: none
/// of these can bring a `PUT` past the marks.
#[tokio::test]
async fn smuggled_requests_do_not_reach_the_upstream() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 9").await.status, 200);
    let inner = "PUT /a HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n\r\n";
    let post = "GET /b HTTP/1.1\r\nHost: gate\r\n";
    let length = inner.len();
    let chunked = "Transfer-Encoding: chunked\r\n";
    for attempt in [
        // Content-Length against Transfer-Encoding, in both orders.
        format!("{post}Content-Length: {}\r\n{chunked}\r\n0\r\n\r\n{inner}", length + 5),
        format!("{post}{chunked}Content-Length: 4\r\n\r\n{length:x}\r\n{inner}\r\n0\r\n\r\n"),
        // Two lengths; one that is no number, negative, signed, or a list.
        format!("{post}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{inner}"),
        format!("{post}Content-Length: 0, {length}\r\n\r\n{inner}"),
        format!("{post}Content-Length: +{length}\r\n\r\n{inner}"),
        format!("{post}Content-Length: -1\r\n\r\n{inner}"),
        format!("{post}Content-Length: 0x0\r\n\r\n{inner}"),
        // Codings that only one reader might know.
        format!("{post}Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n{inner}"),
        format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{inner}"),
        format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("{post}Transfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("{post}X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("{post}X: y\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n{inner}"),
        // Chunk sizes.
        format!("{post}{chunked}\r\n0;ext=\n{inner}\r\n\r\n"),
        format!("{post}{chunked}\r\n-1\r\n{inner}"),
        format!("{post}{chunked}\r\nfffffffffffffffff\r\n{inner}"),
        // A body in HTTP/1.0 that only 1.1 knows.
        format!("GET /b HTTP/1.0\r\nHost: gate\r\n{chunked}\r\n0\r\n\r\n{inner}"),
        // Two hosts, no host, spaces in the target.
        format!("{post}Host: other\r\nContent-Length: 0\r\n\r\n{inner}"),
        format!("GET /b HTTP/1.1 PUT /a HTTP/1.1\r\nHost: gate\r\n\r\n{inner}"),
        format!("GET  /b HTTP/1.1\r\nHost: gate\r\n\r\n{inner}"),
        "PUT /a HTTP/1.1\r\nHost: gate\r\nFencing-Token: 9\r\nFencing-Token: 5\r\nContent-Length: 0\r\n\r\n"
            .to_owned(),
        "PUT /a HTTP/1.1\r\nHost: gate\r\nFencing_Token: 10\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "PUT /a HTTP/1.1\r\nHost: gate\r\nFencing-Token : 10\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "PUT http://other/a HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "put /a HTTP/1.1\r\nHost: gate\r\nFencing-Token: 5\r\nContent-Length: 0\r\n\r\n".to_owned(),
    ] {
        // The connection is to close also after requests that are answered.
        let attempt = format!("{attempt}GET /last HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n");
        let answers = raw(gate.address, attempt.as_bytes()).await;
        let log = upstream.log();
        let puts: Vec<_> = log.iter().filter(|line| line.contains("/a ")).collect();
        assert_eq!(puts, ["begun PUT /a 9", "ended PUT /a 9"], "{attempt:?}: {answers:?}");
    }
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 9").await.status, 200);
}

#[tokio::test]
async fn second_spelling_of_a_path_is_refused_for_requests_that_the_gate_guards() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    for path in ["//a", "/x/../a", "/x/%2e%2E/a", "/%2fa", "/a;x", "/a%00", "/a%5c", "/./a", "/%252e"] {
        for request in [format!("PUT {path}|Fencing-Token: 9"), format!("GET {path}|Fencing-Token: 9")] {
            let refused = gate.ask(&request).await;
            assert_eq!(refused.status, 400, "{request}");
            assert!(refused.body.contains("ambiguous-path"), "{}", refused.body);
        }
        assert_eq!(gate.ask(&format!("GET {path}")).await.status, 200, "free requests pass as they are");
    }
    assert!(upstream.log().iter().all(|line| line.ends_with("none")));
}

#[tokio::test]
async fn reads_that_may_become_writes_or_reach_another_path_are_refused() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    for method in ["put", "pUT", "patch"] {
        let refused = gate.ask(&format!("{method} /a")).await;
        assert!(refused.status == 400 && refused.body.contains("ambiguous-method"), "{refused:?}");
    }
    for (request, kind) in [
        ("GET /a|X-HTTP-Method-Override: DELETE", "ambiguous-method"),
        ("GET /a?_method=DELETE", "ambiguous-method"),
        ("GET /a|X_HTTP_Method_Override: DELETE", "ambiguous-header"),
        ("GET /a|X.HTTP.Method.Override: DELETE", "ambiguous-header"),
        ("GET /a|X-Original-URL: /b", "ambiguous-path"),
        ("PUT /a|Fencing-Token: 5|X-Rewrite-URL: /b", "ambiguous-path"),
        ("MOVE /a|Fencing-Token: 5|Destination: /b", "ambiguous-path"),
    ] {
        let refused = gate.ask(request).await;
        assert_eq!(refused.status, 400, "{request}");
        assert!(refused.body.contains(kind), "{request}: {}", refused.body);
    }
    for method in ["MOVE", "COPY", "PROPPATCH", "PURGE", "TRACE", "X-OWN"] {
        assert_eq!(gate.ask(&format!("{method} /a")).await.status, 428, "{method}");
    }
    assert!(upstream.log().is_empty());
    assert_eq!(
        gate.ask("POST /a|Fencing-Token: 5|X-HTTP-Method-Override: PUT").await.status,
        200,
        "a write, and checked as one"
    );
    assert_eq!(gate.ask("GET /a|X-Original-URL: /a").await.status, 200, "its own path");
}

#[tokio::test]
async fn tunnels_and_websockets_are_refused_in_words() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    let websocket =
        "GET /b|Connection: Upgrade|Upgrade: WebSocket|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: x";
    let refused = gate.ask(websocket).await;
    assert_eq!(refused.status, 501);
    assert!(refused.body.contains("Connect to the service itself"), "{}", refused.body);
    let tunnel = "CONNECT other:80 HTTP/1.1\r\nHost: other:80\r\nConnection: close\r\n\r\n";
    assert_eq!(raw(gate.address, tunnel.as_bytes()).await[0].status, 501);
    assert!(upstream.log().is_empty());
}
