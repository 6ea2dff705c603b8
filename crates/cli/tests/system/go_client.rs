//! The client for Go (`clients/go`): its own tests on a real node, its driver, and a leader that is killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::node::Node;
use crate::support::{PATIENCE, TestDir};

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/go");

fn go(words: &[&str]) -> Command {
    let mut go = Command::new("go");
    go.args(words).current_dir(CLIENT).env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
    go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    go
}

fn succeeds(command: &mut Command) {
    let ended = command.output().expect("it runs: install golang-go");
    let said = [&ended.stdout[..], &ended.stderr[..]].concat();
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn go_client_keeps_its_promises_on_a_real_node() {
    let formatted = Command::new("gofmt").args(["-l", CLIENT]).output().expect("install golang-go");
    assert_eq!(String::from_utf8_lossy(&formatted.stdout), "", "`gofmt -w` formats these");
    let place = TestDir::new();
    let node = place.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    succeeds(&mut go(&["vet", "./..."]));
    // The race detector needs a C compiler.
    let has_compiler = Command::new("gcc").arg("--version").output().is_ok();
    let test: &[&str] = if has_compiler { &["test", "-race"] } else { &["test"] };
    succeeds(go(test).args(["-count=1", "./..."]).env("LOCKKEEPER_HTTP", node.http()));
}

#[test]
fn program_of_the_page_compiles_and_runs() {
    const PAGE: &str = include_str!("../../../../docs/languages/go.md");
    let place = TestDir::new();
    let node = place.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    let code = PAGE.split_once("```go\npackage main").unwrap().1.split_once("```").unwrap().0;
    let code = code.replace("http://127.0.0.1:5627", &node.http());
    std::fs::write(place.path("main.go"), format!("package main{code}")).unwrap();
    const MODULE: &str = "github.com/lockkeeper/lockkeeper/clients/go";
    let project =
        format!("module example\n\ngo 1.19\n\nrequire {MODULE} v0.1.0\n\nreplace {MODULE} => {CLIENT}\n");
    std::fs::write(place.path("go.mod"), project).unwrap();
    let ran = go(&["run", "."]).current_dir(place.path("")).output().expect("install golang-go");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(said.starts_with("held, with token "), "{said}{}", String::from_utf8_lossy(&ran.stderr));
}

/// A process of the driver. Killed on drop.
struct Driver {
    process: Child,
    commands: ChildStdin,
    lines: Receiver<Value>,
}

impl Driver {
    fn start(program: &Path) -> Self {
        let mut process =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was built");
        let (commands, out) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.map(|line| serde_json::from_str(&line).unwrap()).try_for_each(|line| send.send(line))
        });
        let driver = Self { process, commands, lines };
        assert_eq!(driver.next()["driver"], "go");
        driver
    }

    fn next(&self) -> Value {
        self.lines.recv_timeout(PATIENCE).expect("a line in time")
    }

    fn send(&mut self, command: &Value) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// The answer to a command, while no other is under way.
    fn ask(&mut self, command: Value) -> Value {
        self.send(&command);
        let answer = self.next();
        assert_eq!(answer["id"], command["id"], "{answer}");
        answer
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn go_clients_go_on_when_the_leader_is_killed() {
    let place = TestDir::new();
    let program: PathBuf = place.path("driver");
    succeeds(go(&["build", "-o"]).arg(&program).arg("./cmd/driver"));
    let (mut nodes, _ports) = place.begin_three();
    let urls: Vec<String> = nodes.iter().map(Node::http).collect();
    let connect = json!({ "id": 1, "do": "connect", "url": urls.join(","), "ttl_ms": 30_000 });
    let (mut holder, mut waiter) = (Driver::start(&program), Driver::start(&program));
    for driver in [&mut holder, &mut waiter] {
        assert_eq!(driver.ask(connect.clone())["ok"], json!({}));
    }
    let acquire = |wait: Value| json!({ "id": 2, "do": "acquire", "hold": "a", "lock": "orders/42", "mode": "exclusive", "wait_ms": wait });
    let first = holder.ask(acquire(json!(0)))["ok"]["token"].as_u64().unwrap();
    assert_eq!(waiter.ask(acquire(json!(0)))["error"]["kind"], "busy");
    assert_eq!(waiter.ask(json!({ "id": 3, "do": "dance" }))["error"]["kind"], "refused");
    waiter.send(&acquire(Value::Null));

    let status = Command::new("curl").arg(format!("{}/v1/status", urls[0])).output().expect("install curl");
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    // Nodes are numbered from 1, in this order.
    nodes.remove(usize::try_from(status["leader"].as_u64().unwrap()).unwrap() - 1).kill();
    assert_eq!(holder.ask(json!({ "id": 4, "do": "release", "hold": "a" }))["ok"]["was"], "held");
    let granted = waiter.next();
    assert!(granted["ok"]["token"].as_u64().unwrap() > first, "{granted}");
    assert!(
        waiter.ask(json!({ "id": 5, "do": "check", "hold": "a" }))["ok"]["valid_ms"].as_u64().unwrap() > 0
    );

    // No node is left: the loss is an event, once.
    let mut loser = Driver::start(&program);
    loser.ask(json!({ "id": 1, "do": "connect", "url": urls.join(","), "ttl_ms": 1_500 }));
    let lead = loser.ask(json!({ "id": 2, "do": "lead", "hold": "b", "election": "leader" }));
    assert!(lead["ok"]["token"].is_u64(), "{lead}");
    nodes.into_iter().for_each(Node::kill);
    assert_eq!(loser.next(), json!({ "event": "lost", "hold": "b" }));
    assert_eq!(loser.ask(json!({ "id": 3, "do": "check", "hold": "b" }))["error"]["kind"], "lost");
    assert_eq!(loser.ask(json!({ "id": 4, "do": "release", "hold": "b" }))["ok"]["was"], "lost");
}
