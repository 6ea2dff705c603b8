//! Random clients over random faults: a holder within its deadline has a majority of the nodes, so that there
//! is at most one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_backend::BootInstant;
use lockkeeper_backend::leased::{Renewed, Store, Tried};
use tokio::time::sleep;

use super::fake::{Fake, Fault, TTL, attempt, client, entry, held_at, holders, nodes, now};

/// The deadline of each client's hold, as the session's machine computes it.
type Beliefs = Arc<Mutex<BTreeMap<String, BootInstant>>>;

/// A session that makes one request after the other.
async fn live(name: String, nodes: Vec<Fake>, beliefs: Beliefs, rounds: u32) {
    let (store, _) = client(&nodes);
    let mut granted = 0;
    // The session's deadline: 1 % less than a ttl after the latest acknowledged keep-alive was sent.
    let belief = TTL - TTL / 100;
    for round in 0..rounds {
        let id = format!("{name}-{round}");
        let entry = entry(&id);
        let mut acknowledged = now();
        let waits = fastrand::bool();
        let patience = now() + Duration::from_secs(fastrand::u64(1..8));
        let holds = loop {
            let trying = store.attempt(attempt(&entry, waits));
            let keep_alive = async {
                sleep(Duration::from_millis(fastrand::u64(0..400))).await;
                let sent = now();
                let kept = store.renew(vec![entry.clone()]).await;
                (sent, kept)
            };
            // A keep-alive may overlap an attempt at any moment.
            let tried = if fastrand::u8(..) < 100 {
                let (tried, (sent, kept)) = tokio::join!(trying, keep_alive);
                if kept == Ok(vec![Renewed::Kept]) {
                    acknowledged = acknowledged.max(sent);
                } else if let Ok(Tried::Granted(_)) = tried {
                    break false;
                }
                tried
            } else {
                trying.await
            };
            match tried {
                Ok(Tried::Granted(_)) => break true,
                Ok(Tried::Waits { again, .. }) if now() < patience => sleep(again).await,
                Err(_) if now() < patience => sleep(Duration::from_millis(50)).await,
                _ => break false,
            }
        };
        if holds && now() < acknowledged + belief {
            granted += 1;
            beliefs.lock().unwrap().insert(id.clone(), acknowledged + belief);
            for _ in 0..fastrand::u32(0..4) {
                sleep(Duration::from_millis(fastrand::u64(0..4_000))).await;
                let sent = now();
                match store.renew(vec![entry.clone()]).await.as_deref() {
                    Ok([Renewed::Kept]) => {
                        beliefs.lock().unwrap().entry(id.clone()).and_modify(|until| *until = sent + belief);
                    }
                    Ok(_) => break,
                    Err(_) => {}
                }
            }
            // A stalled holder keeps its hold to its deadline; a healthy one releases before.
            if fastrand::bool() {
                sleep(TTL).await;
            }
            beliefs.lock().unwrap().remove(&id);
        }
        let _ = store.finish(entry, !holds).await;
    }
    assert!(granted > 0 || rounds < 10, "{name} never held");
}

fn check(nodes: &[Fake], beliefs: &Beliefs, seed: u64) {
    let now = now();
    let beliefs = beliefs.lock().unwrap();
    let believers: Vec<&String> =
        beliefs.iter().filter(|&(_, &until)| now < until).map(|(id, _)| id).collect();
    assert!(believers.len() < 2, "seed {seed}: {believers:?} at {now:?}");
    for id in believers {
        let majority = nodes.len() / 2 + 1;
        assert!(
            held_at(nodes, id) >= majority,
            "seed {seed}: {id} believes at {now:?}, but {:?}",
            holders(nodes)
        );
    }
}

async fn run(seed: u64) -> usize {
    fastrand::seed(seed);
    let nodes = nodes(if seed.is_multiple_of(2) { 3 } else { 5 });
    let beliefs = Beliefs::default();
    let clients: Vec<_> = (0..4)
        .map(|index| tokio::spawn(live(format!("c{index}"), nodes.clone(), beliefs.clone(), 6)))
        .collect();
    let mut held = 0;
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        let node = &nodes[fastrand::usize(..nodes.len())];
        // Half of the time a node is healthy. None loses its entries: Redlock does not survive that.
        node.set(match fastrand::u8(..10) {
            0..5 => Fault::None,
            5 => Fault::Dead,
            6 => Fault::Hung,
            7 => Fault::LosesAnswers,
            8 => Fault::LosesCalls,
            _ => Fault::Refuses,
        });
        node.set_delay(Duration::from_millis(fastrand::u64(0..300)));
        for _ in 0..fastrand::u32(1..400) {
            sleep(Duration::from_millis(1)).await;
            check(&nodes, &beliefs, seed);
            held += usize::from(!beliefs.lock().unwrap().is_empty());
        }
    }
    for client in clients {
        client.await.unwrap();
    }
    // All nodes are healthy again: after the longest pause and a round trip no entry is left.
    for node in &nodes {
        node.set(Fault::None);
        node.set_delay(Duration::from_millis(1));
    }
    sleep(Duration::from_millis(2_500)).await;
    assert!(holders(&nodes).iter().all(Option::is_none), "seed {seed}: {:?}", holders(&nodes));
    held
}

#[tokio::test(start_paused = true)]
async fn a_holder_within_its_deadline_has_a_majority() {
    let mut held = 0;
    let seeds = lockkeeper_corpus::size(4, 30, 30);
    for seed in 0..seeds {
        held += run(seed).await;
    }
    assert!(held as u64 > 1_000 * seeds, "the lock was held for {held} ms only: nothing was tested");
}
