//! A proxy between client and server, which may close idle connections.

use std::net::SocketAddr;

use lockkeeper::Locks;
use lockkeeper_rig::Faults;

use crate::session::world::{World, for_session, until, until_waiting};

/// The URL of a proxy to the server.
fn through(faults: &Faults, world: &World) -> String {
    let proxy = faults.proxy("client", SocketAddr::from(([127, 0, 0, 1], world.server.port())));
    for_session(&format!("postgres://postgres@{proxy}/postgres"))
}

#[tokio::test]
async fn held_and_waiting_connections_each_send_signs_of_life() {
    let world = World::start();
    let faults = Faults::default();
    let url = through(&faults, &world).replace("probe=200ms", "probe=10min&keepalive=100ms");
    let (holds, waits) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let direct = world.client("direct").await;
    let held = holds.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("a").acquire().await });
    until_waiting(&direct, "a", 1).await;
    // Of the other connections, those for queries, none sends anything now.
    let before = faults.traffic("client");
    until("both connections send", async || {
        let sent = faults.traffic("client");
        let at_rest = sent.iter().zip(&before).filter(|(now, before)| now.calls >= before.calls + 3);
        (at_rest.count() == 2).then_some(())
    })
    .await;
    // The answers to the signs of life arrive with the grant, and disturb nothing.
    let owner = direct.inspect("a").await.unwrap().holds[0].label.clone();
    assert!(!owner.is_empty() && !owner.contains("process"), "what the holder shows is kept: {owner}");
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    next.verify().await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn proxy_is_found_and_the_servers_own_address_is_not() {
    let world = World::start();
    for (url, found) in [(through(&Faults::default(), &world), true), (world.url(), false)] {
        let findings = Locks::connect(&url).await.unwrap().findings().await.unwrap();
        let is_said =
            findings.iter().any(|finding| finding.says.contains("a proxy, or an address translation"));
        assert_eq!(is_said, found, "{findings:?}");
    }
}
