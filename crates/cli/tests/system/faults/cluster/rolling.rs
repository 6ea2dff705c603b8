//! All nodes are restarted in turn while a long job runs under a lock and other clients work: the job is not
//! affected.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use lockkeeper::LockName;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::nodes::{ALL, Nodes};
use crate::faults::load::Load;
use crate::faults::server::{PATIENCE, answer, until};

/// A shell command that prints a line at its start and at its end, and ends once the file `$0` exists.
const JOB: &str = r#"echo begun; while [ ! -e "$0" ]; do sleep 0.05; done; echo done"#;

/// A `lockkeeper run` process; killed on drop. Its guardian then ends the command.
struct Job(Child);

impl Job {
    fn start(url: &str, beside: &Path, stop: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(["run", "--locks", url, "--ttl", "12s", "--status-file"]).arg(beside.join("status"));
        command.args(["rolling/job", "--", "sh", "-c", JOB]).arg(stop);
        command.env_remove("LOCKKEEPER_URL").stdin(Stdio::null());
        command.stdout(File::create(beside.join("out")).unwrap());
        Self(command.stderr(File::create(beside.join("err")).unwrap()).spawn().unwrap())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    File::open(path).and_then(|mut file| file.read_to_string(&mut text)).map_or(String::new(), |_| text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_does_not_affect_a_job_under_a_lock() {
    let mut nodes = Nodes::founded();
    let test = tempfile::tempdir().unwrap();
    let stop = test.path().join("stop");
    let mut job = Job::start(&nodes.url(), test.path(), &stop);
    until("the job runs", || read(&test.path().join("out")) == "begun\n");
    let watcher = nodes.client("watcher").await;
    let name: LockName = "rolling/job".parse().unwrap();
    let holder = async || {
        let info = watcher.inspect(&name).await.ok()?;
        info.holds.first().and_then(|holder| holder.token)
    };
    let token = answer("it is held", holder).await;

    let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
    for round in 0..2 {
        for node in ALL {
            load.goes_on(20);
            nodes.nodes[node].signal(Signal::SIGTERM);
            let status = nodes.nodes[node].ended();
            assert_eq!(status.code(), Some(0), "node {}: {}", node + 1, nodes.nodes[node].log());
            load.goes_on(20);
            nodes.nodes[node].start();
            nodes.catches_up(node).await;
            assert_eq!(answer("it is held", holder).await, token, "round {round}, node {}", node + 1);
        }
    }
    let done = load.checked().await;
    assert!(done.granted >= 2 * 3 * 40, "{} granted", done.granted);

    File::create(&stop).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut ended = None;
    until("the job ends", || {
        ended = job.0.try_wait().unwrap();
        ended.is_some() || Instant::now() > deadline
    });
    let said = (read(&test.path().join("out")), read(&test.path().join("err")));
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{said:?}");
    assert_eq!(said.0, "begun\ndone\n", "once, and to its end");
    let status: Value = serde_json::from_str(&read(&test.path().join("status"))).unwrap();
    assert_eq!((&status["outcome"], &status["token"]), (&Value::from("ran"), &Value::from(token.get())));
}
