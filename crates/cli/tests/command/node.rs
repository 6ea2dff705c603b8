//! A real `serve` process on a free port of this machine, stopped by its process id.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Ended, PATIENCE, Place, wait_until};

/// A node while it runs. Killed if the test ends first.
pub(crate) struct Node {
    child: Child,
    /// What it printed when it was ready.
    pub(crate) said: Value,
    rest: mpsc::Receiver<String>,
    log: PathBuf,
}

impl Place {
    /// Starts a node with its data in `data` of this place, and waits until it serves.
    pub(crate) fn serve(&self, listen: &str) -> Node {
        self.serve_from("data", listen)
    }

    /// The same with its data in another directory.
    pub(crate) fn serve_from(&self, data: &str, listen: &str) -> Node {
        self.begin(data, &["--listen", listen]).serves()
    }

    /// Starts a node, which may wait for others before it serves. Its log is named after its data.
    pub(crate) fn begin(&self, data: &str, options: &[&str]) -> Node {
        let log = self.path(&format!("{data}.log"));
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let words = [&["serve", "--json", "--data", data], options].concat();
        let mut child = self.bare(words).stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tell, rest) = mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Node { child, said: Value::Null, rest, log }
    }

    /// A node on any free port, and this place with its locks there.
    pub(crate) fn served(self) -> (Self, Node) {
        let node = self.serve("127.0.0.1:0");
        let url = node.url();
        (self.over(&url), node)
    }
}

impl Node {
    /// Waits until it serves.
    pub(crate) fn serves(mut self) -> Self {
        let Ok(line) = self.rest.recv_timeout(PATIENCE) else { panic!("it did not serve: {}", self.log()) };
        self.said = serde_json::from_str(&line).unwrap();
        self
    }

    pub(crate) fn url(&self) -> String {
        self.said["locks"].as_str().unwrap().to_owned()
    }

    pub(crate) fn listening(&self) -> String {
        self.said["listening"].as_str().unwrap().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// As a power cut does, but for the disk's own cache.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Stops it by a signal: how it ended, with what it printed after its first line.
    pub(crate) fn stopped(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.ended()
    }

    /// Waits until it has ended: how it did, with what it printed after its first line.
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
