//! `cluster`: adds real nodes, queries their status, transfers the leadership, and removes nodes.

use std::time::Duration;

use lockkeeper_cli::exit::{CONFIG, OK, USAGE};
use lockkeeper_rig::Port;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::node::{Node, Starting};
use crate::support::{CommandExt, Ended, TestDir, wait_until};

/// A node's address for other nodes, on this port.
fn peers(port: &Port) -> String {
    format!("127.0.0.1:{}", port.number())
}

/// A cluster of one node that other nodes can join, and a test directory whose commands use its locks.
fn first(port: &Port, more: &[&str]) -> (TestDir, Node) {
    let test = TestDir::new();
    let address = peers(port);
    let listen = test.address();
    let options = [&["--listen", &listen, "--node", "1", "--peer-listen", &address], more].concat();
    let node = test.begin("node1", &options).ready();
    let url = node.url();
    (test.over(&url), node)
}

impl TestDir {
    /// Starts a node that waits to be added to the cluster. `at` is its own port for peers, `to` that of a
    /// member.
    fn joins(&self, node: u64, at: &Port, to: &Port) -> Starting {
        let (id, at, to, listen) = (node.to_string(), peers(at), peers(to), self.address());
        let options = [
            "--listen",
            &listen,
            "--node",
            &id,
            "--peer-listen",
            &at,
            "--join",
            &to,
            "--segment-bytes",
            "1048576",
        ];
        let joins = self.begin(&format!("node{node}"), &options);
        wait_until("it has asked to be let in", || joins.log().contains("is not added yet"));
        joins
    }

    /// Starts a node and adds it to the cluster; it is a voter afterwards.
    fn grown(&self, node: u64, at: &Port, to: &Port) -> Node {
        let joins = self.joins(node, at, to);
        let added = self.ran(&format!("cluster add {node}={}", peers(at)));
        assert_eq!((added.code, added.err.as_str()), (i32::from(OK), ""), "{added:?}\n{}", joins.log());
        assert_eq!(added.out, format!("node {node} has caught up, and votes\n"));
        joins.ready()
    }

    /// The status, once every node answers the leader: a node that has just started may not be connected yet.
    fn status(&self) -> Value {
        let mut status = Value::Null;
        wait_until("all nodes answer", || {
            let ended = self.ran("cluster status --json");
            status = serde_json::from_str(&ended.out).unwrap_or_default();
            ended.code == i32::from(OK)
        });
        status
    }
}

/// The nodes' ids and roles.
fn parts(status: &Value) -> Vec<(u64, &str)> {
    let nodes = status["nodes"].as_array().unwrap();
    nodes.iter().map(|node| (node["node"].as_u64().unwrap(), node["part"].as_str().unwrap())).collect()
}

#[track_caller]
fn is_refused(ended: &Ended, words: &[&str]) {
    ended.is_one_line(USAGE, words);
}

#[test]
fn cluster_grows_from_one_node_to_three_and_the_first_one_is_removed() {
    let ports: Vec<Port> = (0..3).map(|_| Port::free()).collect();
    let (test, one) = first(&ports[0], &["--segment-bytes", "1048576"]);
    let holder = test.holder("kept", &["--ttl", "12s"]);
    let two = test.grown(2, &ports[1], &ports[0]);
    let three = test.grown(3, &ports[2], &ports[1]);
    let status = test.status();
    assert_eq!(parts(&status), [(1, "voter"), (2, "voter"), (3, "voter")]);
    assert_eq!((&status["leader"], &status["removed"]), (&Value::from(1), &Value::from(Vec::<u64>::new())));
    // Followers have the sessions in their tables, too.
    wait_until("every node has the holder's session", || {
        let nodes = test.ran("doctor --json").json()["nodes"].clone();
        nodes.as_array().is_some_and(|nodes| {
            nodes.len() == 3 && nodes.iter().all(|node| node["sessions"].as_u64() >= Some(1))
        })
    });

    let to_three = test.ran("cluster transfer --to 3");
    assert_eq!((to_three.code, to_three.out.as_str()), (i32::from(OK), "node 3 leads\n"), "{to_three:?}");
    // The request is sent to node 1, which forwards it to the leader. The removed node is not the leader.
    let removed = test.ran("cluster remove 1");
    assert_eq!(removed.code, i32::from(OK), "{removed:?}");
    let ended = one.ended();
    assert_eq!(ended.code, i32::from(CONFIG), "{ended:?}");
    assert!(ended.err.contains("node 1 was removed from the cluster"), "{ended:?}");

    let test = test.over(&format!("{},{}", two.url(), three.listening()));
    let status = test.status();
    assert_eq!(parts(&status), [(2, "voter"), (3, "voter")]);
    assert_eq!(status["removed"], Value::from(vec![1]));
    assert_eq!(test.shown("kept")["holds"][0]["token"], holder.token);
    let again = test.ran(&format!("cluster add 1={}", peers(&ports[0])));
    is_refused(&again, &["node 1 was removed", "never used", "`--node 4`"]);
    let gone = test.ran("cluster remove 1");
    assert_eq!(gone.code, i32::from(OK), "asked once more: {gone:?}");
}

/// A node knows the client addresses of members that joined later, even if they are only in its snapshot.
#[test]
fn restarted_node_forwards_calls_to_a_leader_that_joined_later() {
    let ports: Vec<Port> = (0..2).map(|_| Port::free()).collect();
    let (test, one) = first(&ports[0], &[]);
    let two = test.grown(2, &ports[1], &ports[0]);
    let both = format!("{},{}", one.url(), two.listening());
    let backup = test.ran("backup locks --json");
    assert_eq!(backup.code, i32::from(OK), "{backup:?}");
    let listen = one.listening();
    one.kill();
    let one = test.begin("node1", &["--listen", &listen, "--peer-listen", &peers(&ports[0])]).ready();
    let test = test.over(&both);
    let to_two = test.ran("cluster transfer --to 2");
    assert_eq!((to_two.code, to_two.out.as_str()), (i32::from(OK), "node 2 leads\n"), "{to_two:?}");
    let test = test.over(&one.url());
    for line in ["ls --json", "set-limit gpu 4"] {
        let passed = test.ran(line);
        assert_eq!((passed.code, passed.err.as_str()), (i32::from(OK), ""), "{line}: {passed:?}");
    }
}

/// A leader that is to be removed transfers the leadership first. The new leader gets the forwarded request
/// and completes the removal.
#[test]
fn leader_can_be_removed() {
    let ports: Vec<Port> = (0..3).map(|_| Port::free()).collect();
    let (test, one) = first(&ports[0], &["--segment-bytes", "1048576"]);
    let two = test.grown(2, &ports[1], &ports[0]);
    let three = test.grown(3, &ports[2], &ports[0]);
    // The client's address list contains only the node that is to be removed.
    let removed = test.ran("cluster remove 1 --json");
    assert_eq!(removed.out.trim(), r#"{"node":1,"removed":true}"#, "{removed:?}");
    let test = test.over(&format!("{},{}", two.url(), three.listening()));
    assert_eq!(one.ended().code, i32::from(CONFIG));
    assert_eq!(parts(&test.status()), [(2, "voter"), (3, "voter")]);
}

#[test]
fn refused_membership_changes_name_the_remedy() {
    let ports: Vec<Port> = (0..3).map(|_| Port::free()).collect();
    let (test, _one) = first(&ports[0], &["--segment-bytes", "1048576"]);
    is_refused(&test.ran("cluster remove 1"), &["only voter", "Add another node first"]);
    is_refused(&test.ran("cluster remove 7"), &["node 7 is no member", "lockkeeper cluster status"]);
    is_refused(&test.ran("cluster transfer --to 7"), &["node 7 is no voter"]);
    is_refused(&test.ran("cluster transfer"), &["no other voter answers"]);
    let nobody = format!("cluster add 2={}", peers(&ports[1]));
    is_refused(&test.ran(&nobody), &["does not answer", "serve --node 2", "--join"]);
    let waits = test.joins(3, &ports[2], &ports[0]);
    let another = format!("cluster add 2={}", peers(&ports[2]));
    is_refused(&test.ran(&another), &["this is node 3, node 2 was asked for"]);
    is_refused(&test.ran("cluster add 2=nowhere"), &["HOST:PORT"]);
    drop(waits);

    // The cluster of a node without `--peer-listen` can't be joined.
    let lonely = TestDir::new();
    let node = lonely.begin("node1", &["--listen", "127.0.0.1:0", "--segment-bytes", "1048576"]).ready();
    let url = node.url();
    let lonely = lonely.over(&url);
    is_refused(&lonely.ran(&nobody), &["--peer-listen"]);
    assert_eq!(parts(&lonely.status()), [(1, "voter")]);
}

/// The log was truncated before the new node joined, so the log alone does not suffice.
#[test]
fn new_node_receives_a_snapshot_if_the_log_was_truncated() {
    let ports: Vec<Port> = (0..2).map(|_| Port::free()).collect();
    let options = ["--segment-bytes", "65536", "--snapshot-after", "100000"];
    let (test, one) = first(&ports[0], &options);
    let limit = |name: &str, test: &TestDir| {
        let ended = test.ran(&format!("set-limit {name} 7"));
        assert_eq!(ended.code, i32::from(OK), "{ended:?}");
    };
    limit("before", &test);
    let load = test.ran("bench --clients 32 --seconds 2 --json");
    assert_eq!(load.code, i32::from(OK), "{load:?}");
    // A restart drops the log entries that the node kept in memory.
    let listening = one.listening();
    assert_eq!(one.stopped(Signal::SIGTERM).code, i32::from(OK));
    let at = peers(&ports[0]);
    let again = [&["--listen", &listening, "--node", "1", "--peer-listen", &at], &options[..]].concat();
    let one = test.begin("node1", &again).ready();
    limit("after", &test);

    let two = test.grown(2, &ports[1], &ports[0]);
    assert!(two.log().contains("node 1 sends a snapshot"), "{}", two.log());
    let led = test.ran("cluster transfer --to 2");
    assert_eq!(led.out, "node 2 leads\n", "{led:?}");
    assert_eq!((&test.shown("before")["permits"], &test.shown("after")["permits"]), (&7.into(), &7.into()));
    // The new node restarts from the snapshot that it has received.
    let (listening, at) = (two.listening(), peers(&ports[1]));
    two.kill();
    let two = test.begin("node2", &["--listen", &listening, "--node", "2", "--peer-listen", &at]).ready();
    wait_until("both are up to date", || {
        let status = test.status();
        status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["matched"] == status["last"] && node["answers"] == true)
    });
    assert_eq!(test.shown("before")["permits"], 7);
    drop((one, two));
}

/// A node that was bootstrapped alone, or restored from a backup, announces its peer address once it is
/// started with `--peer-listen`.
#[test]
fn single_node_cluster_can_be_extended_later() {
    let ports: Vec<Port> = (0..2).map(|_| Port::free()).collect();
    let test = TestDir::new();
    let listen = test.address();
    let alone = ["--listen", &listen, "--segment-bytes", "1048576"];
    let one = test.begin("node1", &alone).ready();
    assert_eq!(one.stopped(Signal::SIGTERM).code, i32::from(OK));
    let peers_one = peers(&ports[0]);
    let one = test.begin("node1", &[&alone[..], &["--peer-listen", &peers_one]].concat()).ready();
    let url = one.url();
    let test = test.over(&url);
    let limit = test.ran("set-limit before 7");
    assert_eq!(limit.code, i32::from(OK), "{limit:?}");
    let two = test.grown(2, &ports[1], &ports[0]);
    let both = format!("{url},{}", two.listening());
    // Both nodes are restarted and reconnect.
    let peers_two = peers(&ports[1]);
    two.kill();
    one.kill();
    // Node 1 is started as before it had a second node. Without `--peer-listen` the other node could not
    // connect, and node 1 would wait for ever; so the start is refused.
    let as_before = [&["serve", "--data", "node1"], &alone[..]].concat();
    let words = ["node1`", "node 1", "(node 2)", "--peer-listen HOST:PORT"];
    test.bare(as_before).ended().is_one_line(USAGE, &words);
    let one = test.begin("node1", &["--listen", &listen, "--peer-listen", &peers_one]);
    let two = test.begin("node2", &["--listen", "127.0.0.1:0", "--node", "2", "--peer-listen", &peers_two]);
    let (_one, two) = (one.ready(), two.ready());
    let test = test.over(&format!("{both},{}", two.listening()));
    assert_eq!(test.shown("before")["permits"], 7);
}

/// A restore creates a cluster of one node, at any address; a backup can be requested from any node.
#[test]
fn nodes_join_a_restored_cluster_and_a_follower_serves_the_next_backup() {
    let ports: Vec<Port> = (0..3).map(|_| Port::free()).collect();
    let (test, old) = first(&ports[0], &["--segment-bytes", "1048576"]);
    assert_eq!(test.ran("set-limit gpu 4").code, i32::from(OK));
    let held = test.holder("orders/42", &["--lock-delay", "5m"]);
    assert_eq!(test.ran("backup locks").code, i32::from(OK));
    old.kill();
    let restored = test.ran("restore locks --data node5 --node 5");
    assert_eq!((restored.code, restored.err.as_str()), (i32::from(OK), ""), "{restored:?}");

    let address = peers(&ports[0]);
    let options =
        ["--listen", "127.0.0.1:0", "--node", "5", "--peer-listen", &address, "--segment-bytes", "1048576"];
    let five = test.begin("node5", &options).ready();
    let test = test.over(&five.url());
    let status = test.status();
    let own = &status["nodes"][0];
    assert_eq!(own["peer_address"], address, "{own}");
    assert_eq!(own["client_address"], five.listening(), "{own}");
    let six = test.grown(6, &ports[1], &ports[0]);
    assert_eq!(parts(&test.status()), [(5, "voter"), (6, "voter")]);

    let test = test.over(&six.url());
    assert_eq!(test.shown("gpu")["permits"], 4);
    assert_eq!(test.shown("orders/42")["holds"][0]["state"], "closed");
    let next = test.ran("backup next --json");
    assert_eq!((next.code, next.err.as_str()), (i32::from(OK), ""), "{next:?}");
    let next: Value = serde_json::from_str(&next.out).unwrap();
    assert_eq!(next["node"], 5, "the leader's, by way of a follower");
    assert!(next["last_token"].as_u64() > Some(held.token), "{next}");

    // A node of the lost cluster, with an empty directory and its old command line.
    let list = format!("1={},2={}", peers(&ports[0]), peers(&ports[2]));
    let listen = test.address();
    let options = ["--listen", &listen, "--node", "2", "--cluster", &list, "--rejoin"];
    let old = test.begin("node2", &options);
    wait_until("it waits", || old.log().contains("waits for a new id"));
    let added = test.ran(&format!("cluster add 7={}", peers(&ports[2])));
    assert_eq!(added.out, "node 7 has caught up, and votes\n", "{added:?}\n{}", old.log());
    old.ready();
}

/// A service manager that starts three nodes one after the other must not wait for the first of them for
/// ever.
#[test]
fn founding_node_is_ready_for_systemd_and_says_what_it_waits_for() {
    let ports: Vec<Port> = (0..2).map(|_| Port::free()).collect();
    let test = TestDir::new();
    let (log, notified) = (test.path("log"), test.path("notified"));
    let socket = std::os::unix::net::UnixDatagram::bind(&notified).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let list = format!("1={},2={}", peers(&ports[0]), peers(&ports[1]));
    let listen = test.address();
    let words = ["serve", "--data", "node1", "--node", "1", "--listen", &listen, "--cluster", &list];
    let mut command = test.lockkeeper(words);
    let mut node =
        command.env("NOTIFY_SOCKET", &notified).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let hear = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).expect("a message to systemd");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert_eq!(hear().trim(), "READY=1");
    let waits = format!(
        "waiting for the other nodes of the new cluster: 2 at {} (nobody listens there)",
        peers(&ports[1])
    );
    assert_eq!(hear().trim(), format!("STATUS={waits}"));
    wait_until("the log says so too", || std::fs::read_to_string(&log).unwrap().contains(&waits));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(node.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(node.wait().unwrap().code(), Some(i32::from(OK)));
}
