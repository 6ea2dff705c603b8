//! A node that is killed repeatedly under load loses nothing that it acknowledged (P10), and clients observe
//! only a delay (P7).

use crate::faults::kept::Kept;
use crate::faults::load::Load;
use crate::faults::server::{Server, answer};

const KILLS: u64 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_killed_under_load_keeps_every_hold_and_waiter() {
    let mut server = Server::started("");
    let (one, two) = (server.client("one").await, server.client("two").await);
    let watcher = server.client("watcher").await;
    let kept = Kept::begin(&one, &two, &watcher).await;
    let load = Load::start(vec![one.clone(), two.clone()], 2, 5);
    for kill in 0..KILLS {
        // Each kill is at a different point of the load.
        load.goes_on(20 + kill * 7);
        server.kill();
        server.start();
        kept.is_kept(&format!("after kill {kill}")).await;
    }
    load.goes_on(20);
    kept.end().await;

    let done = load.checked().await;
    assert!(
        done.granted > 20 * KILLS && done.dropped > 0,
        "{} granted, {} dropped",
        done.granted,
        done.dropped
    );
    answer("nothing is left", async || {
        let status = watcher.status().await.ok()?;
        ((status.sessions, status.requests) == (0, 0)).then_some(())
    })
    .await;
}
