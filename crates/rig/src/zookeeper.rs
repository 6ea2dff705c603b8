//! ZooKeeper servers: one alone, or an ensemble of three.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program, find};
use crate::tls::Certificates;

/// The program that runs the server.
pub const JAVA: Program = Program { name: "java", package: "default-jre-headless" };
/// The server's classes. Debian installs their dependencies into the same folder.
pub const CLASSES: Program = Program { name: "/usr/share/java/zookeeper.jar", package: "zookeeper" };

/// Time limit for a server to answer one question about its state.
const ASK: Duration = Duration::from_secs(2);

/// The second compiler and the parallel collector of Java cost a short-lived server more than they give.
const SHORT_LIVED: [&str; 3] = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

/// One ZooKeeper server on its own ports; ended when dropped. It syncs every write. A tick is 500 ms: its
/// sessions last between one second and an hour. Empty containers are removed after 100 ms (a minute by
/// default).
pub struct ZooKeeper {
    // The first field, so that the process is ended before its ports are released and its folder removed.
    slot: ProcessSlot,
    clients: Port,
    /// For the other servers of its ensemble: the leader's port, and that of elections.
    peers: [Port; 2],
    /// The lines about the ensemble, and the server's number in it.
    ensemble: Option<(String, usize)>,
    /// The port for clients with TLS, and the server's files.
    tls: Option<(Port, Certificates)>,
    /// Further lines of its settings.
    further: String,
    folder: Folder,
}

process_methods!(ZooKeeper, wipe);

impl ZooKeeper {
    /// Starts a server; returns once it answers.
    ///
    /// # Panics
    /// `java` or ZooKeeper's classes are missing, or the server doesn't start; this applies to all functions
    /// that start one.
    #[must_use]
    pub fn start() -> Self {
        let zookeeper = Self::prepared();
        zookeeper.start_again();
        zookeeper
    }

    /// Starts a server with further lines of settings, each of which ends its line.
    #[must_use]
    pub fn with(further: &str) -> Self {
        let mut zookeeper = Self::prepared();
        zookeeper.further = further.to_owned();
        zookeeper.start_again();
        zookeeper
    }

    /// Starts a server with a further port for clients with TLS, which must have a certificate of its
    /// authority.
    #[must_use]
    pub fn start_tls() -> Self {
        let mut zookeeper = Self::prepared();
        let files = Certificates::make(zookeeper.folder.path());
        zookeeper.tls = Some((Port::free(), files));
        zookeeper.start_again();
        zookeeper
    }

    /// The port for clients with TLS, and its files: the authority, a certificate that it has signed, and its
    /// key.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn tls(&self) -> (u16, [&Path; 3]) {
        let (port, files) = self.tls.as_ref().expect("it was started with TLS");
        (port.number(), [&files.ca, &files.certificate, &files.key])
    }

    /// Starts an ensemble of three servers; returns once each of them answers.
    #[must_use]
    pub fn ensemble() -> [Self; 3] {
        let mut servers = [Self::prepared(), Self::prepared(), Self::prepared()];
        let mut lines = "initLimit=10\nsyncLimit=5\n".to_owned();
        for (server, number) in servers.iter().zip(1..) {
            let [leader, election] = &server.peers;
            // Writing to a string does not fail.
            let _ = writeln!(lines, "server.{number}=127.0.0.1:{}:{}", leader.number(), election.number());
        }
        for (server, number) in servers.iter_mut().zip(1..) {
            server.ensemble = Some((lines.clone(), number));
        }
        servers.iter().for_each(Self::spawn);
        servers.iter().for_each(Self::wait_until_ready);
        servers
    }

    fn prepared() -> Self {
        Self {
            slot: ProcessSlot::empty(),
            clients: Port::free(),
            peers: [Port::free(), Port::free()],
            ensemble: None,
            tls: None,
            further: String::new(),
            folder: Folder::new("zookeeper"),
        }
    }

    /// The port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.clients.number()
    }

    /// `zookeeper://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port())
    }

    /// Whether this server leads its ensemble.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.ask("srvr").is_ok_and(|state| state.contains("Mode: leader"))
    }

    /// Starts the server after [`ZooKeeper::kill`]: on the same ports, with the data that are on disk.
    pub fn start_again(&self) {
        self.spawn();
        self.wait_until_ready();
    }

    fn spawn(&self) {
        assert!(
            find(CLASSES.name).is_some(),
            "{} is missing: `apt-get install {}`",
            CLASSES.name,
            CLASSES.package
        );
        let data = self.folder.data();
        fs::create_dir_all(&data).expect("our folder is ours");
        let mut more = format!("maxSessionTimeout=3700000\n{}", self.further);
        if let Some((lines, number)) = &self.ensemble {
            more.push_str(lines);
            fs::write(data.join("myid"), format!("{number}\n")).expect("our folder is ours");
        }
        if let Some((port, files)) = &self.tls {
            // One file with the key and the certificate.
            let both = self.folder.path().join("both.pem");
            let read = |file: &Path| fs::read_to_string(file).expect("we have written it");
            fs::write(&both, read(&files.key) + &read(&files.certificate)).expect("our folder is ours");
            // Writing to a string does not fail.
            let _ = write!(
                more,
                "secureClientPort={}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 ssl.keyStore.location={}\nssl.trustStore.location={}\n",
                port.number(),
                both.display(),
                files.ca.display()
            );
        }
        let file = self.folder.path().join("zoo.cfg");
        fs::write(&file, settings(self.port(), &data, 500, &more)).expect("our folder is ours");
        let line = line(&file, &SHORT_LIVED);
        self.slot.fill(|| ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log()));
    }

    fn wait_until_ready(&self) {
        // A member of an ensemble that knows no leader answers without a mode.
        self.slot.wait_until_ready("zookeeper", || {
            let state = self.ask("srvr")?;
            if !state.contains("Mode: ") {
                return Err(format!("it answers {state:?}"));
            }
            // The first session takes seconds on a busy machine, longer than a client waits.
            self.open_session().map_err(|error| format!("it opens no session: {error}"))
        });
    }

    /// Opens a session and closes it.
    fn open_session(&self) -> std::io::Result<()> {
        // After its length, a request to connect: the protocol's version, the last transaction seen, the
        // time-out in milliseconds, no session to resume, an empty password of 16 bytes, and not read-only.
        let mut connect = vec![0; 45];
        connect[12..16].copy_from_slice(&4_000_u32.to_be_bytes());
        connect[24..28].copy_from_slice(&16_u32.to_be_bytes());
        // The end of a session: a number of the request, and its type.
        let close = [1_i32.to_be_bytes(), (-11_i32).to_be_bytes()].concat();
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], self.port())), ASK)?;
        stream.set_read_timeout(Some(ASK))?;
        for request in [connect, close] {
            stream.write_all(&(request.len() as u32).to_be_bytes())?;
            stream.write_all(&request)?;
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let mut answer = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut answer)?;
        }
        Ok(())
    }

    /// The server's answer to one of its commands of four letters.
    fn ask(&self, command: &str) -> Result<String, String> {
        let asked = || {
            let mut stream =
                TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], self.port())), ASK)?;
            stream.set_read_timeout(Some(ASK))?;
            stream.write_all(command.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        asked().map_err(|error: std::io::Error| error.to_string())
    }
}

/// The settings of a server that listens on 127.0.0.1 and syncs every write; `more`: further lines.
#[must_use]
pub fn settings(port: u16, data: &Path, tick_ms: u32, more: &str) -> String {
    format!(
        "tickTime={tick_ms}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
         admin.enableServer=false\n4lw.commands.whitelist=*\n{more}",
        data.display()
    )
}

/// The command line of a server with this settings file, and these options of Java. (The packaged script
/// forks, so Java is started directly.)
#[must_use]
pub fn line(settings: &Path, java: &[&str]) -> CommandLine {
    CommandLine::new(JAVA.name)
        .args(java)
        .args(["-Dznode.container.checkIntervalMs=100"])
        .args(["-cp", "/etc/zookeeper/conf:/usr/share/java/*"])
        .args(["org.apache.zookeeper.server.quorum.QuorumPeerMain"])
        .path(settings)
}
