//! Several real nodes: bootstrap of a cluster, loss of one node, and refusal of foreign nodes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use lockkeeper_cli::exit;
use lockkeeper_rig::Port;
use nix::sys::signal::Signal;

use crate::node::{Node, Starting};
use crate::support::{CommandExt, Ended, TestDir, wait_until};

/// Three nodes, each with its own ports and data directory.
struct Three {
    test: TestDir,
    /// Each node's two ports: for peers, and for clients.
    ports: BTreeMap<u64, (Port, Port)>,
}

impl Three {
    fn new() -> Self {
        let ports = (1..=3).map(|node| (node, (Port::free(), Port::free()))).collect();
        Self { test: TestDir::new(), ports }
    }

    fn list(&self) -> String {
        let listed =
            self.ports.iter().map(|(node, (peers, _))| format!("{node}=127.0.0.1:{}", peers.number()));
        listed.collect::<Vec<_>>().join(",")
    }

    fn words(&self, node: u64, data: &str, list: &str) -> Vec<String> {
        let (peers, clients) = &self.ports[&node];
        let words = format!(
            "--data {data} --node {node} --cluster {list} --peer-listen 127.0.0.1:{} --listen 127.0.0.1:{} --segment-bytes \
             1048576 --log-level info,lockkeeper_server=debug",
            peers.number(),
            clients.number()
        );
        words.split_whitespace().map(str::to_owned).collect()
    }

    /// Starts a node with the list of all three nodes.
    fn start(&self, node: u64) -> Starting {
        let words = self.words(node, &format!("data-{node}"), &self.list());
        self.test.start(&words.iter().map(String::as_str).collect::<Vec<_>>(), &format!("log-{node}"))
    }

    /// Runs a node that is expected to end by itself.
    fn ended(&self, words: Vec<String>) -> Ended {
        self.test.bare([vec!["serve".to_owned()], words].concat()).ended()
    }

    /// Starts all three nodes, which bootstrap a cluster or are its members already.
    fn founded(&self) -> BTreeMap<u64, Node> {
        let starting: Vec<_> = (1..=3).map(|node| (node, self.start(node))).collect();
        starting.into_iter().map(|(node, starting)| (node, starting.ready())).collect()
    }

    /// Acquires a lock through one of these nodes, and returns its token.
    fn token(&self, nodes: &[u64]) -> u64 {
        let at: Vec<_> =
            nodes.iter().map(|node| format!("127.0.0.1:{}", self.ports[node].1.number())).collect();
        let url = format!("lockkeeper://{}", at.join(","));
        let words = ["run", "--locks", &url, "x", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"];
        let ended = self.test.bare(words).ended();
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "by way of {nodes:?}");
        ended.out.trim().parse().expect("a token")
    }
}

#[test]
fn cluster_bootstraps_with_all_nodes_and_survives_the_loss_of_any_one() {
    let three = Three::new();
    let (third, first) = (three.start(3), three.start(1));
    let late = format!("2 at 127.0.0.1:{} (nobody listens there)", three.ports[&2].0.number());
    wait_until("both ask for the second", || third.log().contains(&late) && first.log().contains(&late));
    assert!(!third.serves() && !first.serves(), "two of three must not found a cluster");
    let of_first = format!("lockkeeper://127.0.0.1:{}", three.ports[&1].1.number());
    let refused = three.test.bare(["ls", "--locks", &of_first]).ended();
    refused.is_one_line(exit::UNAVAILABLE, &["does not serve", &late]);
    assert!(!refused.err.contains("lockkeeper serve"), "one is started: {refused:?}");
    let second = three.start(2);
    let mut nodes = BTreeMap::from([(3, third.ready()), (1, first.ready()), (2, second.ready())]);
    wait_until("the log says who leads, and who follows", || {
        let logs: String = nodes.values().map(Node::log).collect();
        (1..=3).any(|leader| {
            let follows = |node| logs.contains(&format!("node {node} follows node {leader}, term "));
            let is_leader = logs.contains(&format!("node {leader} leads, term "));
            is_leader && (1..=3).filter(|node| *node != leader).all(follows)
        })
    });
    let mut last = 0;
    let mut rises = |token: u64| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    for node in 1..=3 {
        rises(three.token(&[node]));
    }
    for victim in 1..=3 {
        nodes.remove(&victim).expect("it runs").kill();
        let others: Vec<u64> = nodes.keys().copied().collect();
        rises(three.token(&others));
        nodes.insert(victim, three.start(victim).ready());
        rises(three.token(&[victim]));
    }
    // Kills all nodes at once, as a power cut does.
    nodes.into_values().for_each(Node::kill);
    let _nodes = three.founded();
    rises(three.token(&[1, 2, 3]));
}

/// Exit codes distinguish a busy lock from a service that does not answer.
#[test]
fn without_a_leader_a_lock_is_not_reported_as_busy() {
    let three = Three::new();
    let mut nodes = three.founded();
    let url = nodes[&1].url();
    for node in [2, 3] {
        nodes.remove(&node).expect("it runs").kill();
    }
    for options in [&["--try", "--ttl", "1h"][..], &["--wait", "3s"]] {
        let words = [&["run", "--locks", &url], options, &["x", "--", "touch", "it-ran"]].concat();
        let ended = three.test.bare(words).ended();
        assert_eq!(ended.code, i32::from(exit::UNAVAILABLE), "{ended:?}");
        let lines: Vec<&str> = ended.err.lines().collect();
        let [waits, end] = lines[..] else { panic!("{ended:?}") };
        assert!(waits.contains("no answer from the lock service so far"), "{waits}");
        assert!(end.contains("nothing was acquired within") && end.contains("no leader"), "{end}");
    }
    assert!(!three.test.path("it-ran").exists());
}

#[test]
fn lost_majority_is_reported_with_the_nodes_to_start_though_the_url_names_one_node() {
    let three = Three::new();
    let mut nodes = three.founded();
    let url = nodes[&1].url();
    nodes.remove(&3).expect("it runs").kill();
    let doctor = three.test.bare(["doctor", &url]).ended();
    assert_eq!(doctor.code, i32::from(exit::UNHEALTHY), "{doctor:?}");
    let dead = format!("node 3, 127.0.0.1:{}, does not answer", three.ports[&3].1.number());
    assert!(doctor.out.contains(&dead) && !doctor.out.contains("lockkeeper serve"), "{doctor:?}");
    nodes.remove(&2).expect("it runs").kill();
    for line in ["doctor", "cluster status"] {
        let words = line.split(' ').chain(["--locks", &url]);
        let ended = three.test.bare(words).ended();
        assert_eq!(ended.code, i32::from(exit::UNAVAILABLE), "{ended:?}");
        let lost = "no majority: 1 of the 3 nodes that vote answer, 2 are needed";
        assert!(ended.err.contains(lost) && ended.err.contains("start node 2 and 3"), "{ended:?}");
        assert!(ended.out.matches("does not answer").count() == 2, "{ended:?}");
    }
}

#[test]
fn stopping_follower_ends_the_watches_that_it_passes_on() {
    let three = Three::new();
    let mut nodes = three.founded();
    let status = three.test.bare(["cluster", "status", "--json", "--locks", &nodes[&1].url()]).ended().out;
    let leader = serde_json::from_str::<serde_json::Value>(&status).unwrap()["leader"].as_u64().unwrap();
    let follower = (1..=3).find(|node| *node != leader).expect("two of them");
    let words = ["watch", "--json", "--locks", &nodes[&follower].url()];
    let mut watch = three.test.bare(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("synced"), "{line}");
    let stopped = nodes.remove(&follower).expect("it runs").stopped(Signal::SIGTERM);
    let _ = watch.kill();
    let _ = watch.wait();
    assert_eq!(stopped.code, i32::from(exit::OK));
    assert!(!stopped.err.contains("did not end in time"), "{}", stopped.err);
}

/// Operators look for what was held long before a leader failed (E3).
#[test]
fn since_when_survives_a_crash_of_the_leader_and_restarts_of_all_nodes() {
    let three = Three::new();
    let mut nodes = three.founded();
    let all: Vec<String> = nodes.values().map(Node::listening).collect();
    let test = TestDir::new().over(&format!("lockkeeper://{}", all.join(",")));
    let _holder = test.holder("x", &[]);
    let _waiter = test.lockkeeper(["run", "x", "--", "true"]).started();
    test.wait_for_waiters("x", 1);
    let times = || {
        let lock = test.shown("x");
        let (hold, waiter) = (&lock["holds"][0], &lock["waiters"][0]);
        assert!(hold["held_for_ms"].is_u64() && waiter["waiting_for_ms"].is_u64(), "{lock}");
        [hold, waiter].map(|it| it["since"].as_str().expect("a time").to_owned())
    };
    let before = times();
    assert!(before[0] < before[1] && before[0].ends_with('Z'), "{before:?}");
    let leader = || {
        let status: serde_json::Value = serde_json::from_str(&test.ran("cluster status --json").out).unwrap();
        status["leader"].as_u64().expect("a leader")
    };
    let crashed = leader();
    nodes.remove(&crashed).expect("it runs").kill();
    assert_eq!(times(), before, "the next leader");
    assert_ne!(leader(), crashed);
    for node in 1..=3 {
        if let Some(node) = nodes.remove(&node) {
            node.kill();
        }
        nodes.insert(node, three.start(node).ready());
    }
    assert_eq!(times(), before, "after restarts from the log");
    let text = test.ran("show x").out;
    let second = |time: &str| format!("(since {}Z)", &time[..19]);
    assert!(before.iter().all(|time| text.contains(&second(time))), "{before:?} in {text}");
}

#[test]
fn node_with_an_emptied_directory_is_refused_with_the_remedy() {
    let three = Three::new();
    let mut nodes = three.founded();
    let before = three.token(&[1]);
    nodes.remove(&2).expect("it runs").kill();
    std::fs::remove_dir_all(three.test.path("data-2")).unwrap();
    let ended = three.ended(three.words(2, "data-2", &three.list()));
    assert_eq!(ended.code, i32::from(exit::CONFIG), "{ended:?}");
    let words = "node 2's data are gone: start it with `--rejoin`, then `lockkeeper cluster replace 2`";
    assert!(ended.err.contains(&format!("lockkeeper: {words}")), "{ended:?}");
    assert!(three.token(&[1, 3]) > before);
    for node in [&nodes[&1], &nodes[&3]] {
        assert!(
            node.log().contains("is refused: ") || node.log().contains("can't be talked to"),
            "{}",
            node.log()
        );
    }
}

/// Whether a log line is about a connection of this node.
fn of(line: &str, node: u64) -> bool {
    line.contains(&format!(" node {node} at "))
}

#[test]
fn nodes_with_data_of_another_node_or_cluster_are_refused() {
    let three = Three::new();
    let mut nodes = three.founded();
    nodes.remove(&1).expect("it runs").kill();
    let mut words = three.words(1, "data-1", &three.list());
    let number = words.iter().position(|word| word == "--node").expect("it is said") + 1;
    words[number] = "2".to_owned();
    let ended = three.ended(words);
    ended.is_one_line(exit::CONFIG, &["data-1", "belongs to node 1, not to node 2", "`--node 1`"]);

    // A node 1 of another cluster, at the address of this cluster's node 1.
    let peers = format!("1=127.0.0.1:{}", three.ports[&1].0.number());
    let words = three.words(1, "other", &peers);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let other = three.test.start(&words, "log-other").ready();
    wait_until("both others have asked it", || {
        nodes.values().all(|node| {
            let log = node.log();
            log.contains("node 1 can't be talked to") && log.contains("belongs to another cluster")
        })
    });
    // The other two nodes try to connect every second.
    let again =
        |node: u64| other.log().lines().any(|line| line.contains("is refused again: ") && of(line, node));
    wait_until("both were refused again", || again(2) && again(3));
    for node in [2, 3] {
        let log = other.log();
        let told = log.lines().filter(|line| line.contains(" is refused: ") && of(line, node)).count();
        assert_eq!(told, 1, "{log}");
    }
    assert!(three.token(&[2, 3]) > 0);
    assert!(three.token(&[1]) > 0, "it serves its own cluster");
    drop(other);
}

#[test]
fn differing_cluster_lists_are_reported_with_the_difference() {
    let three = Three::new();
    let two = three.start(2);
    let short: Vec<_> = three.list().split(',').take(2).map(str::to_owned).collect();
    let words = three.words(1, "data-1", &short.join(","));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let one = three.test.start(&words, "log-1");
    let difference = "node 3 is in the list of node 2 only; start all founders with the same `--cluster`";
    wait_until("both say it", || one.log().contains(difference) && two.log().contains(difference));
    assert!(!one.serves() && !two.serves());
    drop(one);
    // With the correct list, the node continues with the identity that it had.
    let (one, last) = (three.start(1), three.start(3));
    let _nodes = [one, two, last].map(Starting::ready);
    assert!(three.token(&[1]) > 0);
}

#[test]
fn inconsistent_cluster_options_are_refused_before_anything_is_written() {
    let test = TestDir::new();
    let refused = |line: &str, words: &[&str]| {
        let words_of = line.split_whitespace();
        let ended = test
            .bare(["serve", "--data", "data", "--listen", "127.0.0.1:0"].into_iter().chain(words_of))
            .ended();
        assert_eq!(ended.code, i32::from(exit::USAGE), "{line}: {ended:?}");
        for word in words {
            assert!(ended.err.contains(word), "{line}: no {word:?} in {ended:?}");
        }
        assert!(!test.path("data").exists(), "{line}");
    };
    refused("--cluster 1=127.0.0.1:7", &["--node N"]);
    refused("--node 2 --cluster 1=127.0.0.1:7", &["`--cluster` has no address for node 2"]);
    refused("--node 1 --cluster 1=127.0.0.1:7,1=127.0.0.1:8", &["a node is twice"]);
    refused("--node 1 --cluster 1=127.0.0.1", &["`127.0.0.1` is no address", "N=HOST:PORT"]);
    refused("--node 1 --cluster 1=127.0.0.1:0", &["no port that others could know"]);
    refused("--node 0 --cluster 0=127.0.0.1:7", &["numbered from 1"]);
    refused("--node 1 --cluster 1=127.0.0.1:7 --join 127.0.0.1:8", &["--join", "--cluster"]);
    refused("--join 127.0.0.1:8", &["--node"]);
    for list in ["1=127.0.0.1:7,2=127.0.0.1:7", "2=127.0.0.1:8,3=127.0.0.1:7,1=127.0.0.1:7"] {
        let line = format!("--node 1 --cluster {list}");
        refused(&line, &["the same address, `127.0.0.1:7`", "give each its own"]);
    }
    for wildcard in ["0.0.0.0:7", "[::]:7"] {
        let line = format!("--node 1 --insecure --cluster 1=127.0.0.1:8,2={wildcard}");
        refused(&line, &["node 2", &format!("`{wildcard}`"), "every address", "--peer-listen"]);
    }
    refused("--node 1 --cluster 1=127.0.0.1:7,2=:8", &["node 2", "`:8`", "N=HOST:PORT"]);
    for join in ["--join=", "--join=db1.example", "--join=:5626", "--join=db1.example:0"] {
        refused(
            &format!("--node 2 {join}"),
            &[&join.replace('=', " "), "HOST:PORT", "listens to other nodes"],
        );
    }
    refused("--node 1 --cluster 1=192.0.2.1:7", &["192.0.2.1:7", "--insecure"]);
    refused("--peer-listen 0.0.0.0:7", &["0.0.0.0:7", "--insecure"]);
}
