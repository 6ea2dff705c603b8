//! A Redis cluster.

use crate::redis::Redis;
use crate::wait::wait;

/// The hash slots that a cluster distributes among its nodes.
const SLOTS: usize = 16_384;

/// A Redis cluster of primaries without replicas; ended when dropped.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// A cluster of this many primaries, each with an equal share of the slots; returns once all nodes agree
    /// that it is complete.
    ///
    /// # Panics
    /// Redis is missing or doesn't start; or there are fewer than three nodes, too few to agree on anything.
    #[must_use]
    pub fn start(nodes: usize) -> Self {
        Self::with(nodes, &[])
    }

    /// Like [`RedisCluster::start`], with further settings for each node, as for [`Redis::with`].
    ///
    /// # Panics
    /// Those of [`RedisCluster::start`].
    #[must_use]
    pub fn with(nodes: usize, settings: &[&str]) -> Self {
        assert!(nodes >= 3, "a cluster needs 3 primaries to agree on anything: {nodes} are too few");
        let own = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let settings = [&own[..], settings].concat();
        let cluster = Self { nodes: (0..nodes).map(|_| Redis::node(&settings)).collect() };
        for (place, node) in cluster.nodes.iter().enumerate() {
            let (first, after) = (place * SLOTS / nodes, (place + 1) * SLOTS / nodes);
            node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(after - 1).to_string()]);
            // Distinct epochs: with equal ones the nodes would have to resolve a conflict first.
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
        for node in &cluster.nodes[1..] {
            cluster.nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &node.bus()]);
        }
        cluster.wait_until_whole();
        cluster
    }

    /// The cluster's nodes; each may be killed, stopped and started again on its own.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// `127.0.0.1:P,127.0.0.1:Q,…`
    #[must_use]
    pub fn addresses(&self) -> String {
        let addresses = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        addresses.collect::<Vec<_>>().join(",")
    }

    /// The node that stores `key`.
    ///
    /// # Panics
    /// The first running node does not answer, or knows no node for the slot of `key`.
    #[must_use]
    pub fn node_of(&self, key: &str) -> &Redis {
        let asked = self.nodes.iter().find(|node| node.pid().is_some()).expect("a node runs");
        let slot: usize = asked.cli(&["CLUSTER", "KEYSLOT", key]).parse().expect("a slot is a number");
        let has = |line: &str| {
            // `ID ADDRESS FLAGS PRIMARY PING PONG EPOCH STATE SLOTS…`
            line.split(' ').skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
            })
        };
        let listing = asked.cli(&["CLUSTER", "NODES"]);
        let line = listing.lines().find(|line| has(line)).expect("each slot has a node");
        let port = |node: &&Redis| line.contains(&format!("127.0.0.1:{}@", node.port()));
        self.nodes.iter().find(port).expect("each node is ours")
    }

    /// Moves the slot of `key`, with all its keys, to node `to`; the old node redirects clients.
    ///
    /// # Panics
    /// A node refuses.
    pub fn move_slot_of(&self, key: &str, to: usize) {
        let (from, to_node) = (self.node_of(key), &self.nodes[to]);
        if from.port() == to_node.port() {
            return;
        }
        let slot = from.cli(&["CLUSTER", "KEYSLOT", key]);
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
        self.begin_to_move_slot_of(key, to, &keys.lines().collect::<Vec<_>>());
        let to_id = to_node.cli(&["CLUSTER", "MYID"]);
        for node in [to_node, from] {
            node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }

    /// Begins to move the slot of `key` to node `to`, and moves these of its keys. The slot stays open: both
    /// nodes serve the keys that they have.
    ///
    /// # Panics
    /// A node refuses.
    pub fn begin_to_move_slot_of(&self, key: &str, to: usize, keys: &[&str]) {
        let (from, to) = (self.node_of(key), &self.nodes[to]);
        let slot = from.cli(&["CLUSTER", "KEYSLOT", key]);
        let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
        to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        for key in keys {
            from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "5000"]);
        }
    }

    /// Waits until every node reports that all slots are served and that it knows all other nodes, e.g. after
    /// one was started again.
    ///
    /// # Panics
    /// A node does not report that within a minute.
    pub fn wait_until_whole(&self) {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            let whole = wait(|| {
                let info = node.try_cli(&["CLUSTER", "INFO"])?;
                let is_whole = ["cluster_state:ok", &known, "cluster_slots_ok:16384"];
                if is_whole.iter().all(|words| info.contains(words)) { Ok(()) } else { Err(info) }
            });
            whole.unwrap_or_else(|why| panic!("the cluster does not become whole: {why}"));
        }
    }
}
