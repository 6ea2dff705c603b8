//! Clusters of three nodes on this machine, for `cargo xtask bench --cluster`.
//!
//! Responsible for the settings that the nodes of one system need to know each other, and for the check
//! whether a node is the leader. `cargo xtask services` does not start these clusters, since few users want
//! six more servers. The cluster of our own service is defined in the benchmark, beside its client.

use std::fs;

use crate::TaskResult;
use crate::services::catalogue::{ETCD, ServiceSpec, ZOOKEEPER, etcd, zookeeper_settings};
use crate::services::{ServiceLocation, probe};

/// Number of nodes: the fewest that tolerate one failure.
pub(crate) const NODES: usize = 3;

/// Three nodes of one system.
pub(crate) struct ThreeNodes {
    pub(crate) nodes: [ServiceSpec; NODES],
    /// Returns an error with the reason, unless the node at this location is the leader.
    pub(crate) leads: fn(&ServiceLocation) -> Result<(), String>,
}

const ETCD_PORTS: [u16; NODES] = [16520, 16530, 16540];
const ZOOKEEPER_PORTS: [u16; NODES] = [16550, 16560, 16570];

/// etcd with default settings: it detects a dead leader after one second or a little more.
pub(crate) const ETCD_CLUSTER: ThreeNodes = ThreeNodes {
    nodes: [
        etcd_node("etcd-1", ETCD_PORTS[0]),
        etcd_node("etcd-2", ETCD_PORTS[1]),
        etcd_node("etcd-3", ETCD_PORTS[2]),
    ],
    leads: |place| probe::ask(place.port, "GET /metrics HTTP/1.0\r\n\r\n", "\netcd_server_is_leader 1"),
};

/// ZooKeeper with the settings that its own documentation shows for several nodes.
pub(crate) const ZOOKEEPER_CLUSTER: ThreeNodes = ThreeNodes {
    nodes: [
        zookeeper_node("zookeeper-1", ZOOKEEPER_PORTS[0]),
        zookeeper_node("zookeeper-2", ZOOKEEPER_PORTS[1]),
        zookeeper_node("zookeeper-3", ZOOKEEPER_PORTS[2]),
    ],
    leads: |place| probe::ask(place.port, "srvr", "Mode: leader"),
};

const fn etcd_node(name: &'static str, port: u16) -> ServiceSpec {
    ServiceSpec { name, port, command: |place| etcd(place, &ETCD_PORTS), ..ETCD }
}

const fn zookeeper_node(name: &'static str, port: u16) -> ServiceSpec {
    ServiceSpec {
        name,
        port,
        prepare: prepare_zookeeper,
        // A node that knows no leader answers without a mode.
        ready: |place| probe::ask(place.port, "srvr", "Mode: "),
        ..ZOOKEEPER
    }
}

fn prepare_zookeeper(place: &ServiceLocation) -> TaskResult {
    let servers: String = ZOOKEEPER_PORTS
        .iter()
        .zip(1..)
        .map(|(port, node)| format!("server.{node}=127.0.0.1:{}:{}\n", port + 1, port + 2))
        .collect();
    zookeeper_settings(place, &format!("initLimit=10\nsyncLimit=5\n{servers}"))?;
    let file = place.data().join("myid");
    fs::write(&file, format!("{}\n", number(place, &ZOOKEEPER_PORTS)))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// The number of the node at `place`, counted from 1 in the order of `ports`.
pub(crate) fn number(place: &ServiceLocation, ports: &[u16; NODES]) -> usize {
    ports.iter().position(|port| *port == place.port).map_or(0, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::catalogue::SERVICES;

    const CLUSTERS: [&ThreeNodes; 2] = [&ETCD_CLUSTER, &ZOOKEEPER_CLUSTER];

    #[test]
    fn node_names_and_ports_are_unique() {
        let mut names: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
        let mut ports: Vec<u16> = SERVICES.iter().map(|service| service.port).collect();
        for node in CLUSTERS.iter().flat_map(|cluster| &cluster.nodes) {
            assert_eq!(node.port % 10, 0, "{}", node.name);
            names.push(node.name);
            ports.push(node.port);
        }
        let (name_count, port_count) = (names.len(), ports.len());
        names.sort_unstable();
        names.dedup();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!((names.len(), ports.len()), (name_count, port_count));
    }

    #[test]
    fn each_node_is_configured_with_its_id_and_its_peers() {
        for cluster in CLUSTERS {
            let mut told = Vec::new();
            for node in &cluster.nodes {
                let root = tempfile::tempdir().unwrap();
                let place = ServiceLocation { folder: root.path().join(node.name), port: node.port };
                fs::create_dir_all(place.data()).unwrap();
                (node.prepare)(&place).unwrap();
                let command = (node.command)(&place);
                let settings = fs::read_to_string(place.folder.join("zoo.cfg")).unwrap_or_default();
                let text = format!("{:?} {settings}", command.get_args().collect::<Vec<_>>());
                for other in &cluster.nodes {
                    let peer = format!("127.0.0.1:{}", other.port + 1);
                    assert!(text.contains(&peer), "{} does not know {}: {text}", node.name, other.name);
                }
                let id = fs::read_to_string(place.data().join("myid")).unwrap_or_default();
                told.push(text.replace(&*root.path().to_string_lossy(), "") + &id);
            }
            assert!(told[0] != told[1] && told[1] != told[2], "two nodes are told the same: {told:?}");
        }
    }

    #[test]
    fn no_node_is_ready_or_leads_before_it_is_started() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let place = ServiceLocation { folder: "/nowhere".into(), port };
        for cluster in CLUSTERS {
            assert!((cluster.leads)(&place).is_err());
            assert!(cluster.nodes.iter().all(|node| (node.ready)(&place).is_err()));
        }
    }

    #[test]
    fn nodes_are_numbered_from_one_by_port() {
        let place = |port| ServiceLocation { folder: "/nowhere".into(), port };
        assert_eq!(number(&place(ETCD_PORTS[0]), &ETCD_PORTS), 1);
        assert_eq!(number(&place(ETCD_PORTS[2]), &ETCD_PORTS), 3);
    }
}
