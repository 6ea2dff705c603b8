//! Attacks on a node by the handshake of TLS.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::tls_under_attack;

/// The head of a record with a ClientHello of 512 bytes, and the begin of it.
const HALF_HELLO: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];

/// Connections that begin a handshake and go no further, as many as there are places for and more.
#[tokio::test]
async fn half_handshakes() {
    tls_under_attack("half handshakes, then silence", 2_000, async |target, sent| {
        let Ok(mut socket) = TcpStream::connect(target.address).await else { return };
        if socket.write_all(HALF_HELLO).await.is_ok() {
            sent.add(1);
            // Until the node closes it.
            let _ = socket.read(&mut [0]).await;
        }
    })
    .await;
}

/// Handshakes, each with its signatures, and nothing after them: what clients do that reconnect again and
/// again.
#[tokio::test]
async fn handshake_storm() {
    tls_under_attack("whole handshakes, then closed", 64, async |target, sent| {
        if target.dial().await.is_some() {
            sent.add(1);
        }
    })
    .await;
}

/// Records that are none, alerts, and messages of a handshake out of their order.
#[tokio::test]
async fn bytes_against_tls() {
    let wrong: Vec<Vec<u8>> = vec![
        vec![0xff; 16_384],
        [&[0x16, 3, 1, 0xff, 0xff][..], &[1; 16_384]].concat(),
        [&[0x15, 3, 3, 0, 2, 2, 40][..]].concat().repeat(1_000),
        [&[0x17, 3, 3, 0x40, 0][..], &[7; 16_384]].concat(),
        [0x14, 3, 3, 0, 1, 1].repeat(1_000),
        [0x16, 3, 3, 0, 0].repeat(1_000),
    ];
    tls_under_attack("bytes that are no handshake", 16, move |target, sent| {
        let wrong = wrong.clone();
        async move {
            for bytes in wrong {
                let Ok(mut socket) = TcpStream::connect(target.address).await else { return };
                let _ = socket.write_all(&bytes).await;
                let _ = tokio::time::timeout(Duration::from_millis(20), socket.read(&mut [0; 1_024])).await;
                sent.add(1);
            }
        }
    })
    .await;
}
