//! Contenders of other clients beside ours.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{client, raw, until, until_waiting};

/// Creates a contender's node as another client does. Returns its path.
async fn contend(raw: &Client, folder: &str, prefix: &str) -> String {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = format!("{folder}/{prefix}");
    let (_, sequence) = raw.create(&prefix, b"10.0.0.7", &options).await.unwrap();
    format!("{prefix}{sequence}")
}

/// Ours waits for a contender that was there first, holding or waiting, and is not disturbed by a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_of_other_clients_are_waited_for_in_order() {
    let server = ZooKeeper::start();
    let locks = client(&server, "/locks?layout=plain").await;
    let raw = raw(&server).await;
    let kazoo = "1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed__lock__";
    let kazoo_reader = "1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed__rlock__";
    let curator = "_c_1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed-lock-";
    let curator_reader = "_c_1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed-__READ__";
    for (name, prefix, is_reader) in
        [("a", kazoo, false), ("b", kazoo_reader, true), ("c", curator, false), ("d", curator_reader, true)]
    {
        let folder = format!("/locks/{name}");
        let options = CreateMode::Container.with_acls(Acls::anyone_all());
        raw.mkdir(&folder, &options).await.unwrap();
        let holder = contend(&raw, &folder, prefix).await;
        let waiter = contend(&raw, &folder, prefix).await;
        assert!(locks.mutex(name).try_acquire().await.unwrap().is_none(), "{prefix}");
        let lock = locks.mutex(name);
        let ours = tokio::spawn(async move { lock.acquire().await.unwrap() });
        // Readers hold together.
        until_waiting(&locks, name, if is_reader { 1 } else { 2 }).await;
        let later = contend(&raw, &folder, prefix).await;
        raw.delete(&holder, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!ours.is_finished(), "{prefix}");
        raw.delete(&waiter, None).await.unwrap();
        let ours = ours.await.unwrap();
        assert!(locks.inspect(name).await.unwrap().holds[0].label == "ours");
        raw.delete(&later, None).await.unwrap();
        ours.release().await.unwrap();
    }
}

/// A `Lock` of kazoo creates its path once, and fails if it is gone later. (kazoo itself is tested in the
/// library's tests.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_of_kazoos_recipe_stays() {
    let server = ZooKeeper::start();
    let raw = raw(&server).await;
    for (query, name) in [("/kept?layout=plain&recipe=kazoo", "a/b"), ("/removed?layout=plain", "a/b")] {
        let locks = client(&server, query).await;
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
    }
    // The last of three removals, of which the first would include any container below `/kept`.
    until("the removal of the containers", async || {
        raw.check_stat("/removed").await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(raw.check_stat("/kept/a/b").await.unwrap().is_some());
}

/// `doctor` warns of a lock that is wanted by clients of Curator's kind and of kazoo's, and of no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_with_nodes_of_two_libraries_are_found() {
    let server = ZooKeeper::start();
    let curators = client(&server, "/locks?layout=plain").await;
    let kazoos = client(&server, "/locks?layout=plain&recipe=kazoo").await;
    let warnings = async |locks: &Locks| -> Vec<String> {
        let found = locks.findings().await.unwrap().into_iter();
        found.filter(|finding| finding.spoils).map(|finding| finding.says).collect()
    };
    let beside =
        [curators.rw("a").read().acquire().await.unwrap(), kazoos.mutex("b/a").acquire().await.unwrap()];
    let held = curators.mutex("b").acquire().await.unwrap();
    assert!(warnings(&curators).await.is_empty());
    // Ours wait for each other, whatever their recipes.
    assert!(kazoos.mutex("b").try_acquire().await.unwrap().is_none());
    let lock = kazoos.mutex("b");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_waiting(&curators, "b", 1).await;
    for locks in [&curators, &kazoos] {
        let [warning] = &warnings(locks).await[..] else { panic!("one warning") };
        assert!(warning.starts_with("`b`: nodes") && warning.contains("`recipe=kazoo`"), "{warning}");
    }
    held.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert!(warnings(&kazoos).await.is_empty());
    for held in beside {
        held.release().await.unwrap();
    }
}

/// Curator's `Revoker` writes a mark into the holder's node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curators_revocation_ends_a_hold() {
    let server = ZooKeeper::start();
    let locks = client(&server, "").await;
    let held = locks.mutex("x").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    let raw = raw(&server).await;
    let [node] = &raw.list_children("/lockkeeper/x").await.unwrap()[..] else { panic!("one node") };
    raw.set_data(&format!("/lockkeeper/x/{node}"), b"__REVOKE__", None).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), held.lost().cancelled()).await.expect("told at once");
    let _ = held.release().await;
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
}
