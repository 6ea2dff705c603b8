//! A Prometheus server that scrapes the nodes of a test.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess};
use crate::program::{CommandLine, Program, ask};

/// The server.
pub const SERVER: Program = Program { name: "prometheus", package: "prometheus" };
/// Its tool: checks of files, and queries.
pub const TOOL: Program = Program { name: "promtool", package: "prometheus" };

/// A server on its own port; ended when dropped. It scrapes and evaluates its rules every second.
pub struct Prometheus {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    _folder: Folder,
}

impl Prometheus {
    /// Starts a server that scrapes these addresses as one job, and evaluates the rules of a file; returns
    /// once it answers.
    ///
    /// # Panics
    /// `prometheus` is missing or doesn't start.
    #[must_use]
    pub fn start(job: &str, targets: &[String], rules: &Path) -> Self {
        SERVER.path();
        let (slot, port, folder) = (ProcessSlot::empty(), Port::free(), Folder::new("prometheus"));
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n  - job_name: {job}\n    \
             static_configs: [{{targets: {targets:?}}}]\n",
            rules.display()
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).expect("our folder is ours");
        let line = CommandLine::new(SERVER.name)
            .args(["--config.file"])
            .path(&file)
            .args(["--storage.tsdb.path"])
            .path(&folder.data())
            .args([&format!("--web.listen-address=127.0.0.1:{}", port.number())]);
        slot.fill(|| ServerProcess::start(&line, Signal::SIGKILL, &folder.log()));
        let server = Self { slot, port, _folder: folder };
        server.slot.wait_until_ready("prometheus", || server.query("vector(1)").map(drop));
        server
    }

    /// The result of a query at this moment, as JSON.
    ///
    /// # Errors
    /// The server refuses the query, or does not answer within 30 s.
    pub fn query(&self, query: &str) -> Result<String, String> {
        let url = format!("http://127.0.0.1:{}", self.port.number());
        ask(TOOL, |tool| {
            tool.args(["query", "--format=json", "instant", &url, query]);
        })
    }
}
