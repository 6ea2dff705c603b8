//! `lockkeeper:`, real processes of the service with one or three nodes, through proxies for each client.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use lockkeeper::{BreakOrder, HolderState, LockName, Locks};
use lockkeeper_contract::{Subject, until};
use lockkeeper_rig::Port;
use lockkeeper_server::ServerOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use lockkeeper_rig::Faults;

/// Environment variable that makes a copy of this test binary serve until it is killed: `directory listen`,
/// and for three nodes also `node cluster`.
const SERVE: &str = "LOCKKEEPER_CONTRACT_SERVE";

struct Service {
    /// Dropped, and thereby killed, before their data directory.
    nodes: Mutex<Vec<Node>>,
    directory: TempDir,
    faults: Faults,
    ports: Vec<NodePorts>,
}

/// A node's ports, which stay the same when it is restarted.
struct NodePorts {
    clients: Port,
    peers: Port,
}

impl NodePorts {
    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.clients.number()).into()
    }
}

/// A process; killed when dropped.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    /// A single node.
    fn new() -> Self {
        Self::of(1)
    }

    /// Three nodes; clients get the address of a follower.
    fn three() -> Self {
        Self::of(3)
    }

    fn of(nodes: usize) -> Self {
        let ports = |_| NodePorts { clients: Port::free(), peers: Port::free() };
        let service = Self {
            directory: tempfile::tempdir().unwrap(),
            faults: Faults::default(),
            ports: (0..nodes).map(ports).collect(),
            nodes: Mutex::default(),
        };
        service.start();
        service
    }

    fn kill(&self) {
        self.nodes.lock().unwrap().clear();
    }

    /// Starts all nodes and waits until each of them serves.
    fn start(&self) {
        let mut nodes: Vec<Node> = (0..self.ports.len()).map(|node| self.start_node(node)).collect();
        for node in &mut nodes {
            let mut lines = BufReader::new(node.0.stdout.take().unwrap()).lines().map_while(Result::ok);
            lines.find(|line| line.contains("serving at ")).expect("the service ended without serving");
            // The test harness of the child process goes on printing lines. If the pipe were closed or full,
            // it would fail or block.
            std::thread::spawn(move || lines.for_each(drop));
        }
        *self.nodes.lock().unwrap() = nodes;
    }

    fn start_node(&self, node: usize) -> Node {
        let data = self.directory.path().join(format!("node{node}"));
        let mut order = format!("{} {}", data.display(), self.ports[node].address());
        if self.ports.len() > 1 {
            let peers = self.ports.iter().zip(1..);
            let peers = peers.map(|(ports, id)| format!("{id}=127.0.0.1:{}", ports.peers.number()));
            order = format!("{order} {} {}", node + 1, peers.collect::<Vec<_>>().join(","));
        }
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "service::the_process_that_serves", "--nocapture"])
            .env(SERVE, order)
            .stdout(Stdio::piped())
            .spawn();
        Node(process.unwrap())
    }

    fn signal(&self, signal: Signal) {
        for node in self.nodes.lock().unwrap().iter() {
            kill(Pid::from_raw(i32::try_from(node.0.id()).unwrap()), signal).unwrap();
        }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(NodePorts::address).collect()
    }

    /// A client without a proxy.
    async fn operator(&self) -> Locks {
        let addresses: Vec<String> = self.addresses().iter().map(SocketAddr::to_string).collect();
        Locks::connect_as(&format!("lockkeeper://{}", addresses.join(",")), "operator").await.unwrap()
    }

    /// A follower, or the only node.
    async fn follower(&self) -> usize {
        until("a node that follows", async || {
            for (node, address) in self.addresses().into_iter().enumerate() {
                let asked = Locks::connect(&format!("lockkeeper://{address}")).await.unwrap();
                let status = asked.status().await.unwrap();
                if status.leader.is_some_and(|leader| leader != status.node) || self.ports.len() == 1 {
                    return Some(node);
                }
            }
            None
        })
        .await
    }
}

impl Subject for Service {
    fn scheme(&self) -> &'static str {
        "lockkeeper"
    }

    async fn client(&self, label: &str) -> Locks {
        let proxy = self.faults.proxies(label, &self.addresses())[self.follower().await];
        Locks::connect_as(&format!("lockkeeper://{proxy}"), label).await.unwrap()
    }

    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let label = format!("crashes with {name}");
        let ttl = Duration::from_secs(2);
        let client = self.client(&label).await;
        let lock = client.mutex(name).ttl(ttl).keep_closed(keep_closed).lock_delay(lock_delay);
        let held = lock.acquire().await.unwrap();
        self.faults.cut_off(&label);
        let operator = self.operator().await;
        until("the session is over", async || {
            let info = operator.inspect(name).await.unwrap();
            (!info.holds.iter().any(|holder| holder.state == HolderState::Held)).then_some(())
        })
        .await;
        drop(held);
    }

    /// By an operator's break, to which the holder responds. Waiting for the ttl of each hold instead would
    /// make the suite take minutes.
    async fn take_away(&self, _label: &str, name: &str) {
        let operator = self.operator().await;
        let name: LockName = name.parse().unwrap();
        let token = operator.inspect(&name).await.unwrap().holds[0].token.unwrap();
        let order =
            BreakOrder { name, token, reason: "taken away".into(), by: "the suite".into(), now: false };
        operator.break_hold(order).await.unwrap();
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    /// A lost call also ends its connection. The client resends the call on its next connection, so callers
    /// see no failure.
    fn lose_calls(&self, count: u32) -> bool {
        self.faults.lose_calls(count);
        false
    }

    fn stall(&self, duration: Duration) -> bool {
        self.signal(Signal::SIGSTOP);
        std::thread::sleep(duration);
        self.signal(Signal::SIGCONT);
        true
    }

    async fn restart(&self) {
        self.kill();
        self.start();
    }

    async fn wipe(&self) {
        self.kill();
        for data in std::fs::read_dir(self.directory.path()).unwrap() {
            std::fs::remove_dir_all(data.unwrap().path()).unwrap();
        }
        self.start();
    }
}

/// Main function of the service process; does nothing unless `SERVE` is set.
#[test]
fn the_process_that_serves() {
    let Ok(order) = std::env::var(SERVE) else { return };
    let mut order = order.split(' ');
    let mut options = ServerOptions::new(order.next().expect("a directory"));
    options.listen = order.next().expect("an address").to_owned();
    if let (Some(node), Some(cluster)) = (order.next(), order.next()) {
        let peer =
            |text: &str| text.split_once('=').map(|(id, address)| (id.parse().unwrap(), address.to_owned()));
        options.node = Some(node.parse().unwrap());
        options.cluster = cluster.split(',').filter_map(peer).collect();
    }
    let served = lockkeeper_server::run(options, |running| {
        let mut out = std::io::stdout();
        writeln!(out, "serving at {}", running.address()).and_then(|()| out.flush()).unwrap();
    });
    served.unwrap();
}

lockkeeper_contract::contract! {
    one_node => Service::new(), page "../../docs/backends/lockkeeper.md" column 1;
    three_nodes => Service::three(), page "../../docs/backends/lockkeeper.md" column 1;
}
