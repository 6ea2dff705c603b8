//! Networks on which nodes or clients can't reach each other as usual: clients that reach only some nodes, as
//! behind NAT or a port-forward, and networks without IPv4.

use std::process::Command;

use lockkeeper_cli::exit::OK;
use lockkeeper_rig::Network;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::node::Node;
use crate::support::{CommandExt, Ended, Running, TestDir, wait_until};

/// The host of the clients; those before it have a node each.
const CLIENTS: usize = 3;

struct Reach {
    network: Network,
    test: TestDir,
    nodes: Vec<Option<Node>>,
}

impl Reach {
    fn founded() -> Self {
        let network = Network::around_this_thread(4);
        let test = TestDir::new();
        let addresses: Vec<String> = (0..CLIENTS).map(|host| network.address(host).to_string()).collect();
        let list: Vec<String> = (1..).zip(&addresses).map(|(id, at)| format!("{id}={at}:5626")).collect();
        let list = list.join(",");
        let begun: Vec<_> = (0..CLIENTS)
            .map(|host| {
                let (id, listen) = ((host + 1).to_string(), format!("{}:5625", addresses[host]));
                let options = ["--node", &id, "--listen", &listen, "--cluster", &list, "--insecure"];
                network.at(host, || test.begin(&format!("node{id}"), &options))
            })
            .collect();
        let nodes = begun.into_iter().map(|node| Some(node.ready())).collect();
        Self { network, test, nodes }
    }

    /// A command whose service is these nodes, counted from 0.
    fn command(&self, nodes: &[usize], line: &str) -> Command {
        let hosts: Vec<String> = nodes.iter().map(|host| self.network.address(*host).to_string()).collect();
        let mut command = self.test.bare(line.split_whitespace());
        command.env("LOCKKEEPER_URL", format!("lockkeeper://{}", hosts.join(",")));
        command
    }

    /// Runs a command on the clients' host.
    fn ran(&self, nodes: &[usize], line: &str) -> Ended {
        let mut command = self.command(nodes, line);
        self.network.at(CLIENTS, || command.ended())
    }

    fn started(&self, nodes: &[usize], line: &str) -> Running {
        let mut command = self.command(nodes, line);
        self.network.at(CLIENTS, || command.started())
    }

    /// The leader, counted from 0, as all nodes can be asked from the router.
    fn leader(&self) -> usize {
        let mut leader = 0;
        wait_until("a node leads, and hears the others", || {
            let asked = self.command(&[0, 1, 2], "cluster status --json").ended();
            let status: Value = serde_json::from_str(&asked.out).unwrap_or_default();
            leader = status["leader"].as_u64().unwrap_or_default();
            asked.code == i32::from(OK) && leader > 0
        });
        usize::try_from(leader).unwrap() - 1
    }

    fn shown(&self, name: &str) -> Value {
        let answer = self.command(&[0, 1, 2], &format!("show {name} --json")).ended();
        serde_json::from_str(&answer.out).unwrap_or_default()
    }

    fn relayed(&self, node: usize) -> u64 {
        let ended = self.command(&[node], "doctor --json").ended();
        let report: Value = serde_json::from_str(&ended.out).unwrap_or_default();
        let nodes = report["nodes"].as_array().cloned().unwrap_or_default();
        let own = nodes.iter().find(|it| it["node"] == node + 1);
        own.and_then(|it| it["relayed_streams"].as_u64()).unwrap_or_default()
    }
}

#[test]
fn client_that_reaches_only_followers_locks_through_them() {
    let mut reach = Reach::founded();
    let leader = reach.leader();
    let followers: Vec<usize> = (0..CLIENTS).filter(|node| *node != leader).collect();
    reach.network.cut(CLIENTS, leader);

    let ran = reach.ran(&followers[..1], "run --ttl 6s first -- echo it works");
    assert_eq!((ran.code, ran.out.as_str()), (0, "it works\n"), "{ran:?}");

    let status = reach.ran(&followers[..1], "cluster status");
    let words =
        format!("node {}, {}:5625, runs and can't be reached", leader + 1, reach.network.address(leader));
    assert!(status.code == 0 && status.out.contains(&words), "{status:?}");
    let doctor = reach.ran(&followers[..1], "doctor");
    assert!(doctor.code == 0 && doctor.out.contains("out of reach from here"), "{doctor:?}");

    // A waiter that gives up leaves the queue, over the relay.
    let holder = reach.started(&followers, "run --ttl 6s kept -- sleep 600");
    wait_until("it holds", || reach.shown("kept")["holds"][0]["token"].is_u64());
    let token = reach.shown("kept")["holds"][0]["token"].clone();
    let waiter = reach.started(&followers, "run --ttl 6s kept -- true");
    wait_until("it waits", || reach.shown("kept")["waiter_count"] == 1);
    waiter.signal(Signal::SIGINT);
    assert_eq!(waiter.ended().code, 130);
    wait_until("it has left", || reach.shown("kept")["waiter_count"] == 0);

    // The node that relays the holder's stream dies, without a sign to the leader that the client has gone.
    let relays = |node: usize| reach.relayed(node) > 0;
    let node = *followers.iter().find(|node| relays(**node)).expect("one relays the stream");
    reach.nodes[node].take().unwrap().kill();
    let other = *followers.iter().find(|it| **it != node).unwrap();
    wait_until("the other one relays it", || reach.relayed(other) > 0);
    assert_eq!(reach.shown("kept")["holds"][0]["token"], token);

    // The leadership moves to the node that the client reaches: the stream ends, and the hold does not.
    let moved = reach.command(&[leader], &format!("cluster transfer --to {}", other + 1)).ended();
    assert_eq!(moved.code, 0, "{moved:?}");
    wait_until("the client is attached at the new leader", || {
        let sessions = reach.command(&[other], "sessions --json").ended();
        let sessions: Value = serde_json::from_str(&sessions.out).unwrap_or_default();
        sessions.as_array().is_some_and(|all| all.len() == 1 && all[0]["attached"] == true)
    });
    assert_eq!(reach.shown("kept")["holds"][0]["token"], token);
    assert_eq!(reach.relayed(other), 0, "it leads");
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.ended().code, 143);
    wait_until("it is released", || reach.shown("kept")["holds"].as_array().is_none_or(Vec::is_empty));
}

#[test]
fn cluster_and_clients_work_without_ipv4() {
    // A host without links, whose only address with IPv4 is 127.0.0.1.
    let _network = Network::around_this_thread(0);
    let addresses = [1, 2, 3].map(|node| format!("fd77::{node}"));
    for address in &addresses {
        let added =
            Command::new("ip").args(["address", "add", &format!("{address}/128"), "dev", "lo"]).ended();
        assert_eq!(added.code, 0, "{added:?}");
    }
    let test = TestDir::new();
    let list: Vec<String> = (1..).zip(&addresses).map(|(id, at)| format!("{id}=[{at}]:5626")).collect();
    let list = list.join(",");
    let begun = [1, 2, 3].map(|id| {
        let (listen, node) = (format!("[{}]:5625", addresses[id - 1]), id.to_string());
        let options = ["--node", &node, "--listen", &listen, "--cluster", &list, "--insecure"];
        test.begin(&format!("node{id}"), &[&options[..], &["--http-listen", "[::1]:0"]].concat())
    });
    let nodes = begun.map(crate::node::Starting::ready);
    let hosts: Vec<String> = addresses.iter().map(|address| format!("[{address}]")).collect();
    let test = test.over(&format!("lockkeeper://{}", hosts.join(",")));
    let ran = test.ran("run first -- echo it works");
    assert_eq!((ran.code, ran.out.as_str()), (0, "it works\n"), "{ran:?}");
    wait_until("all nodes answer, at their addresses", || {
        let status = test.ran("cluster status");
        status.code == i32::from(OK) && hosts.iter().all(|host| status.out.contains(&format!("{host}:5625")))
    });
    let url = nodes[0].http();
    assert!(url.contains("[::1]"), "{url}");
    let page =
        Command::new("curl").args(["--silent", "--fail", "--globoff", &format!("{url}/v1/locks")]).ended();
    assert_eq!(page.code, 0, "{page:?}");

    // One node on loopback.
    let alone = test.begin("alone", &["--listen", "[::1]:5625"]).ready();
    let ran = test.over(&alone.url()).ran("run first -- echo it works");
    assert_eq!((ran.code, ran.out.as_str()), (0, "it works\n"), "{ran:?}");
}
