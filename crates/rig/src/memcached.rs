//! One memcached server.

use std::net::TcpStream;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program};

/// The server.
pub const SERVER: Program = Program { name: "memcached", package: "memcached" };

/// A memcached server on its own port; ended when dropped. Nothing outlives its process.
pub struct Memcached {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
}

process_methods!(Memcached);

impl Memcached {
    /// Starts a server; returns once it accepts connections.
    ///
    /// # Panics
    /// `memcached` is missing or doesn't start.
    #[must_use]
    pub fn start() -> Self {
        let server =
            Self { slot: ProcessSlot::empty(), port: Port::free(), folder: Folder::new("memcached") };
        server.start_again();
        server
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Starts a killed server, without items.
    pub fn start_again(&self) {
        SERVER.path();
        let line = CommandLine::new(SERVER.name)
            .args(["-l", "127.0.0.1", "-p", &self.port().to_string(), "-U", "0"])
            .unprivileged();
        self.slot.fill(|| ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log()));
        self.slot.wait_until_ready("memcached", || {
            TcpStream::connect(("127.0.0.1", self.port())).map(drop).map_err(|error| error.to_string())
        });
    }
}
