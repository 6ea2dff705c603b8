//! Attacks by the protocol of the connection.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::attacked_node::write;
use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    call, frame, message,
};
use super::under_attack;

/// Frames that are written at once.
const BURST: usize = 256;

/// Connections that are never done with their first line.
#[tokio::test]
async fn slowloris() {
    under_attack("slowloris: connections that send a byte now and then", 500, async |target, sent| {
        let Some(mut socket) = target.dial().await else { return };
        for byte in PREFACE {
            if !write(&mut socket, &[*byte]).await {
                return;
            }
            sent.add(1);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}

/// Opened and closed without a byte: a port scanner, or a load balancer's check.
#[tokio::test]
async fn connections_that_say_nothing() {
    under_attack("connections, closed at once", 16, async |target, sent| {
        for _ in 0..64 {
            drop(TcpStream::connect(target.address).await);
            sent.add(1);
        }
    })
    .await;
}

/// CVE-2023-44487: calls that are cancelled as soon as they are made.
#[tokio::test]
async fn rapid_reset() {
    under_attack("rapid reset: calls cancelled at once", 16, async |target, sent| {
        let Some(mut socket) = target.connect(&[]).await else { return };
        let block = call("Session");
        for stream in (1..).step_by(2) {
            let opened = frame(HEADERS, END_HEADERS, stream, &block);
            let reset = frame(RST_STREAM, 0, stream, &8u32.to_be_bytes());
            if !write(&mut socket, &[opened, reset].concat()).await {
                return;
            }
            sent.add(1);
        }
    })
    .await;
}

/// Connections that write `begin`, and then `burst`, of `frames` frames, until the node closes them. They
/// read nothing.
async fn flood(what: &str, begin: Vec<u8>, burst: Vec<u8>, frames: u64) {
    under_attack(what, 16, move |target, sent| {
        let (begin, burst) = (begin.clone(), burst.clone());
        async move {
            let Some(mut socket) = target.connect(&[]).await else { return };
            if !write(&mut socket, &begin).await {
                return;
            }
            while write(&mut socket, &burst).await {
                sent.add(frames);
            }
        }
    })
    .await;
}

/// CVE-2019-9512 and -9515: frames that want an answer each, from a client that reads none.
#[tokio::test]
async fn ping_and_settings_floods() {
    for (what, one) in [
        ("ping flood, answers unread", frame(PING, 0, 0, &[7; 8])),
        ("settings flood, answers unread", frame(SETTINGS, 0, 0, &[])),
    ] {
        flood(what, Vec::new(), one.repeat(BURST), BURST as u64).await;
    }
}

/// CVE-2024-27316: headers without an end.
#[tokio::test]
async fn continuation_flood() {
    // `x: y`, without indexing.
    let part = frame(CONTINUATION, 0, 1, &[0, 1, b'x', 1, b'y'].repeat(1_000));
    flood("CONTINUATION flood", frame(HEADERS, 0, 1, &call("Status")), part, 1).await;
}

/// CVE-2019-9514: empty frames, which cost a sender nothing.
#[tokio::test]
async fn empty_frames() {
    let begin = frame(HEADERS, END_HEADERS, 1, &call("Session"));
    flood("empty DATA frames", begin, frame(DATA, 0, 1, &[]).repeat(BURST), BURST as u64).await;
}

/// CVE-2019-9511 and -9517: answers that are asked for and never taken.
#[tokio::test]
async fn windows_of_nothing() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    under_attack("calls whose answers have no window", 16, async |target, sent| {
        let Some(mut socket) = target.connect(&[(INITIAL_WINDOW_SIZE, 0)]).await else { return };
        for stream in (1..).step_by(2) {
            let head = frame(HEADERS, END_HEADERS, stream, &call("Watch"));
            let body = frame(DATA, END_STREAM, stream, &message(&[]));
            if !write(&mut socket, &[head, body].concat()).await {
                return;
            }
            sent.add(1);
            if stream > 2 * 256 {
                break;
            }
        }
        // Byte by byte.
        let byte = [0, 1].map(|stream| frame(WINDOW_UPDATE, 0, stream, &1u32.to_be_bytes())).concat();
        while write(&mut socket, &byte).await {
            sent.add(2);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Windows that overflow, frames of unknown kinds, streams that were never opened.
#[tokio::test]
async fn frames_against_the_protocol() {
    let wrong = [
        frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
        frame(WINDOW_UPDATE, 0, 0, &0u32.to_be_bytes()),
        frame(DATA, 0, 1, b"x"),
        frame(RST_STREAM, 0, 9, &[0; 4]),
        frame(HEADERS, END_HEADERS, 2, &call("Status")),
        frame(HEADERS, END_HEADERS, 1, &[0xff; 64]),
        frame(0xee, 0xff, 77, &[1; 1_000]),
        frame(SETTINGS, 0, 0, &[0xff; 6 * 1_000]),
        frame(PING, 0, 0, &[1; 7]),
        vec![0xff; 9],
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
    ];
    under_attack("frames against the protocol", 16, move |target, sent| {
        let wrong = wrong.clone();
        async move {
            for bytes in wrong {
                let Some(mut socket) = target.connect(&[]).await else { return };
                // Twice, since one window's growth is allowed; then whatever the node says to it.
                let _ = write(&mut socket, &[&bytes[..], &bytes].concat()).await;
                let _ = tokio::time::timeout(Duration::from_millis(20), socket.read(&mut [0; 1_024])).await;
                sent.add(1);
            }
        }
    })
    .await;
}
