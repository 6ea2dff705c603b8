//! TLS as an operator sets it up: `tls init`, nodes and clients with its files, refusals in words, renewal.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockkeeper_cli::exit::{CANNOT_CREATE, CONFIG, OK, PERMISSION, UNAVAILABLE, UNHEALTHY, USAGE};
use lockkeeper_rig::{Authority, Port};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::node::{Node, Starting};
use crate::support::{CommandExt, TestDir, wait_until};

/// The options of a node with the files of a `tls init`.
fn files(dir: &str, node: u64) -> Vec<String> {
    ["cert=node-N.pem", "key=node-N.key", "ca=ca.pem"]
        .map(|it| format!("--tls-{}", it.replace('=', &format!("={dir}/")).replace('N', &node.to_string())))
        .to_vec()
}

/// A client's URL: the node's, with these files.
fn with_files(url: &str, ca: &str, client: &str) -> String {
    format!("{url}?tls-ca={ca}/ca.pem&tls-cert={client}.pem&tls-key={client}.key")
}

impl TestDir {
    fn certified(self, nodes: u64) -> Self {
        let made = self.ran(&format!("tls init tls --nodes {nodes}"));
        assert_eq!(made.code, i32::from(OK), "{made:?}");
        self
    }

    fn certified_node(&self, node: u64, more: &[&str]) -> Starting {
        let (files, id, listen) = (files("tls", node), node.to_string(), self.address());
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        self.begin(
            &format!("node{node}"),
            &[&["--node", &id, "--listen", &listen], &files[..], more].concat(),
        )
    }

    /// A node alone, and this test directory with it as its lock service.
    fn over_certified_node(self) -> (Self, Node) {
        let node = self.certified_node(1, &[]).ready();
        let url = with_files(&node.url(), "tls", "tls/client");
        (self.over(&url), node)
    }

    /// Three nodes, and the ports that they use among themselves.
    fn certified_cluster(&self) -> (Vec<Node>, Vec<Port>) {
        let ports: Vec<Port> = (0..3).map(|_| Port::free()).collect();
        let list = (1..).zip(&ports).map(|(node, port)| format!("{node}=127.0.0.1:{}", port.number()));
        let list = list.collect::<Vec<_>>().join(",");
        let starting: Vec<Starting> =
            (1..=3).map(|node| self.certified_node(node, &["--cluster", &list])).collect();
        (starting.into_iter().map(Starting::ready).collect(), ports)
    }

    /// Replaces a file by the contents of others.
    fn replace(&self, from: &[&str], to: &str) {
        let texts = from.iter().map(|it| std::fs::read_to_string(self.path(it)).unwrap());
        let text = texts.collect::<String>();
        std::fs::write(self.path(&format!("{to}.new")), text).unwrap();
        std::fs::rename(self.path(&format!("{to}.new")), self.path(to)).unwrap();
    }

    fn listed_at(&self, url: &str) -> crate::support::Ended {
        self.bare(["ls", "--locks", url]).ended()
    }
}

/// Waits until the node uses its new files.
fn reload(node: &Node) {
    let reloads = || node.log().matches("reload: \"TLS").count();
    let before = reloads();
    node.signal(Signal::SIGHUP);
    wait_until("the node uses its files", || reloads() > before);
}

#[test]
fn three_nodes_and_their_clients_talk_over_tls() {
    let test = TestDir::new().certified(3);
    let (nodes, _ports) = test.certified_cluster();
    assert!(nodes.iter().all(|node| node.url().starts_with("lockkeepers://127.0.0.1:")));

    // Each node is asked alone: two of them forward the call to the leader.
    for node in &nodes {
        let url = with_files(&node.url(), "tls", "tls/client");
        let ask = || test.bare(["cluster", "status", "--json", "--locks", &url]).ended();
        let mut status = ask();
        // A node is ready once it follows a leader; it learns the other followers' addresses a moment later.
        wait_until("every node answers", || {
            if status.code == i32::from(UNHEALTHY) {
                status = ask();
            }
            status.code != i32::from(UNHEALTHY)
        });
        assert_eq!((status.code, status.err.as_str()), (i32::from(OK), ""));
        let status: Value = serde_json::from_str(&status.out).unwrap();
        assert_eq!(status["nodes"].as_array().map(Vec::len), Some(3), "{status}");
        let ran =
            test.bare(["run", "--locks", &url, "a/b", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]).ended();
        assert_eq!(ran.code, i32::from(OK), "{}", ran.err);
        assert!(ran.out.trim().parse::<u64>().is_ok(), "{}", ran.out);
    }
    for node in nodes {
        assert_eq!(node.stopped(Signal::SIGTERM).code, i32::from(OK));
    }
}

#[test]
fn clients_that_do_not_fit_are_refused_in_words() {
    let (test, node) = TestDir::new().certified(1).over_certified_node();
    assert_eq!(test.ran("ls").code, i32::from(OK));
    let (tls, plain) = (node.url(), node.url().replace("lockkeepers", "lockkeeper"));
    test.listed_at(&plain).is_one_line(UNAVAILABLE, &["it speaks TLS: write `lockkeepers://`"]);
    test.listed_at(&format!("{tls}?tls-ca=tls/ca.pem"))
        .is_one_line(PERMISSION, &["only clients with a certificate", "tls-cert=FILE"]);
    test.listed_at(&format!("{tls}?tls-cert=tls/client.pem&tls-key=tls/client.key"))
        .is_one_line(UNAVAILABLE, &["UnknownIssuer"]);
    assert_eq!(test.ran("tls init other").code, i32::from(OK));
    test.listed_at(&with_files(&tls, "tls", "other/client"))
        .is_one_line(UNAVAILABLE, &["its authority has not signed this client's certificate"]);
    test.listed_at(&with_files(&plain, "tls", "tls/client")).is_one_line(USAGE, &["write `lockkeepers://`"]);
    let without = test.serve(&test.address());
    let url = with_files(&without.url().replace("lockkeeper", "lockkeepers"), "tls", "tls/client");
    test.listed_at(&url).is_one_line(UNAVAILABLE, &["it does not speak TLS", "`lockkeeper://`"]);
    // The name in the URL must be one of those in the node's certificate.
    let elsewhere = with_files(&tls.replace("127.0.0.1", "127.0.0.2"), "tls", "tls/client");
    assert_eq!(test.listed_at(&elsewhere).code, i32::from(UNAVAILABLE));
    assert_eq!(test.ran("ls").code, i32::from(OK), "it still serves others");
}

/// No service is there: the file alone shows it, whatever a node's last words would be.
#[test]
fn certificate_of_a_client_out_of_its_time_is_refused_before_a_connection() {
    let test = TestDir::new();
    let authority = Authority::new();
    let _ca = authority.write(&test.path(""), "ca");
    for (years, words) in [
        ([2020, 2021], ["`client.pem` ended at 2021-01-01T00:00:00Z", "lockkeeper tls renew"]),
        ([2900, 2901], ["`client.pem` is valid only from 2900-01-01T00:00:00Z on", "this host's clock"]),
    ] {
        let _files = authority.issue_between(&["client"], &[], years).write(&test.path(""), "client");
        let url = with_files("lockkeepers://127.0.0.1:1", ".", "client");
        for command in ["ls", "doctor", "cluster status"] {
            let ended = test.bare(command.split(' ').chain(["--locks", &url])).ended();
            ended.is_one_line(PERMISSION, &words);
        }
    }
}

#[test]
fn doctor_warns_of_the_end_of_the_clients_certificate() {
    let (test, _node) = TestDir::new().certified(1).over_certified_node();
    let ended = |file: &str| format!("warning: this client's certificate `{file}` ends in 4 days: renew it");
    let doctor = test.ran("doctor");
    assert!(doctor.code == i32::from(OK) && !doctor.out.contains("this client's certificate"), "{doctor:?}");
    assert_eq!(test.ran("tls renew tls --days 5").code, i32::from(OK));
    let doctor = test.ran("doctor");
    assert!(doctor.code == i32::from(OK) && doctor.out.contains(&ended("tls/client.pem")), "{doctor:?}");
}

#[test]
fn node_with_unusable_files_does_not_start() {
    let test = TestDir::new().certified(2);
    let node = |dir: &str, of: u64, node: &str| {
        let files = files(dir, of);
        test.bare(["serve", "--data", "data", "--node", node].into_iter().map(str::to_owned).chain(files))
            .ended()
    };
    node("tls", 2, "1").is_one_line(CONFIG, &["certificate of node 2", "this is node 1"]);
    node("nowhere", 1, "1").is_one_line(CONFIG, &["nowhere/node-1.pem", "can't be read"]);
    let serve = |cert: &str, key: &str, ca: &str| {
        let words = ["serve", "--data", "data", "--tls-cert", cert, "--tls-key", key, "--tls-ca", ca];
        test.bare(words).ended()
    };
    serve("tls/client.pem", "tls/client.key", "tls/ca.pem")
        .is_one_line(CONFIG, &["`tls/client.pem`", "is no node", "lockkeeper tls init"]);
    serve("tls/node-1.pem", "tls/node-2.key", "tls/ca.pem").is_one_line(CONFIG, &["does not fit its key"]);
    serve("tls/node-1.key", "tls/node-1.key", "tls/ca.pem").is_one_line(CONFIG, &["no certificate in PEM"]);
    assert_eq!(test.ran("tls init other").code, i32::from(OK));
    serve("tls/node-1.pem", "tls/node-1.key", "other/ca.pem")
        .is_one_line(CONFIG, &["`other/ca.pem` does not confirm it"]);
    assert!(!test.path("data").exists(), "nothing was written");
    let half = test.bare(["serve", "--data", "data", "--tls-cert", "tls/node-1.pem"]).ended();
    half.is_one_line(USAGE, &["--tls-key"]);
}

/// With the same authority: only its names tell a node of this cluster from a client and from a node of
/// another one.
#[test]
fn peers_port_refuses_strangers_with_certificates_of_the_same_authority() {
    let test = TestDir::new().certified(1);
    let (own, stranger) = (Port::free(), Port::free());
    let peers = |port: &Port| format!("127.0.0.1:{}", port.number());
    let at = peers(&own);
    let node = test.certified_node(1, &["--peer-listen", &at]).ready();
    std::fs::create_dir(test.path("b")).unwrap();
    for file in ["ca.pem", "ca.key"] {
        std::fs::copy(test.path("tls").join(file), test.path("b").join(file)).unwrap();
    }
    assert_eq!(test.ran("tls issue b --node 2 --cluster-name b").code, i32::from(OK));
    let (files, there, listen) = (files("b", 2), peers(&stranger), test.address());
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let words = ["--node", "2", "--listen", &listen, "--peer-listen", &there, "--join", &at];
    let joins = test.begin("node2", &[&words[..], &files[..]].concat());
    wait_until("it says why it is not let in", || joins.log().contains("of a node of the cluster `"));
    assert!(!node.log().contains("is not added yet"), "{}", node.log());

    // The protocol of the peers' port is not that of clients.
    let url = with_files(&format!("lockkeepers://{at}"), "tls", "tls/client");
    assert_eq!(test.listed_at(&url).code, i32::from(UNAVAILABLE));
}

#[test]
fn renewed_files_are_used_without_an_end_of_sessions_and_bad_ones_change_nothing() {
    let (test, node) = TestDir::new().certified(1).over_certified_node();
    let holder = test.holder("a", &["--ttl", "5s"]);
    let token = test.shown("a")["holds"][0]["token"].clone();

    let renewed = test.ran("tls renew tls --days 5");
    assert_eq!(renewed.code, i32::from(OK), "{renewed:?}");
    node.signal(Signal::SIGHUP);
    wait_until("the new files are in use", || node.log().contains("reload: \"TLS"));
    wait_until("the end is near", || node.log().contains("the certificate of this node ends in 4 days"));
    assert_eq!(test.ran("ls").code, i32::from(OK), "new connections use them");

    let certificate = test.path("tls").join("node-1.pem");
    let good = std::fs::read(&certificate).unwrap();
    std::fs::write(&certificate, "nonsense").unwrap();
    node.signal(Signal::SIGHUP);
    wait_until("the bad file is refused", || {
        node.log().contains("the new files are not used, the old ones stay in force")
    });
    assert_eq!(test.ran("ls").code, i32::from(OK), "the old ones are in use");
    wait_until("the status says so", || test.ran("cluster status").code == i32::from(UNHEALTHY));
    let doctor = test.ran("doctor --json");
    assert_eq!(doctor.code, i32::from(UNHEALTHY), "{doctor:?}");
    let doctor: Value = serde_json::from_str(&doctor.out).unwrap();
    let error = doctor["nodes"][0]["files_error"].as_str().unwrap_or_default();
    assert!(error.contains("node-1.pem"), "{doctor}");
    assert!(doctor["warnings"].to_string().contains("can't use files that have changed"), "{doctor}");
    std::fs::write(&certificate, good).unwrap();
    node.signal(Signal::SIGHUP);
    wait_until("all is well", || test.ran("cluster status").code == i32::from(OK));
    assert_eq!(test.shown("a")["holds"][0]["token"], token, "its session has not ended");
    drop(holder);
}

/// Certificates are renewed, and then the authority is exchanged, node by node, while a client holds a lock
/// and others come and go.
#[test]
fn certificates_of_three_nodes_change_under_load_without_a_lost_session() {
    let test = TestDir::new().certified(3);
    let (nodes, _ports) = test.certified_cluster();
    let url = format!("{},{},{}", nodes[0].url(), nodes[1].listening(), nodes[2].listening());
    let test = test.over(&with_files(&url, "tls", "tls/client"));
    let cluster = test.ran("tls show tls/node-1.pem --json").json()["cluster"].as_str().unwrap().to_owned();
    let made = test.ran(&format!("tls init new --nodes 3 --cluster-name {cluster}"));
    assert_eq!(made.code, i32::from(OK), "{made:?}");
    let holder = test.holder("kept", &["--ttl", "5s"]);
    let (is_over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let ran = test.ran("run load -- true");
                assert_eq!(ran.code, i32::from(OK), "{ran:?}");
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let between = |step: &str| {
            let before = done.load(Ordering::Relaxed);
            wait_until(step, || load.is_finished() || done.load(Ordering::Relaxed) > before + 1);
            assert!(!load.is_finished(), "others were refused: {step}");
        };
        assert_eq!(test.ran("tls renew tls --days 5").code, i32::from(OK));
        for node in &nodes {
            reload(node);
            between("with renewed certificates");
        }
        test.replace(&["tls/ca.pem", "new/ca.pem"], "tls/ca.pem");
        nodes.iter().for_each(reload);
        for (number, node) in (1..).zip(&nodes) {
            test.replace(&[&format!("new/node-{number}.key")], &format!("tls/node-{number}.key"));
            test.replace(&[&format!("new/node-{number}.pem")], &format!("tls/node-{number}.pem"));
            reload(node);
            between("with certificates of the new authority");
        }
        is_over.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    test.replace(&["new/client.key"], "tls/client.key");
    test.replace(&["new/client.pem"], "tls/client.pem");
    test.replace(&["new/ca.pem"], "tls/ca.pem");
    nodes.iter().for_each(reload);
    assert_eq!(test.shown("kept")["holds"][0]["token"], holder.token, "its session has not ended");
    wait_until("every node answers", || test.ran("cluster status").code == i32::from(OK));
}

/// `linger` is for killed processes, which end their connection without TLS' own end.
#[test]
fn killed_client_frees_its_lock_after_linger_over_tls_too() {
    let (test, _node) = TestDir::new().certified(1).over_certified_node();
    let mut holder = test.holder("a", &["--ttl", "10m", "--grace", "1s", "--linger", "2s"]);
    holder.child_mut().kill().unwrap();
    let next = test.ran("run --wait 60s a -- true");
    assert_eq!(next.code, i32::from(OK), "{}", next.err);
}

#[test]
fn certificates_are_made_shown_and_never_overwritten() {
    let test = TestDir::new();
    let made = test
        .ran("tls init tls --nodes 2 --host 1=db1.example --host 1=192.0.2.7 --cluster-name shop --days 30");
    assert_eq!(made.code, i32::from(OK), "{made:?}");
    assert!(made.err.contains("keep `tls/ca.key` secret"), "{}", made.err);
    let shown = test.ran("tls show tls/node-1.pem --json");
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown["cluster"], "shop");
    assert_eq!((&shown["node"], &shown["days_left"]), (&1.into(), &29.into()));
    assert_eq!(
        shown["hosts"],
        serde_json::json!(["db1.example", "192.0.2.7", "localhost", "127.0.0.1", "::1"])
    );
    let issued = test.ran("tls issue tls --client billing");
    assert_eq!(issued.code, i32::from(OK), "{}", issued.err);
    let all = test.ran("tls show tls");
    for words in ["node 2 of the cluster `shop`", "\"billing\"", "\"client\"", "29"] {
        assert!(all.out.contains(words), "{words}: {}", all.out);
    }
    for key in ["ca.key", "node-1.key", "billing.key"] {
        assert_eq!(mode(&test.path("tls").join(key)), 0o600, "{key}");
    }

    test.ran("tls init tls").is_one_line(CANNOT_CREATE, &["has an authority already", "tls issue"]);
    test.ran("tls issue tls --client billing").is_one_line(CANNOT_CREATE, &["is there already", "tls renew"]);
    test.ran("tls issue nowhere --client x").is_one_line(CONFIG, &["no authority in `nowhere`"]);
    test.ran("tls init t2 --host 2=db2.example").is_one_line(USAGE, &["--host 2=db2.example", "1 nodes"]);
    test.ran("tls issue tls --node 3 --host db3:5625").is_one_line(USAGE, &["`db3:5625`", "without a port"]);
    test.ran("tls show tls/ca.key").is_one_line(CONFIG, &["`tls/ca.key` is no certificate"]);
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// As docs/operating.md says, under "Another authority", with a lock that is held all the time.
#[test]
fn authority_is_exchanged_without_a_restart() {
    let (test, node) = TestDir::new().certified(1).over_certified_node();
    let holder = test.holder("kept", &[]);
    let cluster = test.ran("tls show tls/node-1.pem --json").json()["cluster"].as_str().unwrap().to_owned();
    assert_eq!(test.ran(&format!("tls init new --cluster-name {cluster}")).code, i32::from(OK));
    let copy = |from: &[&str], to: &str| test.replace(from, to);
    let reload = || reload(&node);
    let listed =
        |client: &str| test.listed_at(&with_files(&node.url(), "tls", &format!("{client}/client"))).code;
    copy(&["tls/ca.pem", "new/ca.pem"], "tls/ca.pem");
    reload();
    assert_eq!([listed("tls"), listed("new")], [0, 0]);
    // Both are in one file, and the key is of one.
    assert_eq!(test.ran("tls issue tls --client late").code, i32::from(OK));
    copy(&["new/node-1.key"], "tls/node-1.key");
    copy(&["new/node-1.pem"], "tls/node-1.pem");
    reload();
    assert_eq!([listed("tls"), listed("new")], [0, 0]);
    copy(&["new/ca.pem"], "tls/ca.pem");
    reload();
    assert_eq!([listed("tls"), listed("new")], [i32::from(UNAVAILABLE), 0]);
    let shown = test.bare(["show", "kept", "--locks", &with_files(&node.url(), "tls", "new/client")]).ended();
    assert!(shown.out.contains(&format!("token {}", holder.token)), "{shown:?}");
}
