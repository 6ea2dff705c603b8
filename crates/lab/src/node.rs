//! A node of our own lock service, as a process of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use tempfile::TempDir;

use crate::Result;

/// A running node; killed when dropped.
pub(crate) struct Node {
    process: Child,
    url: String,
    _data: TempDir,
}

/// The line that `serve --json` prints when the node serves.
#[derive(Deserialize)]
struct Serves {
    locks: String,
}

impl Node {
    /// Starts a node on a free port of loopback.
    pub(crate) fn start() -> Result<Self> {
        let data = tempfile::tempdir()?;
        let mut process = Command::new(lockkeeper()?)
            .args(["serve", "--listen", "127.0.0.1:0", "--json", "--log-level", "error", "--data"])
            .arg(data.path().join("data"))
            .stdout(Stdio::piped())
            // Ctrl-C must reach the script only.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("the command `lockkeeper` can't be started: {error}"))?;
        let mut line = String::new();
        let stdout = process.stdout.take().ok_or("a node was started without its pipe")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let serves = serde_json::from_str::<Serves>(&line);
        let mut node = Self { process, url: String::new(), _data: data };
        node.url = serves.map_err(|error| format!("the node does not serve: {error} in {line:?}"))?.locks;
        Ok(node)
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The command `lockkeeper`: beside this program, as both are installed and built, else in `PATH`.
fn lockkeeper() -> Result<OsString> {
    let beside = std::env::current_exe()?.with_file_name("lockkeeper");
    Ok(if beside.is_file() { beside.into_os_string() } else { "lockkeeper".into() })
}
