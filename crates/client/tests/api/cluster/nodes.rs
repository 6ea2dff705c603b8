//! Three nodes of the service in this process, on separate ports.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper::Locks;
use lockkeeper_rig::Port;
use lockkeeper_server::{Running, ServeError, ServerOptions};
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{Role, StatusRequest};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Far longer than any step takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Nodes {
    nodes: Vec<Node>,
    _data: TempDir,
}

struct Node {
    options: ServerOptions,
    /// Both ports stay reserved while the `Node` exists, so that no other process gets them.
    clients: Port,
    _peers: Port,
    serving: Option<(Running, Serving)>,
}

impl Nodes {
    /// A new cluster of three nodes.
    pub(crate) fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let ports: Vec<(Port, Port)> = (0..3).map(|_| (Port::free(), Port::free())).collect();
        let at = |port: &Port| format!("127.0.0.1:{}", port.number());
        let cluster: BTreeMap<u64, String> = (1..).zip(ports.iter().map(|(_, peers)| at(peers))).collect();
        let node = |(id, (clients, peers)): (u64, (Port, Port))| {
            let options = ServerOptions {
                listen: at(&clients),
                node: Some(id),
                cluster: cluster.clone(),
                segment_bytes: 1 << 20,
                ..ServerOptions::new(data.path().join(id.to_string()))
            };
            Node { options, clients, _peers: peers, serving: None }
        };
        let mut nodes: Vec<Node> = (1..).zip(ports).map(node).collect();
        // A new cluster is bootstrapped only once all its nodes have connected to each other, so all are
        // started before any is waited for.
        let begun: Vec<_> = nodes.iter().map(|node| begin(node.options.clone())).collect();
        for (node, (thread, ready)) in nodes.iter_mut().zip(begun) {
            let running = ready.recv_timeout(DEADLINE).expect("the node was to serve");
            node.serving = Some((running, thread));
        }
        Self { nodes, _data: data }
    }

    /// A node's address for clients.
    pub(crate) fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].clients.number())
    }

    /// A client with the address of one node only.
    pub(crate) async fn client(&self, node: usize) -> Locks {
        Locks::connect(&format!("lockkeeper://{}", self.address(node))).await.unwrap()
    }

    /// Calls to one node, and to no other.
    pub(crate) async fn calls(&self, node: usize) -> LockkeeperClient<Channel> {
        LockkeeperClient::new(self.channel(node).await)
    }

    /// A connection to one node.
    pub(crate) async fn channel(&self, node: usize) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address(node))).unwrap();
        endpoint.connect().await.unwrap()
    }

    /// The leader, once all running nodes agree.
    pub(crate) async fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < DEADLINE, "nobody leads");
            let mut views = Vec::new();
            for node in (0..self.nodes.len()).filter(|&node| self.nodes[node].serving.is_some()) {
                let status =
                    self.calls(node).await.status(StatusRequest { node: 0 }).await.unwrap().into_inner();
                views.push((status.leader, status.role() == Role::Leader && status.leader == status.node));
            }
            let leader = views[0].0;
            if leader != 0 && views.iter().all(|view| view.0 == leader) && views.iter().any(|view| view.1) {
                return usize::try_from(leader).unwrap() - 1;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// All nodes except `leader`.
    pub(crate) fn others(&self, leader: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&node| node != leader).collect()
    }

    /// Stops a node as SIGTERM does. Blocks until the node has ended.
    pub(crate) fn stop(&mut self, node: usize) {
        self.nodes[node].end();
    }
}

type Serving = JoinHandle<Result<(), ServeError>>;

/// Starts a node; the channel receives a value once it serves.
fn begin(options: ServerOptions) -> (Serving, mpsc::Receiver<Running>) {
    let (sender, ready) = mpsc::channel();
    let serve = move || lockkeeper_server::run(options, move |running| sender.send(running).unwrap());
    (std::thread::spawn(serve), ready)
}

impl Node {
    fn end(&mut self) {
        if let Some((running, thread)) = self.serving.take() {
            running.stop();
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // All nodes begin to stop before any is waited for: a stopping leader would otherwise transfer its
        // leadership to a node that is stopped next.
        let serving: Vec<_> = self.nodes.iter_mut().filter_map(|node| node.serving.take()).collect();
        serving.iter().for_each(|(running, _)| running.stop());
        for (_, thread) in serving {
            // If the test has failed, its own panic is more useful than the result of the shutdown.
            let _ = thread.join();
        }
    }
}
