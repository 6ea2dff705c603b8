//! SeaweedFS, from PyPI: an object store with S3's API that checks the condition of a put and stores the
//! object in one step, and keeps its objects when it is killed.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess};
use crate::program::CommandLine;
use crate::s3::{installed, make_bucket, put_object};

/// A SeaweedFS with an empty bucket ([`BUCKET`](crate::s3::BUCKET)), on plain HTTP, which takes unsigned
/// requests. Ended when dropped.
pub struct SeaweedFs {
    slot: ProcessSlot,
    /// Of S3 first; then those of its parts: S3's gRPC, master, volume server and filer, each with gRPC.
    ports: [Port; 8],
    folder: Folder,
    program: PathBuf,
}

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
        server.run();
        server
    }

    fn run(&self) {
        let options = [
            "-s3.port",
            "-s3.port.grpc",
            "-master.port",
            "-master.port.grpc",
            "-volume.port",
            "-volume.port.grpc",
            "-filer.port",
            "-filer.port.grpc",
        ];
        let data = self.folder.data();
        fs::create_dir_all(&data).expect("our folder is ours");
        let ports =
            options.iter().zip(&self.ports).map(|(option, port)| format!("{option}={}", port.number()));
        let line = CommandLine::new(&self.program)
            .args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"])
            // No other listeners, and small files for the objects.
            .args([
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-volume.max=100",
                "-master.volumeSizeLimitMB=1",
            ])
            .args(ports)
            .args([format!("-dir={}", data.display())]);
        self.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log());
            process.wait_until_ready("SeaweedFS", || {
                make_bucket(self.port())?;
                put_object(self.port(), "ready")
            });
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

    /// `kill -9`.
    pub fn kill(&self) {
        self.slot.kill();
    }

    /// Starts the server again after [`SeaweedFs::kill`], with the objects that it had.
    pub fn start_again(&self) {
        self.run();
    }

    /// Kills the server, deletes its objects, and starts it again.
    pub fn wipe(&self) {
        self.slot.kill();
        fs::remove_dir_all(self.folder.data()).expect("our folder is ours");
        self.run();
    }

    /// SIGSTOP: the server does not answer, its connections stay open.
    pub fn stop(&self) {
        self.slot.stop();
    }

    /// SIGCONT after [`SeaweedFs::stop`].
    pub fn cont(&self) {
        self.slot.cont();
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
