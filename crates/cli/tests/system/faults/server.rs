//! A real `serve` process, with the same port across restarts; and functions that wait with a time limit.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lockkeeper::{Fenced, Locks};
use lockkeeper_rig::{Network, Port, Shim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Far longer than any step takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The ttl of holds that must survive every fault of a test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A node with its directory; killed on drop.
pub(crate) struct Server {
    test: tempfile::TempDir,
    /// The data directory.
    pub(crate) data: PathBuf,
    listen: String,
    /// Reserved until this value is dropped, so that a restarted node finds its port free.
    _port: Port,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    /// The network host on which the node runs; `None` for the test's own network.
    host: Option<(Arc<Network>, usize)>,
    child: Option<Child>,
    /// Lines of the node's standard output.
    said: Option<mpsc::Receiver<String>>,
}

impl Server {
    /// A node that is not started yet; `options` are arguments of `serve` without spaces in them.
    pub(crate) fn new(options: &str) -> Self {
        let (test, port) = (tempfile::tempdir().unwrap(), Port::free());
        Self {
            data: test.path().join("data"),
            test,
            listen: format!("127.0.0.1:{}", port.number()),
            _port: port,
            options: options.split_whitespace().map(str::to_owned).collect(),
            environment: Vec::new(),
            host: None,
            child: None,
            said: None,
        }
    }

    /// Starts a node, and waits until it serves.
    pub(crate) fn started(options: &str) -> Self {
        let mut server = Self::new(options);
        server.start();
        server
    }

    /// Sets the additional environment variables of later starts, in place of earlier ones.
    pub(crate) fn environment(&mut self, variables: &[(&str, &Path)]) {
        let pair = |(name, value): &(&str, &Path)| ((*name).to_owned(), value.display().to_string());
        self.environment = variables.iter().map(pair).collect();
    }

    /// A shim that makes syncs fail or delays them, for later starts.
    pub(crate) fn shim(&mut self) -> Shim {
        let shim = Shim::new(self.test.path());
        self.environment(&shim.environment());
        shim
    }

    /// Adds an option to later starts.
    pub(crate) fn option(&mut self, option: &str) {
        self.options.extend(option.split_whitespace().map(str::to_owned));
    }

    /// Later starts run on a host of this network.
    pub(crate) fn at(&mut self, network: &Arc<Network>, host: usize) {
        self.host = Some((network.clone(), host));
    }

    /// A path next to the data directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.test.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LOCKKEEPER_") {
                command.env_remove(name);
            }
        }
        let log = File::options().create(true).append(true).open(self.beside("log")).unwrap();
        command
            .arg("serve")
            .arg("--data")
            .arg(&self.data)
            .args(["--listen", &self.listen, "--json"])
            .args(&self.options)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        command
    }

    fn spawn(&self) -> Child {
        let mut command = self.command();
        match &self.host {
            Some((network, host)) => network.at(*host, || command.spawn()),
            None => command.spawn(),
        }
        .unwrap()
    }

    /// Sets the listen address, in place of the node's reserved port.
    pub(crate) fn listens(&mut self, address: String) {
        self.listen = address;
    }

    /// Starts the node and waits until it serves.
    pub(crate) fn start(&mut self) {
        self.begin();
        self.serves();
    }

    /// Starts the node without waiting.
    pub(crate) fn begin(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let mut child = self.spawn();
        let out = BufReader::new(child.stdout.take().unwrap());
        self.child = Some(child);
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        self.said = Some(lines);
    }

    /// Waits until the node serves.
    pub(crate) fn serves(&mut self) {
        let said = self.said.take().expect("it was started");
        let Ok(line) = said.recv_timeout(PATIENCE) else { panic!("it did not serve: {}", self.log()) };
        let said: Value = serde_json::from_str(&line).unwrap();
        said["listening"].as_str().unwrap().clone_into(&mut self.listen);
    }

    /// Starts the node, waits until it ends by itself, and returns the exit status.
    pub(crate) fn refused(&mut self) -> ExitStatus {
        self.child = Some(self.spawn());
        self.ended()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().expect("it runs").id();
        kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let status = self.ended();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "it ended by itself: {}", self.log());
    }

    /// Waits until the process has ended. Kills the process and fails the test after [`PATIENCE`].
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("it did not end: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The log of all starts of the node.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.beside("log")).unwrap_or_default()
    }

    pub(crate) fn url(&self) -> String {
        format!("lockkeeper://{}", self.listen)
    }

    pub(crate) async fn client(&self, label: &str) -> Locks<Fenced> {
        Locks::connect_as(&self.url(), label).await.unwrap().fenced().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Polls until the condition is true.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Polls until `ask` returns a value.
pub(crate) async fn answer<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Awaits a future that must complete within [`PATIENCE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, future).await else {
        panic!("waited in vain until {what}")
    };
    value
}
