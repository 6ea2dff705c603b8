//! What load balancers and monitoring ask: `/livez`, `/readyz`, and warnings before a disk is full.

use std::process::Command;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::faults::disks::SmallDisk;
use crate::node::Node;
use crate::support::{CommandExt, TestDir, wait_until};

/// The status and the body of the answer to a GET without credentials.
fn got(node: &Node, path: &str) -> (u16, String) {
    let url = format!("{}{path}", node.http());
    let out = Command::new("curl").args(["-sS", "-w", "%{http_code}", &url]).ended().out;
    let (body, status) = out.split_at(out.len() - 3);
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn node_is_ready_while_it_knows_a_leader_and_alive_without_one() {
    let test = TestDir::new();
    std::fs::write(test.path("permissions"), "").unwrap();
    let (mut nodes, _ports) = test.begin_three_with(&["--permissions", "permissions"]);
    for node in &nodes {
        assert_eq!(got(node, "/livez"), (200, "ok\n".to_owned()));
        assert_eq!(got(node, "/readyz"), (200, "ok\n".to_owned()));
        let all = "leader: ok\nmember: ok\ndisk: ok\nserving: ok\n".to_owned();
        assert_eq!(got(node, "/readyz?verbose"), (200, all));
        assert_eq!(got(node, "/v1/status").0, 403, "other calls need a permission");
    }
    nodes.drain(1..).for_each(Node::kill);
    let last = &nodes[0];
    wait_until("it knows no leader", || got(last, "/readyz").0 == 503);
    assert_eq!(got(last, "/readyz").1, "failed\n");
    let (status, checks) = got(last, "/readyz?verbose");
    assert_eq!((status, checks.lines().next()), (503, Some("leader: failed")), "{checks}");
    assert_eq!(got(last, "/livez?verbose"), (200, "replica: ok\n".to_owned()));
}

#[test]
fn little_free_space_is_a_warning_everywhere() {
    let test = TestDir::new();
    let disk = SmallDisk::mounted(&test.path("disk"), "6m");
    let options = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--segment-bytes", "1048576"];
    let node = test.begin("disk/data", &options).ready();
    let test = test.over(&node.url());
    for line in ["doctor", "cluster status"] {
        let ended = test.ran(line);
        assert_eq!(ended.code, i32::from(exit::UNHEALTHY), "{ended:?}");
        assert!(
            ended.out.contains("has little room left") && ended.out.contains("free space there"),
            "{ended:?}"
        );
    }
    let status: Value = serde_json::from_str(&got(&node, "/v1/status").1).unwrap();
    assert_eq!(status["disk_state"], "low", "{status}");
    let metrics = got(&node, "/metrics").1;
    let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with("lockkeeper_disk_")).collect();
    assert!(
        lines.contains(&"lockkeeper_disk_low 1") && lines.contains(&"lockkeeper_disk_full 0"),
        "{lines:?}"
    );
    assert!(node.log().contains("free space there"), "{}", node.log());
    assert_eq!(got(&node, "/readyz").0, 200, "it serves");
    drop((node, disk));
}

#[test]
fn log_has_the_version_a_follower_that_hangs_and_expired_sessions() {
    let test = TestDir::new();
    let (nodes, _ports) = test.begin_three();
    let members: Value = serde_json::from_str(&got(&nodes[0], "/v1/members").1).unwrap();
    let leader = members["leader"].as_u64().unwrap();
    let of = |node: u64| &nodes[usize::try_from(node).unwrap() - 1];
    let log = of(leader).log();
    let version = env!("CARGO_PKG_VERSION");
    assert!(log.contains(&format!("lockkeeper {version} starts as node {leader} of the cluster ")), "{log}");
    let leads = log.lines().find(|line| line.contains(" leads, term ")).unwrap();
    assert!(!leads.contains('='), "it is said twice: {leads}");

    let follower = leader % 3 + 1;
    of(follower).signal(Signal::SIGSTOP);
    let hangs = format!("node {follower} is connected and does not answer");
    wait_until("the leader logs it", || of(leader).log().contains(&hangs));
    // Its kernel accepts connections, so it is not to be started.
    let status = test.bare(["cluster", "status", "--locks", &of(leader).url()]).ended();
    assert_eq!(status.code, i32::from(exit::UNHEALTHY), "{status:?}");
    let warning = status
        .out
        .lines()
        .find(|line| line.contains(&format!("warning: node {follower}, ")))
        .unwrap_or_default();
    assert!(
        warning.contains("its process hangs or is stopped") && !warning.contains("start it, or"),
        "{status:?}"
    );
    of(follower).signal(Signal::SIGCONT);
    wait_until("it answers", || of(leader).log().contains(&format!("node {follower} answers again")));

    let secret = format!("Lockkeeper-Secret: {}", "07".repeat(16));
    let url = format!("{}/v1/sessions", of(leader).http());
    let body = r#"{"ttl_ms":1000,"label":"a job"}"#;
    let opened = Command::new("curl").args(["-sS", "-H", &secret, "--json", body, &url]).ended().json();
    let line = format!(
        "1 session has expired, and lost all locks, since nothing was heard of the client for the ttl: {} \"a job\"",
        opened["session"]
    );
    wait_until("its expiry is logged", || of(leader).log().contains(&line));
}
