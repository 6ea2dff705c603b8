//! Contenders of other clients beside ours.

use std::time::Duration;

use lockkeeper_rig::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{client, raw, until_waiting};

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
