//! A proxy between client and server that counts what clients send, as proxies do that close idle connections.

use std::sync::{Arc, Mutex};

use lockkeeper::Locks;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use crate::postgres::world::{World, for_session, until, until_waiting};

/// For each connection, in the order of their opening, how often its client has sent something.
type Sent = Arc<Mutex<Vec<usize>>>;

/// Starts a proxy to `server`. Returns its port.
async fn proxy(server: String) -> (u16, Sent) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, sent) = (listener.local_addr().unwrap().port(), Sent::default());
    let counts = sent.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let number = {
                let mut counts = counts.lock().unwrap();
                counts.push(0);
                counts.len() - 1
            };
            tokio::spawn(forward(
                client,
                TcpStream::connect(server.clone()).await.unwrap(),
                counts.clone(),
                number,
            ));
        }
    });
    (port, sent)
}

async fn forward(client: TcpStream, server: TcpStream, counts: Sent, number: usize) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let up = async {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = from_client.read(&mut piece).await {
            counts.lock().unwrap()[number] += 1;
            if to_server.write_all(&piece[..read]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}

#[tokio::test]
async fn held_and_waiting_connections_each_send_signs_of_life() {
    let world = World::start();
    let (port, sent) = proxy(world.server.url().split(['@', '/']).nth(3).unwrap().to_owned()).await;
    let url = for_session(&format!("postgres://postgres@127.0.0.1:{port}/postgres"));
    let url = url.replace("probe=200ms", "probe=10min&keepalive=100ms");
    let (holds, waits) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let direct = world.client("direct").await;
    let held = holds.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("a").acquire().await });
    until_waiting(&direct, "a", 1).await;
    // Of the other connections, those for queries, none sends anything now.
    let before = sent.lock().unwrap().clone();
    until("both connections send", async || {
        let sent = sent.lock().unwrap();
        let at_rest = sent.iter().zip(&before).filter(|(now, before)| **now >= **before + 3);
        (at_rest.count() == 2).then_some(())
    })
    .await;
    // The answers to the signs of life arrive with the grant, and disturb nothing.
    let owner = direct.inspect("a").await.unwrap().holders[0].owner.clone();
    assert!(!owner.is_empty() && !owner.contains("process"), "what the holder shows is kept: {owner}");
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    next.verify().await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn proxy_is_found_and_the_servers_own_address_is_not() {
    let world = World::start();
    let (port, _) = proxy(world.server.url().split(['@', '/']).nth(3).unwrap().to_owned()).await;
    let through = for_session(&format!("postgres://postgres@127.0.0.1:{port}/postgres"));
    for (url, found) in [(through, true), (world.url(), false)] {
        let findings = Locks::connect(&url).await.unwrap().findings().await.unwrap();
        let is_said =
            findings.iter().any(|finding| finding.says.contains("a proxy, or an address translation"));
        assert_eq!(is_said, found, "{findings:?}");
    }
}
