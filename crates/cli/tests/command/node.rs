//! A real `serve` process on a free port of this machine; stopped by process id.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc;

use lockkeeper_rig::Port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Ended, PATIENCE, TestDir, wait_until};

/// A running node. Killed on drop.
pub(crate) struct Node {
    child: Child,
    /// The startup line that the node printed, as JSON.
    pub(crate) said: Value,
    rest: mpsc::Receiver<String>,
    log: PathBuf,
}

/// A node that does not serve yet. Killed on drop.
pub(crate) struct Starting {
    child: Option<Child>,
    lines: mpsc::Receiver<String>,
    log: PathBuf,
}

impl TestDir {
    /// Starts a node with its data in `data` of this test directory, and waits until it serves.
    pub(crate) fn serve(&self, listen: &str) -> Node {
        self.serve_from("data", listen)
    }

    /// As `serve`, with the data in another directory.
    pub(crate) fn serve_from(&self, data: &str, listen: &str) -> Node {
        self.start(&["--data", data, "--listen", listen], "serve.log").ready()
    }

    /// Starts a node with its data in this test directory; the log is named after the data directory.
    pub(crate) fn begin(&self, data: &str, options: &[&str]) -> Starting {
        self.start(&[&["--data", data], options].concat(), &format!("{data}.log"))
    }

    /// Starts three nodes of a new cluster, which serve HTTP/JSON too. Returns them, and their ports for each
    /// other, which are theirs until these are dropped.
    pub(crate) fn begin_three(&self) -> (Vec<Node>, [Port; 3]) {
        self.begin_three_with(&[])
    }

    /// The same, with further options.
    pub(crate) fn begin_three_with(&self, options: &[&str]) -> (Vec<Node>, [Port; 3]) {
        let peers = [(); 3].map(|()| Port::free());
        let list: Vec<String> =
            (1..).zip(&peers).map(|(node, port)| format!("{node}=127.0.0.1:{}", port.number())).collect();
        let list = list.join(",");
        let starting = [1, 2, 3].map(|node| {
            let name = node.to_string();
            let more = ["--node", &name, "--cluster", &list, "--http-listen", "127.0.0.1:0"];
            self.begin(&format!("data-{node}"), &[&["--listen", "127.0.0.1:0"], &more[..], options].concat())
        });
        (starting.into_iter().map(Starting::ready).collect(), peers)
    }

    /// Starts a node that logs to this file of the test directory.
    pub(crate) fn start(&self, words: &[&str], log: &str) -> Starting {
        let log = self.path(log);
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut child = self
            .bare([&["serve", "--json"], words].concat())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Starting { child: Some(child), lines, log }
    }

    /// Starts a node on a port that stays reserved for it; also returns this test directory, with the node as
    /// its lock service.
    pub(crate) fn served(self) -> (Self, Node) {
        let node = self.serve(&self.address());
        let url = node.url();
        (self.over(&url), node)
    }
}

impl Starting {
    /// Waits until the node serves.
    pub(crate) fn ready(mut self) -> Node {
        let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
            panic!("it did not serve: {}", self.log());
        };
        let rest = std::mem::replace(&mut self.lines, mpsc::channel().1);
        let child = self.child.take().expect("it is taken here only");
        Node { child, said: serde_json::from_str(&line).unwrap(), rest, log: self.log.clone() }
    }

    /// Whether the node has printed its startup line, or has ended.
    pub(crate) fn serves(&self) -> bool {
        !matches!(self.lines.try_recv(), Err(mpsc::TryRecvError::Empty))
    }

    /// The node's log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Node {
    pub(crate) fn url(&self) -> String {
        self.said["locks"].as_str().unwrap().to_owned()
    }

    /// The address of HTTP/JSON.
    pub(crate) fn http(&self) -> String {
        self.said["http"].as_str().unwrap().to_owned()
    }

    pub(crate) fn listening(&self) -> String {
        self.said["listening"].as_str().unwrap().to_owned()
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.id()).unwrap()), signal).unwrap();
    }

    /// Kills the node (SIGKILL). In contrast to a power cut, the contents of the kernel's page cache survive.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The node's log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Stops the node by a signal; returns the exit code, the output after the startup line, and the log as
    /// `err`.
    pub(crate) fn stopped(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.ended()
    }

    /// Waits until the node has ended; returns the exit code, the output after the startup line, and the log
    /// as `err`.
    pub(crate) fn ended(mut self) -> Ended {
        let mut status = None;
        wait_until("the node has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let code = status.and_then(|status| status.code()).expect("a code, not a signal");
        Ended { code, out: self.rest.iter().collect(), err: self.log() }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
