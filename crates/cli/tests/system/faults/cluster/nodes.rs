//! Three `serve` processes that form one cluster, on fixed ports.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Fenced, Locks, ServiceStatus};
use lockkeeper_rig::{Network, Port};

use crate::faults::server::{PATIENCE, Server, answer};

/// The indices of all nodes.
pub(crate) const ALL: [usize; 3] = [0, 1, 2];

/// The default options of nodes.
pub(crate) const OPTIONS: &str = "--segment-bytes 1048576";

pub(crate) struct Nodes {
    /// In the order of their node ids; index 0 is node 1.
    pub(crate) nodes: Vec<Server>,
    addresses: Vec<String>,
    /// The nodes' addresses for each other.
    pub(crate) peers: Vec<String>,
    /// Kept until the test ends, so that the ports stay reserved.
    ports: Vec<Port>,
}

impl Nodes {
    /// Bootstraps a new cluster, and waits until it serves.
    pub(crate) fn founded() -> Self {
        Self::founded_with(OPTIONS, |_, _| {})
    }

    /// As `founded`, with other options; `change` modifies each node before its start, with its index from 0.
    pub(crate) fn founded_with(options: &str, change: impl FnMut(usize, &mut Server)) -> Self {
        let ports: Vec<Port> = (0..6).map(|_| Port::free()).collect();
        let mut addresses: Vec<String> =
            ports.iter().map(|port| format!("127.0.0.1:{}", port.number())).collect();
        let peers = addresses.split_off(ALL.len());
        Self::founded_at(addresses, peers, ports, options, change)
    }

    /// As `founded`, with each node on its own host of a network.
    pub(crate) fn founded_on(network: &Arc<Network>) -> Self {
        let [addresses, peers] =
            [5625, 5626].map(|port| ALL.map(|node| format!("{}:{port}", network.address(node))).to_vec());
        let options = format!("{OPTIONS} --insecure");
        Self::founded_at(addresses, peers, Vec::new(), &options, |node, server| server.at(network, node))
    }

    fn founded_at(
        addresses: Vec<String>,
        peers: Vec<String>,
        ports: Vec<Port>,
        options: &str,
        mut change: impl FnMut(usize, &mut Server),
    ) -> Self {
        let list: Vec<String> = (1..).zip(&peers).map(|(id, at): (u64, _)| format!("{id}={at}")).collect();
        let node = |(node, address): (usize, &String)| {
            let id = node + 1;
            let mut server = Server::new(&format!("--node {id} --cluster {} {options}", list.join(",")));
            server.listens(address.clone());
            change(node, &mut server);
            server
        };
        let mut nodes: Vec<Server> = addresses.iter().enumerate().map(node).collect();
        // All are started first: no node serves before all have connected to each other.
        nodes.iter_mut().for_each(Server::begin);
        nodes.iter_mut().for_each(Server::serves);
        Self { nodes, addresses, peers, ports }
    }

    /// Adds another node by the two commands that operators use; it is a voter afterwards.
    pub(crate) fn add(&mut self) {
        let ports = [Port::free(), Port::free()];
        let [address, peer] = [0, 1].map(|port: usize| format!("127.0.0.1:{}", ports[port].number()));
        self.ports.extend(ports);
        let id = self.nodes.len() + 1;
        let mut server =
            Server::new(&format!("--node {id} --join {} --peer-listen {peer} {OPTIONS}", self.peers[1]));
        server.listens(address.clone());
        server.begin();
        wait_for_connection(&peer);
        lockkeeper(&["cluster", "add", &format!("{id}={peer}"), "--locks", &self.url()]);
        server.serves();
        self.nodes.push(server);
        self.addresses.push(address);
        self.peers.push(peer);
    }

    /// The cluster's URL, with the addresses of all nodes.
    pub(crate) fn url(&self) -> String {
        format!("lockkeeper://{}", self.addresses.join(","))
    }

    /// A client with the addresses of all nodes.
    pub(crate) async fn client(&self, label: &str) -> Locks<Fenced> {
        Locks::connect_as(&self.url(), label).await.unwrap().fenced().unwrap()
    }

    /// A node's own status; `None` if it does not answer now.
    pub(crate) async fn status(&self, node: usize) -> Option<ServiceStatus> {
        status_at(&self.nodes[node].url(), node).await
    }

    /// The index of the leader, once the nodes `of` agree that one of them leads.
    pub(crate) async fn leader(&self, of: &[usize]) -> usize {
        let mut said = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "they do not agree on a leader, node, term, leader: {said:?}");
            said.clear();
            for &node in of {
                said.push(self.status(node).await.map(|it| (it.node, it.term, it.leader)));
            }
            let leader = said[0].and_then(|(_, _, leader)| leader).map(|leader| leader as usize - 1);
            let agrees = |it: &Option<(_, _, Option<u64>)>| {
                it.and_then(|(_, _, leader)| leader).map(|leader| leader as usize - 1) == leader
            };
            if let Some(leader) = leader.filter(|leader| of.contains(leader))
                && said.iter().all(agrees)
            {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a node has applied all entries that the leader has applied by now.
    pub(crate) async fn catches_up(&self, node: usize) {
        let leader = self.leader(&ALL).await;
        let applied = answer("the leader answers", async || self.status(leader).await).await.applied;
        answer("it has caught up", async || {
            self.status(node).await.filter(|status| status.applied >= applied)
        })
        .await;
    }
}

/// Waits until a started node accepts connections at this address.
fn wait_for_connection(address: &str) {
    let since = Instant::now();
    while let Err(error) = std::net::TcpStream::connect(address) {
        assert!(since.elapsed() < PATIENCE, "nothing listens at {address}: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// See [`Nodes::status`].
pub(crate) async fn status_at(url: &str, node: usize) -> Option<ServiceStatus> {
    // Uses a client of its own that has only this node's address and learns no others.
    let locks = Locks::connect_as(url, "status").await.ok()?;
    locks.status().await.ok().filter(|status| status.node == node as u64 + 1)
}

/// The indices of the other two original nodes.
pub(crate) fn others(node: usize) -> [usize; 2] {
    [(node + 1) % ALL.len(), (node + 2) % ALL.len()]
}

/// Runs the command, which must succeed; returns its output.
pub(crate) fn lockkeeper(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    let output = command.args(args).env_remove("LOCKKEEPER_URL").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {} {}", output.status, text(&output.stderr));
    text(&output.stdout)
}
