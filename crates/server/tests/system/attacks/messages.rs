//! Attacks by what is said in calls and streams.

use std::time::Duration;

use lockkeeper_wire::v1::{self, client_item};
use prost::Message;
use tokio::io::AsyncReadExt;

use super::attacked_node::write;
use super::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, call, frame, message};
use super::under_attack;
use crate::harness::{Client, SECRET, Server, directory};

/// A message that says it has 4 GiB, and sends as much of it as the node takes.
#[tokio::test]
async fn giant_messages() {
    under_attack("messages of 4 GiB", 8, async |target, sent| {
        for name in ["Session", "Describe", "Break"] {
            let Some(mut socket) = target.connect(&[]).await else { return };
            let head = frame(HEADERS, END_HEADERS, 1, &call(name));
            let begin = frame(DATA, 0, 1, &[0, 0xff, 0xff, 0xff, 0xff]);
            if !write(&mut socket, &[head, begin].concat()).await {
                return;
            }
            let part = frame(DATA, 0, 1, &[7; 16_000]);
            for _ in 0..1_000 {
                let written = write(&mut socket, &part);
                if !matches!(tokio::time::timeout(Duration::from_millis(50), written).await, Ok(true)) {
                    break;
                }
                sent.add(1);
            }
        }
    })
    .await;
}

/// Groups within groups, and messages within messages, as deep as a message of the largest size can be.
#[tokio::test]
async fn deeply_nested_messages() {
    // The begin of a group with an unknown field's number, again and again.
    let groups = vec![0x7b; 1 << 20];
    // Each is the first field of the one around it.
    let mut nested = Vec::new();
    while nested.len() < 4_000 {
        let mut outer = vec![0x0a];
        prost::encoding::encode_varint(nested.len() as u64, &mut outer);
        outer.append(&mut nested);
        nested = outer;
    }
    let bodies = [groups, nested, [0x0a, 0].repeat(1 << 18)];
    under_attack("deeply nested messages, and frames of empty items", 8, move |target, sent| {
        let bodies = bodies.clone();
        async move {
            for body in bodies {
                for name in ["Session", "Describe"] {
                    let Some(mut socket) = target.connect(&[]).await else { return };
                    let mut bytes = frame(HEADERS, END_HEADERS, 1, &call(name));
                    for part in message(&body).chunks(16_000) {
                        bytes.extend(frame(DATA, 0, 1, part));
                    }
                    bytes.extend(frame(DATA, END_STREAM, 1, &[]));
                    let _ =
                        tokio::time::timeout(Duration::from_millis(200), write(&mut socket, &bytes)).await;
                    let _ =
                        tokio::time::timeout(Duration::from_millis(50), socket.read(&mut [0; 1_024])).await;
                    sent.add(1);
                }
            }
        }
    })
    .await;
}

/// Streams full of requests, on connections that give the answers no window.
#[tokio::test]
async fn answers_that_nobody_reads() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    const ITEMS: usize = 10_000;
    let item = |id| {
        let what = client_item::What::KeepAlive(v1::KeepAlive { id });
        v1::ClientItem { session: 1, what: Some(what) }
    };
    let items: Vec<_> = (0..ITEMS as u64).map(item).collect();
    let requests = message(&v1::ClientFrame { items }.encode_to_vec());
    under_attack("requests whose answers are not read", 16, move |target, sent| {
        let requests = requests.clone();
        async move {
            let Some(mut socket) = target.connect(&[(INITIAL_WINDOW_SIZE, 0)]).await else { return };
            for stream in (1..2 * 256).step_by(2) {
                if !write(&mut socket, &frame(HEADERS, END_HEADERS, stream, &call("Session"))).await {
                    return;
                }
                for part in requests.chunks(16_000) {
                    let bytes = frame(DATA, 0, stream, part);
                    let written =
                        tokio::time::timeout(Duration::from_secs(1), write(&mut socket, &bytes)).await;
                    if !matches!(written, Ok(true)) {
                        return;
                    }
                }
                sent.add(ITEMS as u64);
            }
        }
    })
    .await;
}

/// Somebody who knows a session's id tries secrets: each is refused, and the session's owner notices nothing.
#[tokio::test]
async fn guesses_of_a_sessions_secret() {
    const GUESSES: u64 = 10_000;
    let data = directory();
    let server = Server::start(data.path());
    let mut owner = Client::connect(&server).await;
    let session = owner.open(SECRET, "owner").await;
    owner.hold(session, 1, "a").await;
    let mut thief = Client::connect(&server).await;
    let guess = |number: u64| {
        let mut secret = SECRET;
        secret[8..].copy_from_slice(&number.to_le_bytes());
        let attach = v1::AttachSession { secret: secret.to_vec(), attach: number };
        v1::ClientItem { session, what: Some(client_item::What::Attach(attach)) }
    };
    thief.send_all((1..=GUESSES).map(guess).collect());
    for _ in 0..GUESSES {
        let told = thief.what().await;
        assert!(!matches!(told, v1::server_item::What::Attached(_)), "{told:?}");
    }
    // Without the secret nothing of the session can be used either.
    thief.finish(session, 2, 1);
    let told = thief.what().await;
    assert!(!matches!(told, v1::server_item::What::Finished(_)), "{told:?}");
    owner.finish(session, 2, 1);
    assert!(matches!(owner.what().await, v1::server_item::What::Finished(_)));
    eprintln!("| guesses of a session's secret | {GUESSES} | | all refused; the owner noticed nothing | |");
    server.stop().await.unwrap();
}

/// What is in a frame may not make it larger in memory than a small multiple of its size.
#[test]
fn frame_of_empty_items_is_counted_before_it_is_decoded() {
    let frame = [0x0a, 0].repeat(1 << 20);
    assert!(v1::ClientFrame::decode(&frame[..]).is_err());
}
