//! Data of this version: what three nodes, an HTTP client and a backup had stored when the files below
//! `tests/fixtures` were made. Later builds must go on with them (docs/upgrading.md).
//!
//! Until the first release formats may change: then `LOCKKEEPER_STORE=1 cargo xtask test -p lockkeeper-cli
//! stored_data` makes the files anew, of the build that is tested.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_cli::exit;
use serde_json::{Value, json};

use crate::node::{Node, Starting};
use crate::support::{CommandExt, TestDir, wait_until};

/// The directories of three nodes, and a backup.
const STORED: &str = "cluster.tar.gz";
/// Nothing of a release grows without being noticed.
const STORED_BYTES_MAX: u64 = 64 << 10;
/// The addresses are in the data. They are of no interface, so that nothing else listens there.
const PEERS: [&str; 3] = ["127.91.48.1:5641", "127.91.48.2:5641", "127.91.48.3:5641"];
const SECRETS: [&str; 2] = ["11111111111111111111111111111111", "22222222222222222222222222222222"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Three nodes in a test directory.
fn cluster(test: &TestDir) -> Vec<Node> {
    // Another run of this test may be using the addresses.
    wait_until("the addresses are free", || PEERS.iter().all(|at| TcpListener::bind(at).is_ok()));
    let list: Vec<String> = (1..).zip(PEERS).map(|(node, at)| format!("{node}={at}")).collect();
    let list = list.join(",");
    let starting: Vec<Starting> = [1, 2, 3]
        .into_iter()
        .map(|node| {
            let id = node.to_string();
            let options = ["--node", &id, "--cluster", &list, "--segment-bytes", "1048576"];
            let ports = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
            test.begin(&format!("data-{node}"), &[&options[..], &ports].concat())
        })
        .collect();
    starting.into_iter().map(Starting::ready).collect()
}

/// Calls a node by HTTP for the client with this secret.
fn call(node: &Node, client: usize, method: &str, path: &str, body: &Value) -> Value {
    let mut curl = Command::new("curl");
    curl.args(["-gsS", "-m", "20", "-X", method, "-H", &format!("Lockkeeper-Secret: {}", SECRETS[client])]);
    if !body.is_null() {
        curl.args(["--json", &body.to_string()]);
    }
    let ended = curl.arg(format!("{}/v1/{path}", node.http())).ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// Makes the data: client 0 holds `orders/42`, client 1 waits for it; a number of permits is stored; a
/// snapshot of all this is stored, and log entries behind it.
fn store() {
    let test = TestDir::new();
    let nodes = cluster(&test);
    let test = test.over(&nodes[0].url());
    for client in [0, 1] {
        let session =
            call(&nodes[0], client, "POST", "sessions", &json!({ "ttl_ms": 600_000, "label": "kept" }));
        let acquire = json!({ "session": session["session"], "request": 1, "wait": true, "poll_ms": 0 });
        call(&nodes[0], client, "POST", "locks/orders/42", &acquire);
    }
    assert_eq!(test.ran("set-limit gpu 4").code, 0);
    assert_eq!(test.ran("backup locks.backup").code, 0);
    assert_eq!(test.ran("set-limit gpu 5").code, 0);
    nodes.into_iter().for_each(Node::kill);
    std::fs::create_dir_all(fixtures()).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sparse", "--owner=0", "--group=0", "--numeric-owner", "--file"]);
    tar.arg(fixtures().join(STORED)).args(["data-1", "data-2", "data-3", "locks.backup"]);
    assert_eq!(tar.current_dir(test.path("")).ended().code, 0);
}

#[test]
fn stored_data_of_this_version_are_continued_with_their_holds() {
    if std::env::var_os("LOCKKEEPER_STORE").is_some() {
        store();
    }
    let stored = fixtures().join(STORED);
    assert!(std::fs::metadata(&stored).unwrap().len() <= STORED_BYTES_MAX);
    let test = TestDir::new();
    let unpacked =
        Command::new("tar").arg("--extract").arg("--file").arg(&stored).current_dir(test.path("")).ended();
    assert_eq!(unpacked.code, 0, "{unpacked:?}");

    let nodes = cluster(&test);
    let test = test.over(&nodes[0].url());
    let lock = test.shown("orders/42");
    let (token, holder) = (lock["holds"][0]["token"].as_u64().unwrap(), &lock["holds"][0]["session"]);
    assert_eq!(
        (&lock["holds"][0]["label"], lock["waiters"].as_array().unwrap().len()),
        (&json!("kept"), 1),
        "{lock}"
    );
    assert_eq!(test.ran("run --try orders/42 -- true").code, i32::from(exit::BUSY), "it is held");
    assert_eq!(test.shown("gpu")["permits"], 5, "the entries behind the snapshot count");
    // The clients go on with their sessions: a repeated acquire gets its answer, and a release the next
    // holder.
    let acquire = json!({ "session": holder, "request": 1, "wait": true, "poll_ms": 0 });
    let again = call(&nodes[1], 0, "POST", "locks/orders/42", &acquire);
    assert_eq!((&again["state"], again["token"].as_u64()), (&json!("held"), Some(token)), "{again}");
    let ended = call(&nodes[2], 0, "DELETE", &format!("sessions/{holder}/requests/1"), &Value::Null);
    assert_eq!(ended["end"], "released", "{ended}");
    let next = &test.shown("orders/42")["holds"][0];
    assert!(next["token"].as_u64().unwrap() > token && next["session"] != *holder, "{next}");
    nodes.into_iter().for_each(Node::kill);

    let restored = test.ran("restore locks.backup --data new --json");
    assert_eq!((restored.code, restored.json()["dropped"]["holds"].as_u64()), (0, Some(1)), "{restored:?}");
    let node = test.serve_from("new", "127.0.0.1:0");
    let lock = test.over(&node.url()).shown("gpu");
    assert_eq!(lock["permits"], 4, "as of the backup: {lock}");
}
