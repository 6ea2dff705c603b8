//! The fence in a cluster: the common suite through a cluster connection, and keys in other slots.

use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_fence::redis::{FenceScript, RedisFence, RedisFenceError};
use lockkeeper_fence::{Marks, Refused, Section};
use lockkeeper_rig::RedisCluster;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;

use super::{connected, exclusive, refusal, set};
use crate::suite::{Subject, token};

crate::suite::contract!(whole => Tagged);

async fn cluster_connection(cluster: &RedisCluster) -> ClusterConnection {
    let urls: Vec<_> = cluster.nodes().iter().map(lockkeeper_rig::Redis::url).collect();
    ClusterClient::new(urls).expect("a client").get_async_connection().await.expect("a connection")
}

async fn fence(cluster: &RedisCluster) -> RedisFence<ClusterConnection> {
    RedisFence::connect(cluster_connection(cluster).await).await.expect("a fence")
}

/// A user of a number whose key has the hash tag of its resource. The resources are distributed over the
/// cluster.
struct Tagged {
    fence: RedisFence<ClusterConnection>,
    connection: ClusterConnection,
    name: String,
}

impl Tagged {
    fn key(&self) -> String {
        format!("{{{}}}:value", self.name)
    }
}

impl Subject for Tagged {
    type World = (RedisCluster, ClusterConnection, AtomicU64);

    async fn world() -> Self::World {
        let cluster = RedisCluster::start(3);
        let connection = cluster_connection(&cluster).await;
        (cluster, connection, AtomicU64::new(0))
    }

    async fn fresh((_, connection, made): &Self::World) -> Self {
        let fence = RedisFence::connect(connection.clone()).await.expect("a fence");
        let name = format!("number:{}", made.fetch_add(1, Ordering::SeqCst));
        Self { fence, connection: connection.clone(), name }
    }

    async fn another(&self) -> Self {
        let (fence, connection) = (self.fence.clone(), self.connection.clone());
        Self { fence, connection, name: self.name.clone() }
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        refusal(self.fence.enter(&self.name, section).await)
    }

    async fn read(&self) -> u64 {
        let mut connection = self.connection.clone();
        let number: Option<u64> =
            redis::cmd("GET").arg(self.key()).query_async(&mut connection).await.expect("read");
        number.unwrap_or_default()
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        refusal(self.fence.write(&self.name, section, &[set(&self.key(), number)]).await.map(drop))
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        refusal(self.fence.check_once(&self.name, section, &[]).await.map(drop))
    }

    async fn marks(&self) -> Marks {
        refusal(self.fence.marks(&self.name).await).expect("no refusal")
    }
}

#[tokio::test]
async fn keys_in_other_slots_are_refused_with_the_required_tag() {
    let cluster = RedisCluster::start(3);
    let fence = fence(&cluster).await;
    for (resource, key, tag) in
        [("stock", "stock:1", "{stock}"), ("{user:1}:cart", "cart", "{user:1}"), ("a}b", "x", "{a}")]
    {
        let here = format!("{tag}:1");
        if resource != "a}b" {
            fence.write(resource, exclusive(5), &[set(resource, 1), set(&here, 1)]).await.expect("one slot");
        }
        let error = fence.write(resource, exclusive(6), &[set(&here, 2), set(key, 2)]).await.expect_err(key);
        assert!(matches!(&error, RedisFenceError::CrossSlot { key: told, .. } if told == key), "{error:?}");
        assert!(error.to_string().contains(tag), "{error}");
        let script = FenceScript::new("redis.call('SET', KEYS[1], 2)");
        let error = fence.write_script(resource, exclusive(6), &script, &[key], "").await.expect_err(key);
        assert!(matches!(error, RedisFenceError::CrossSlot { .. }), "{error:?}");
        let raised = fence.marks(resource).await.expect("marks").base.any;
        assert!(raised < Some(token(6)), "nothing was sent");
    }
}

#[tokio::test]
async fn migrated_slot_keeps_its_marks() {
    let cluster = RedisCluster::start(3);
    let fence = fence(&cluster).await;
    for (round, to) in [0, 1, 2, 0].into_iter().enumerate() {
        let value = 5 + round as u64;
        fence.write("stock", exclusive(value), &[set("stock", value)]).await.expect("higher");
        cluster.move_slot_of("stock", to);
        let late = fence.enter("stock", exclusive(value - 1)).await;
        assert!(matches!(late, Err(RedisFenceError::Refused(Refused::Stale { .. }))), "{late:?}");
    }
}

#[tokio::test]
async fn one_evicting_node_is_enough_for_a_refusal() {
    let cluster = RedisCluster::start(3);
    cluster.nodes()[2].cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = RedisFence::connect(cluster_connection(&cluster).await).await.expect_err("one evicts");
    assert!(matches!(error, RedisFenceError::Evicts { .. }), "{error:?}");
}

#[tokio::test]
async fn single_node_connection_to_a_cluster_gets_a_clear_error() {
    let cluster = RedisCluster::start(3);
    let at = |name: &str| cluster.node_of(name).port();
    let (here, there) = ("a", ["b", "c", "d", "e", "f"].into_iter().find(|name| at(name) != at("a")));
    let fence = RedisFence::connect(connected(&cluster.node_of(here).url()).await).await.expect("a fence");
    fence.enter(here, exclusive(5)).await.expect("it is here");
    let error = fence.enter(there.expect("three nodes"), exclusive(5)).await.expect_err("it is elsewhere");
    assert!(error.to_string().contains("a connection for clusters"), "{error}");
}
