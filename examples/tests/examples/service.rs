//! A Lockkeeper service with one node, in the test's own process.

use std::sync::mpsc;

use lockkeeper_server::{Running, ServerOptions};
use tempfile::TempDir;

/// A running node; stopped on drop.
pub(crate) struct Service {
    running: Running,
    _data: TempDir,
}

impl Service {
    pub(crate) fn start() -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let options = ServerOptions {
            listen: "127.0.0.1:0".to_owned(),
            ..ServerOptions::new(data.path().join("data"))
        };
        let (ready, started) = mpsc::channel();
        std::thread::spawn(move || {
            lockkeeper_server::run(options, |running| ready.send(running).expect("the test waits"))
        });
        Self { running: started.recv().expect("a node that runs"), _data: data }
    }

    pub(crate) fn url(&self) -> String {
        format!("lockkeeper://{}", self.running.address())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running.stop();
    }
}
