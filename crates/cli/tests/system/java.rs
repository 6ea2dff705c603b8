//! The client for Java on a real node: the tests in `clients/java/src/test`, which are two programs, and the
//! page's first program.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockkeeper_rig::Postgres;
use serde_json::{Value, json};

use crate::node::Node;
use crate::support::{CommandExt as _, TestDir};

const PAGE: &str = include_str!("../../../../docs/languages/java.md");
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/java");
const FENCE_SQL: &str = include_str!("../../../fence/src/postgres/fence.sql");
const JDBC: &str = "/usr/share/java/postgresql.jar";

/// Compiles the client and its tests with all warnings, as errors. Returns the folder of the classes.
fn compiled(dir: &TestDir) -> PathBuf {
    let classes = dir.path("classes");
    let mut javac = Command::new("javac");
    javac.args(["--release", "17", "-Xlint:all,-serial,-try", "-Werror", "-d"]).arg(&classes);
    javac.args(sources(Path::new(CLIENT)));
    let status = javac.status().expect("javac is missing: `cargo xtask test` installs it");
    assert!(status.success(), "{javac:?}: {status}");
    classes
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            found.append(&mut sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "java") {
            found.push(path);
        }
    }
    found
}

fn node(dir: &TestDir) -> Node {
    dir.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready()
}

/// Runs a test program with assertions, and little of the machine.
fn java(classes: &Path, test: &str, arguments: &[&str]) {
    let mut java = Command::new("java");
    java.args(["-ea", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
    java.arg(format!("{}:{JDBC}", classes.display())).arg(format!("io.github.lockkeeper.{test}"));
    let status = java.args(arguments).status().expect("java is missing: `cargo xtask test` installs it");
    assert!(status.success(), "{java:?}: {status}");
}

/// Says who it is, takes a lock, and ends with its input.
fn driver_answers(classes: &Path, node: &Node) {
    let mut driver = Command::new("java")
        .arg("-cp")
        .arg(classes)
        .arg("io.github.lockkeeper.Driver")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut commands = driver.stdin.take().unwrap();
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let mut answer = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(answer()["version"], env!("CARGO_PKG_VERSION"));
    let connect = json!({"id": 1, "do": "connect", "url": node.http(), "ttl_ms": 5000});
    let acquire =
        json!({"id": 2, "do": "acquire", "hold": "a", "lock": "driven", "mode": "exclusive", "wait_ms": 0});
    let release = json!({"id": 3, "do": "release", "hold": "a"});
    writeln!(commands, "{connect}\n{acquire}").unwrap();
    assert_eq!(answer(), json!({"id": 1, "ok": {}}));
    assert!(answer()["ok"]["token"].as_u64().is_some());
    writeln!(commands, "{release}").unwrap();
    assert_eq!(answer(), json!({"id": 3, "ok": {"was": "held"}}));
    drop(commands);
    assert!(driver.wait().unwrap().success());
}

#[test]
fn client_for_java_and_its_fence() {
    let dir = TestDir::new();
    let classes = compiled(&dir);
    let node = node(&dir);
    java(&classes, "ClientTest", &[&node.http(), &node.id().to_string()]);

    driver_answers(&classes, &node);

    let postgres = Postgres::start();
    postgres.psql(FENCE_SQL);
    let jdbc = format!("jdbc:postgresql://127.0.0.1:{}/postgres", postgres.port());
    java(&classes, "FenceTest", &[&node.http(), &jdbc]);
}

/// The jar that the page's commands make, in an empty folder, with the page's program.
#[test]
fn first_lock_of_the_page_for_java() {
    let dir = TestDir::new();
    let node = node(&dir);
    let code = |language: &str| {
        let begin = PAGE.find(&format!("```{language}\n")).unwrap() + language.len() + 4;
        PAGE[begin..].split_once("```").unwrap().0
    };
    let build = code("sh").replace("cd clients/java", &format!("cd {CLIENT}"));
    let build = build.replace("-d classes", "-d $0/classes").replace("-C classes", "-C $0/classes");
    let build = build.replace("--file lockkeeper.jar", "--file $0/lockkeeper.jar");
    let built = Command::new("sh").args(["-ec", &build]).arg(dir.path("")).ended();
    assert_eq!((built.code, &built.err[..]), (0, ""), "{built:?}");
    std::fs::write(dir.path("Orders.java"), code("java").replace("http://127.0.0.1:5627", &node.http()))
        .unwrap();
    let ran =
        Command::new("java").args(["-cp", "lockkeeper.jar", "Orders.java"]).current_dir(dir.path("")).ended();
    let token = ran.out.strip_prefix("token ").and_then(|token| token.trim_end().parse::<u64>().ok());
    assert!(ran.code == 0 && token.is_some_and(|token| token > 0), "{ran:?}");
}
