//! Nodes of our own lock service, each as a process of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use lockkeeper_rig::Port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tempfile::TempDir;

use crate::Result;

/// A node; killed when dropped.
pub(crate) struct Node {
    options: Vec<String>,
    data: TempDir,
    process: Option<Child>,
    pub(crate) serves: Serves,
    /// Reserved for the node until this value is dropped.
    _ports: Vec<Port>,
}

/// The line that `serve --json` prints when the node serves.
#[derive(Default, Deserialize)]
pub(crate) struct Serves {
    /// The URL for clients.
    pub(crate) locks: String,
    /// Its address.
    pub(crate) listening: String,
    /// The URL of HTTP/JSON, if it is served.
    pub(crate) http: Option<String>,
}

impl Node {
    /// Starts a node of its own on free ports of loopback.
    pub(crate) fn start() -> Result<Self> {
        let options = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
        let mut node = Self::unstarted(options.map(str::to_owned).to_vec(), Vec::new())?;
        node.begin()?;
        node.serves()?;
        Ok(node)
    }

    /// Starts three nodes that form one cluster.
    pub(crate) fn cluster() -> Result<Vec<Self>> {
        let ports: Vec<[Port; 3]> = (0..3).map(|_| std::array::from_fn(|_| Port::free())).collect();
        let at = |port: &Port| format!("127.0.0.1:{}", port.number());
        let peers = (1..).zip(&ports).map(|(id, ports)| format!("{id}={}", at(&ports[2])));
        let cluster = peers.collect::<Vec<_>>().join(",");
        let mut nodes = Vec::new();
        for (id, ports) in (1..).zip(ports) {
            let [listen, http, _] = ports.each_ref().map(at);
            let options = ["--listen", &listen, "--http-listen", &http, "--cluster", &cluster, "--node"];
            let mut options = options.map(str::to_owned).to_vec();
            options.push(format!("{id}"));
            nodes.push(Self::unstarted(options, Vec::from(ports))?);
        }
        // No node serves before all have connected to each other.
        nodes.iter_mut().try_for_each(Self::begin)?;
        nodes.iter_mut().try_for_each(Self::serves)?;
        Ok(nodes)
    }

    fn unstarted(options: Vec<String>, ports: Vec<Port>) -> Result<Self> {
        let data = tempfile::tempdir()?;
        Ok(Self { options, data, process: None, serves: Serves::default(), _ports: ports })
    }

    /// Starts it, and does not wait until it serves.
    pub(crate) fn begin(&mut self) -> Result {
        let process = Command::new(lockkeeper()?)
            .args(["serve", "--json", "--log-level", "error", "--data"])
            .arg(self.data.path().join("data"))
            .args(&self.options)
            .stdout(Stdio::piped())
            // Ctrl-C must reach the script only.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("the command `lockkeeper` can't be started: {error}"))?;
        self.process = Some(process);
        Ok(())
    }

    /// Waits until it serves.
    pub(crate) fn serves(&mut self) -> Result {
        let process = self.process.as_mut().ok_or("the node was not started")?;
        let stdout = process.stdout.take().ok_or("a node was started without its pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let serves = serde_json::from_str(&line);
        self.serves = serves.map_err(|error| format!("the node does not serve: {error} in {line:?}"))?;
        Ok(())
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        self.serves.locks.clone()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result {
        let process = self.process.as_ref().ok_or("the node does not run")?;
        Ok(kill(Pid::from_raw(i32::try_from(process.id())?), signal)?)
    }

    /// Kills it (SIGKILL), and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command `lockkeeper`: beside this program, as both are installed and built, else in `PATH`.
fn lockkeeper() -> Result<OsString> {
    let beside = std::env::current_exe()?.with_file_name("lockkeeper");
    Ok(if beside.is_file() { beside.into_os_string() } else { "lockkeeper".into() })
}
