//! Attacks on the port for HTTP/JSON; the witness uses the other port.

use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::attacked_node::write;
use super::under_attack;

const STATUS: &str = "GET /v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Connections that are never done with the head of a request.
#[tokio::test]
async fn slow_heads() {
    under_attack("HTTP/JSON: heads that arrive a byte now and then", 500, async |target, sent| {
        let Some(mut socket) = target.dial_http().await else { return };
        for byte in STATUS.as_bytes() {
            if !write(&mut socket, &[*byte]).await {
                return;
            }
            sent.add(1);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}

/// Bodies that are announced and never whole, of calls that may be of a session.
#[tokio::test]
async fn bodies_that_never_end() {
    under_attack("HTTP/JSON: bodies that never end", 500, async |target, sent| {
        let Some(mut socket) = target.dial_http().await else { return };
        let head = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
            lockkeeper-secret: 07070707070707070707070707070707\r\ncontent-length: 200000\r\n\r\n";
        if !write(&mut socket, head.as_bytes()).await {
            return;
        }
        sent.add(1);
        while write(&mut socket, b" ").await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn heads_without_an_end() {
    under_attack("HTTP/JSON: heads without an end", 16, async |target, sent| {
        let Some(mut socket) = target.dial_http().await else { return };
        let mut head = b"GET /v1/status HTTP/1.1\r\n".to_vec();
        while write(&mut socket, &head).await {
            sent.add(1);
            head = b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(20);
        }
    })
    .await;
}

/// Calls one behind the other, whose answers nobody reads.
#[tokio::test]
async fn answers_that_nobody_reads() {
    for (what, call) in [
        ("calls, answers unread", STATUS.to_owned()),
        ("watches, events unread", STATUS.replace("status", "watch")),
        ("the document, unread", STATUS.replace("status", "openapi.json")),
    ] {
        under_attack(&format!("HTTP/JSON: {what}"), 64, move |target, sent| {
            let call = call.clone();
            async move {
                let Some(mut socket) = target.dial_http().await else { return };
                let burst = call.repeat(64);
                while write(&mut socket, burst.as_bytes()).await {
                    sent.add(64);
                }
            }
        })
        .await;
    }
}

/// What is no HTTP, and HTTP that two readers could understand in two ways.
#[tokio::test]
async fn requests_against_the_protocol() {
    let wrong: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/status HTTP/9.9\r\n\r\n",
        b"POST /v1/sessions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\nzzzz\r\n",
        b"GET /v1/\x00 HTTP/1.1\r\n\r\n",
        b"GET /v1/locks/%ZZ%00?prefix=%FF HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\r\n",
    ];
    for wrong in wrong {
        let what = format!("HTTP/JSON: {}", wrong[..wrong.len().min(24)].escape_ascii());
        under_attack(&what, 16, move |target, sent| async move {
            let Some(mut socket) = target.dial_http().await else { return };
            if write(&mut socket, wrong).await {
                sent.add(1);
                // An answer or the end, whatever the node prefers.
                let _ = socket.read(&mut [0; 256]).await;
            }
        })
        .await;
    }
}
