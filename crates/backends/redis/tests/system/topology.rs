//! Several servers that act as one: a primary with its replica and sentinels, and a cluster.

use lockkeeper::{Locks, LossCause, Wait};
use lockkeeper_rig::{OneSentinel, Redis, RedisCluster, Sentinel};

use crate::support::{SECOND, loss, until, until_waiting};

/// After the death of the primary, clients find the new one, and a replicated hold is kept. A hold whose key
/// is missing there is lost, and its holder detects the loss.
#[tokio::test]
async fn after_a_fail_over_the_new_primary_is_found() {
    let servers = Sentinel::with(&["--appendonly", "yes"]);
    let url = format!("redis://{}?sentinel={}&fencing=counter", servers.addresses(), servers.name());
    let (alice, bob) =
        (Locks::connect_as(&url, "alice").await.unwrap(), Locks::connect_as(&url, "bob").await.unwrap());
    let copied = alice.mutex("copied").ttl(30 * SECOND).acquire().await.unwrap();
    let former = servers.primary();
    // The replica is polled below, because `WAIT` covers only the writes of its own connection.
    let replica = servers.replica();
    until("it is copied", async || (replica.cli(&["EXISTS", "copied"]) == "1").then_some(())).await;
    former.kill();
    servers.wait_for_another_than(former);
    let next = bob.mutex("jobs").wait(Wait::For(25 * SECOND)).acquire().await.unwrap();
    let new = servers.primary();
    assert!(new.cli(&["GET", "jobs"]).contains("bob"));
    copied.verify().await.expect("what was copied is held");
    assert!(next.token_hint().is_some());
    next.release().await.unwrap();
    new.cli(&["DEL", "copied"]);
    assert_eq!(loss(&copied).await, LossCause::Forgotten);
}

/// A sentinel that was cut off names the former primary. The sentinels have a password of their own.
#[tokio::test]
async fn the_newest_sentinel_answer_is_used_and_a_replica_is_refused() {
    let (former, primary) = (Redis::start(), Redis::start());
    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(password.path(), "sentinels-own\n").unwrap();
    let settings = "requirepass sentinels-own\n";
    let stale = OneSentinel::naming(former.port(), 3, settings);
    let newest = OneSentinel::naming(primary.port(), 7, settings);
    let sentinels = format!("127.0.0.1:{},127.0.0.1:{}", stale.port(), newest.port());
    let url =
        format!("redis://{sentinels}?sentinel=main&sentinel-password-file={}", password.path().display());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.mutex("jobs").acquire().await.unwrap();
    assert_eq!((former.cli(&["EXISTS", "jobs"]), primary.cli(&["EXISTS", "jobs"])), ("0".into(), "1".into()));
    assert_eq!(locks.list(None).await.unwrap().len(), 1);

    // A demoted primary that has none of the new one's locks must not pass for one where nothing is locked.
    let (direct, port) = (Locks::connect(&primary.url()).await.unwrap(), former.port().to_string());
    primary.cli(&["REPLICAOF", "127.0.0.1", &port]);
    for error in [
        direct.list(None).await.map(drop).unwrap_err().to_string(),
        Locks::connect(&primary.url()).await.map(drop).unwrap_err().to_string(),
        Locks::connect(&url).await.map(drop).unwrap_err().to_string(),
    ] {
        assert!(error.contains("is a replica"), "{error}");
    }
    drop(held);
}

#[tokio::test]
async fn an_unknown_primary_is_reported() {
    let servers = Sentinel::start();
    let error = Locks::connect(&format!("redis://{}?sentinel=other", servers.addresses())).await;
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains("`other`") && error.contains("knows no primary"), "{error}");
}

#[tokio::test]
async fn the_locks_of_a_cluster_are_spread_over_its_nodes() {
    let cluster = RedisCluster::with(3, &["--appendonly", "yes"]);
    // The URL names one node of the cluster, which is enough to find the others.
    let one = cluster.nodes()[0].port();
    let url = format!("redis://127.0.0.1:{one}?cluster=true&fencing=counter");
    let (alice, bob) =
        (Locks::connect_as(&url, "alice").await.unwrap(), Locks::connect_as(&url, "bob").await.unwrap());
    let mut held = Vec::new();
    for number in 0..12 {
        held.push(alice.mutex(format!("jobs/{number}")).ttl(3 * SECOND).acquire().await.unwrap());
        held.push(alice.semaphore(format!("{{slots}}/{number}"), 2).ttl(3 * SECOND).acquire().await.unwrap());
    }
    let spread = cluster.nodes().iter().filter(|node| node.cli(&["DBSIZE"]) != "0").count();
    assert_eq!(spread, 3);
    assert_eq!(bob.list(Some("jobs")).await.unwrap().len(), 12);
    assert!(bob.mutex("jobs/7").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let bob = bob.clone();
        async move { bob.mutex("jobs/7").acquire().await.unwrap().release().await.unwrap() }
    });
    until_waiting(&alice, "jobs/7", 1).await;
    // The holds on all nodes are renewed; the renewal of one of them is awaited here.
    let before = held[0].valid_until().unwrap();
    crate::support::until("renewed", async || (held[0].valid_until().unwrap() > before).then_some(())).await;
    for held in held {
        held.verify().await.unwrap();
        held.release().await.unwrap();
    }
    tokio::time::timeout(20 * SECOND, waiting).await.expect("woken by a message").unwrap();
}

/// The keys of a migrated slot are moved to the new node; calls to the old node are redirected.
#[tokio::test]
async fn a_lock_whose_slot_moves_is_kept() {
    let cluster = RedisCluster::start(3);
    let url = format!("redis://{}?cluster=true", cluster.addresses());
    let (alice, bob) =
        (Locks::connect_as(&url, "alice").await.unwrap(), Locks::connect_as(&url, "bob").await.unwrap());
    let held = alice.mutex("jobs").ttl(10 * SECOND).acquire().await.unwrap();
    let to = cluster.nodes().iter().position(|node| node.port() != cluster.node_of("jobs").port()).unwrap();
    cluster.move_slot_of("jobs", to);
    let short = bob.mutex("jobs").wait(Wait::For(3 * SECOND)).acquire().await;
    assert!(matches!(short, Err(lockkeeper::AcquireError::TimedOut { .. })), "{short:?}");
    let before = held.valid_until().unwrap();
    crate::support::until("renewed", async || (held.valid_until().unwrap() > before).then_some(())).await;
    held.release().await.unwrap();
    bob.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
}

/// A slot that stays open for a long time, as after an interrupted `redis-cli --cluster reshard`.
#[tokio::test]
async fn holds_are_made_and_renewed_while_their_slot_migrates() {
    let cluster = RedisCluster::start(3);
    let url = format!("redis://{}?cluster=true", cluster.addresses());
    let locks = Locks::connect(&url).await.unwrap();
    let to = cluster.nodes().iter().position(|node| node.port() != cluster.node_of("{s}/a").port()).unwrap();
    let stays = locks.mutex("{s}/a").ttl(3 * SECOND).acquire().await.unwrap();
    let moves = locks.mutex("{s}/b").ttl(3 * SECOND).acquire().await.unwrap();
    cluster.begin_to_move_slot_of("{s}", to, &["{s}/b"]);
    // A key that is not there yet is made at the new node.
    let new = locks.mutex("{s}/c").ttl(3 * SECOND).acquire().await.unwrap();
    let there = &cluster.nodes()[to];
    assert_eq!(there.cli(&["CLUSTER", "COUNTKEYSINSLOT", &there.cli(&["CLUSTER", "KEYSLOT", "{s}"])]), "2");
    let held = [stays, moves, new];
    for _ in 0..2 {
        let before: Vec<_> = held.iter().map(|held| held.valid_until().unwrap()).collect();
        until("all are renewed", async || {
            let renewed =
                held.iter().zip(&before).all(|(held, before)| held.valid_until().unwrap() > *before);
            renewed.then_some(())
        })
        .await;
    }
    for held in &held {
        assert_eq!(held.loss(), None);
    }
    // A permit needs several keys, which Redis serves again after the migration.
    let (refusals, mut refused) = tokio::sync::mpsc::unbounded_channel();
    let tell = move |error: &lockkeeper::BackendError| drop(refusals.send(error.to_string()));
    let permit = locks.semaphore("{s}/d", 1).on_refused(tell);
    let waiting = tokio::spawn(async move { permit.acquire().await.unwrap().release().await.unwrap() });
    let refusal = tokio::time::timeout(20 * SECOND, refused.recv()).await.expect("it is told").unwrap();
    let says_why = |text: &str| text.contains("TRYAGAIN") && text.contains("`redis-cli --cluster fix`");
    assert!(says_why(&refusal), "{refusal}");
    let [stays, moves, new] = held;
    // So does a release: of a key that has moved, and of one that has not.
    for held in [moves, stays] {
        let error = held.release().await.unwrap_err().to_string();
        assert!(says_why(&error), "{error}");
    }
    cluster.move_slot_of("{s}", to);
    waiting.await.unwrap();
    for held in [new] {
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_unconfirmed_release_in_a_cluster_says_why() {
    let cluster = RedisCluster::start(3);
    let url = format!("redis://{}?cluster=true", cluster.addresses());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.mutex("jobs").ttl(3 * SECOND).acquire().await.unwrap();
    let node = cluster.node_of("jobs");
    node.kill();
    let error = held.release().await.unwrap_err().to_string();
    assert!(error.contains("not confirmed") && error.contains(&node.port().to_string()), "{error}");
}

#[tokio::test]
async fn wrong_topologies_and_names_across_slots_are_refused() {
    let cluster = RedisCluster::start(3);
    let one = format!("redis://127.0.0.1:{}", cluster.nodes()[0].port());
    let locks = Locks::connect(&one).await.unwrap();
    let mut errors = Vec::new();
    for number in 0..20 {
        errors.extend(locks.mutex(format!("jobs/{number}")).acquire().await.map(drop).err());
    }
    assert!(!errors.is_empty(), "a third of the names is on this node, not all");
    assert!(errors.iter().all(|error| error.to_string().contains("?cluster=true")), "{errors:?}");
    let locks = Locks::connect(&format!("{one}?cluster=true")).await.unwrap();
    let error = locks.mutex("jobs}/1").acquire().await.map(drop).unwrap_err().to_string();
    assert!(error.contains("hash tag"), "{error}");
    let server = lockkeeper_rig::Redis::start();
    let error = Locks::connect(&format!("{}?cluster=true", server.url())).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("cluster"), "{error}");
}
