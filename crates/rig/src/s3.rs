//! Emulators of Amazon S3, from PyPI and npm.
//!
//! Responsible for starting the emulators, each with an empty bucket. Their data are lost when they end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program};

/// The program that runs moto.
pub const PYTHON: Program = Program { name: "python3", package: "python3" };
/// The program that runs s3rver and Azurite.
pub const NODE: Program = Program { name: "node", package: "nodejs" };

/// The bucket that exists from the start.
pub const BUCKET: &str = "lockkeeper";

/// moto compares the ETag and stores the object in two steps, and serves each connection on a thread of its
/// own. S3 guarantees that of two puts with the same condition one is refused, so this script serves one
/// request at a time.
pub const MOTO: &str = "\
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_at_a_time(environ, start_response):
    with turn:
        return list(app(environ, start_response))
run_simple('127.0.0.1', int(sys.argv[1]), one_at_a_time, threaded=True, request_handler=MotoRequestHandler)
";

/// A server with S3's API, on plain HTTP. Ended when dropped.
pub struct S3 {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
}

process_methods!(S3);

impl S3 {
    /// Starts a server with S3's guarantees for conditional puts: moto. `foreign` is the folder with the
    /// packages that `cargo xtask test` installs from registries.
    ///
    /// # Panics
    /// `python3` or moto is missing, or moto doesn't start.
    #[must_use]
    pub fn start(foreign: &Path) -> Self {
        let library = installed(foreign, "pypi-aws", "moto");
        PYTHON.path();
        let line = |s3: &Self| {
            CommandLine::new(PYTHON.name).env("PYTHONPATH", library.parent().unwrap_or(foreign)).args([
                "-c",
                MOTO,
                &s3.port().to_string(),
            ])
        };
        Self::run("moto", line)
    }

    /// Starts a server that ignores the conditions of puts: s3rver.
    ///
    /// # Panics
    /// `node` or s3rver is missing, or s3rver doesn't start.
    #[must_use]
    pub fn without_conditions(foreign: &Path) -> Self {
        let program = installed(foreign, "npm-stores", "node_modules/s3rver").join("bin/s3rver.js");
        NODE.path();
        let line = |s3: &Self| {
            CommandLine::new(NODE.name)
                .path(&program)
                .args(["--address", "127.0.0.1", "--port", &s3.port().to_string(), "--directory"])
                .path(s3.folder.path())
        };
        Self::run("s3rver", line)
    }

    fn run(name: &str, line: impl FnOnce(&Self) -> CommandLine) -> Self {
        let s3 = Self { port: Port::free(), folder: Folder::new(name), slot: ProcessSlot::empty() };
        let line = line(&s3);
        s3.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &s3.folder.log());
            process.wait_until_ready(name, || make_bucket(s3.port()));
            process
        });
        s3
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `http://127.0.0.1:PORT`, with the bucket as the first segment of the path. moto accepts any
    /// credentials; s3rver accepts `S3RVER` with the secret `S3RVER`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }
}

/// The folder of a library that xtask installs.
pub(crate) fn installed(foreign: &Path, set: &str, library: &str) -> std::path::PathBuf {
    let folder = foreign.join(set).join(library);
    assert!(
        folder.is_dir(),
        "{} is missing, and this test needs it: `cargo xtask test` installs it",
        folder.display()
    );
    folder
}

/// Creates the bucket, unless it exists, by an unsigned request: no server here requires a signature for
/// that.
pub(crate) fn make_bucket(port: u16) -> Result<(), String> {
    put(port, &format!("/{BUCKET}")).and_then(|answer| {
        let exists = answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 409");
        if exists { Ok(()) } else { Err(format!("no bucket: {answer}")) }
    })
}

/// Stores an empty object in the bucket by an unsigned request.
pub(crate) fn put_object(port: u16, key: &str) -> Result<(), String> {
    put(port, &format!("/{BUCKET}/{key}")).and_then(|answer| {
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(format!("no object: {answer}")) }
    })
}

fn put(port: u16, path: &str) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut server = TcpStream::connect(("127.0.0.1", port))?;
        server.set_read_timeout(Some(Duration::from_secs(30)))?;
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        server.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    ask().map_err(|error| error.to_string())
}
