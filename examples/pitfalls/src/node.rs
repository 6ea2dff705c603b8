//! A node of our own lock service, in the script's process.

use std::sync::mpsc;

use lockkeeper_server::{Running, ServerOptions};
use tempfile::TempDir;

use crate::Result;

/// A running node; stopped when dropped.
pub(crate) struct Node {
    running: Running,
    _data: TempDir,
}

impl Node {
    /// Starts a node on a free port of loopback.
    pub(crate) fn start() -> Result<Self> {
        let data = tempfile::tempdir()?;
        let options = ServerOptions {
            listen: "127.0.0.1:0".to_owned(),
            ..ServerOptions::new(data.path().join("data"))
        };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let started = sender.clone();
            // The receiver waits for the first message only.
            let ended = lockkeeper_server::run(options, move |running| drop(started.send(Ok(running))));
            drop(sender.send(
                ended.err().map_or(Err("the node has ended".to_owned()), |error| Err(error.to_string())),
            ));
        });
        Ok(Self { running: receiver.recv()??, _data: data })
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("lockkeeper://{}", self.running.address())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.running.stop();
    }
}
