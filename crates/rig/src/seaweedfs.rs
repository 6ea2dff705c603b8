//! SeaweedFS, from PyPI: an object store with S3's API that checks the condition of a put and stores the
//! object in one step, and keeps its objects when it is killed.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::CommandLine;
use crate::s3::{installed, make_bucket, put_object};

/// How many ports a server has.
pub const PORTS: usize = 8;

/// A SeaweedFS with an empty bucket ([`BUCKET`](crate::s3::BUCKET)), on plain HTTP, which takes unsigned
/// requests. Ended when dropped.
pub struct SeaweedFs {
    slot: ProcessSlot,
    /// In the order of [`line()`].
    ports: [Port; PORTS],
    folder: Folder,
    program: PathBuf,
}

process_methods!(SeaweedFs, wipe);

impl SeaweedFs {
    /// Starts a server; returns once an object can be stored. `foreign` is the folder with the packages that
    /// `cargo xtask test` installs from registries.
    ///
    /// # Panics
    /// SeaweedFS is missing, or doesn't start.
    #[must_use]
    pub fn start(foreign: &Path) -> Self {
        let server = Self {
            slot: ProcessSlot::empty(),
            ports: std::array::from_fn(|_| Port::free()),
            folder: Folder::new("seaweedfs"),
            program: installed(foreign, "pypi-seaweedfs", "bin").join("weed"),
        };
        server.start_again();
        server
    }

    /// Starts the server after [`SeaweedFs::kill`], with the objects that it had.
    pub fn start_again(&self) {
        let data = self.folder.data();
        fs::create_dir_all(&data).expect("our folder is ours");
        let line = line(&self.program, self.ports.each_ref().map(Port::number), &data);
        self.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log());
            process.wait_until_ready("SeaweedFS", || prepare(self.port()));
            process
        });
    }

    /// The port of S3 on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports[0].number()
    }

    /// `http://127.0.0.1:PORT`, with the bucket as the first segment of the path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }
}

/// Removes its Unix sockets, whose places can't be chosen.
impl Drop for SeaweedFs {
    fn drop(&mut self) {
        self.slot.clear(Signal::SIGKILL);
        for part in ["filer", "filer-grpc", "master-grpc", "s3", "s3-grpc", "volume-grpc"] {
            for port in &self.ports {
                let _ = fs::remove_file(format!("/tmp/seaweedfs-{part}-{}.sock", port.number()));
            }
        }
    }
}

/// The command line of a SeaweedFS in the foreground: on 127.0.0.1, with its objects in the existing folder
/// `data`. The ports: of S3 and its gRPC, then of the master, volume server and filer, each with its gRPC.
#[must_use]
pub fn line(program: &Path, ports: [u16; PORTS], data: &Path) -> CommandLine {
    const OPTIONS: [&str; PORTS] = [
        "-s3.port",
        "-s3.port.grpc",
        "-master.port",
        "-master.port.grpc",
        "-volume.port",
        "-volume.port.grpc",
        "-filer.port",
        "-filer.port.grpc",
    ];
    CommandLine::new(program)
        .args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"])
        // No other listeners, and small files for the objects.
        .args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=100", "-master.volumeSizeLimitMB=1"])
        .args(OPTIONS.iter().zip(ports).map(|(option, port)| format!("{option}={port}")))
        .args([format!("-dir={}", data.display())])
}

/// Creates the bucket, unless it exists, and stores an object in it: that works once all parts of the server
/// at this port of S3 are ready.
///
/// # Errors
/// The server does not answer, or refuses.
pub fn prepare(port: u16) -> Result<(), String> {
    make_bucket(port)?;
    put_object(port, "ready")
}
