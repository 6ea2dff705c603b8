//! An emulator of Azure Blob Storage, from npm: Azurite.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess};
use crate::program::{CommandLine, ask};
use crate::s3::{NODE, installed};

/// The container that exists from the start.
pub const CONTAINER: &str = "lockkeeper";

/// The account that Azurite has by default.
pub const ACCOUNT: &str = "devstoreaccount1";
/// The account's key. It is no secret: Azurite's manual contains it.
pub const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Creates the container by a signed request; run by `node`.
const MAKE_CONTAINER: &str = r"
const [port, container, account, key] = process.argv.slice(1);
const headers = { 'x-ms-date': new Date().toUTCString(), 'x-ms-version': '2021-08-06' };
const signed = ['PUT', ...Array(11).fill(''), `x-ms-date:${headers['x-ms-date']}`,
  `x-ms-version:${headers['x-ms-version']}`, `/${account}/${account}/${container}`, 'restype:container'].join('\n');
const mac = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(signed, 'utf8').digest('base64');
headers.Authorization = `SharedKey ${account}:${mac}`;
headers['Content-Length'] = 0;
const path = `/${account}/${container}?restype=container`;
require('http').request({ host: '127.0.0.1', port, path, method: 'PUT', headers }, (answer) => {
  if (answer.statusCode !== 201) { console.error(`status ${answer.statusCode}`); process.exitCode = 1; }
  answer.resume();
}).on('error', (error) => { console.error(error.message); process.exitCode = 1; }).end();
";

/// An Azurite server with an empty container, on plain HTTP. Its data are lost when it ends. Ended when
/// dropped.
pub struct Azurite {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
}

impl Azurite {
    /// Starts an emulator; returns once the container is created. `foreign` is the folder with the packages
    /// that `cargo xtask test` installs from registries.
    ///
    /// # Panics
    /// `node` or Azurite is missing, or Azurite doesn't start.
    #[must_use]
    pub fn start(foreign: &Path) -> Self {
        let program = installed(foreign, "npm-stores", "node_modules/azurite").join("dist/src/blob/main.js");
        NODE.path();
        let azurite = Self { port: Port::free(), folder: Folder::new("azurite"), slot: ProcessSlot::empty() };
        let port = azurite.port().to_string();
        let line = CommandLine::new(NODE.name)
            .path(&program)
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port, "--inMemoryPersistence"])
            // No telemetry, and no refusal of newer protocol versions.
            .args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"]);
        azurite.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &azurite.folder.log());
            process.wait_until_ready("azurite", || {
                ask(NODE, |node| {
                    node.args(["-e", MAKE_CONTAINER, &port, CONTAINER, ACCOUNT, KEY]);
                })
                .map(drop)
            });
            process
        });
        azurite
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `http://127.0.0.1:PORT/devstoreaccount1`, the address of [`ACCOUNT`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{ACCOUNT}", self.port())
    }
}
