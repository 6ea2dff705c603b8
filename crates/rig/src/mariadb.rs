//! One MariaDB server, or the nodes of a Galera cluster.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::folder::{Folder, make_for_unprivileged};
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program, ask, find};
use crate::template::{copy, copy_of_template};
use crate::tls::Certificates;

/// The server.
pub const SERVER: Program = Program { name: "mariadbd", package: "mariadb-server-core" };
/// The command line client.
pub const CLIENT: Program = Program { name: "mariadb", package: "mariadb-client-core" };
const INSTALL: Program = Program { name: "mariadb-install-db", package: "mariadb-server-core" };
/// The library that replicates a cluster.
pub const GALERA: Program = Program { name: "/usr/lib/galera/libgalera_smm.so", package: "galera-4" };

/// The script of a state transfer: a new node has the state already.
const STATE_IS_COPIED: &str = r#"#!/bin/sh
while [ "$1" ] && [ "$1" != --mysqld-args ]; do
    case "$1" in
        --role) role=$2 ;;
        --gtid) gtid=$2 ;;
        --datadir) data=$2 ;;
    esac
    shift
done
if [ "$role" = donor ]; then echo "done $gtid"; exit; fi
echo "ready 127.0.0.1:1"
sed -n 's/^uuid: *//p; s/^seqno: *//p' "$data/grastate.dat" | paste -sd:
"#;

/// The database that the tests use.
const DATABASE: &str = "app";

/// A MariaDB server on its own port, whose superuser `root` needs no password; ended when dropped.
///
/// It syncs nothing to disk, which is fast. Its data survive [`MariaDb::kill`] nevertheless, as the kernel
/// keeps the writes of a dead process.
pub struct MariaDb {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
    args: Vec<String>,
    tls: Option<Certificates>,
}

process_methods!(MariaDb, wipe);

impl MariaDb {
    /// Starts a server; returns once it answers.
    ///
    /// # Panics
    /// MariaDB is missing or doesn't start; this applies to all functions that start a server.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments: `&["--wait-timeout=2"]`.
    #[must_use]
    pub fn with(args: &[&str]) -> Self {
        Self::unstarted(args).started()
    }

    /// Starts a server with TLS, with a certificate by [`MariaDb::ca`] for `localhost` and `127.0.0.1`. The
    /// user `encrypted` must use TLS.
    #[must_use]
    pub fn with_tls() -> Self {
        let mut server = Self::unstarted(&[]);
        server.tls = Some(Certificates::make(server.folder.path()));
        let server = server.started();
        server.sql("CREATE USER encrypted@'%' REQUIRE SSL; GRANT ALL ON app.* TO encrypted@'%'");
        server
    }

    /// Starts two nodes of a Galera cluster, each of which takes writes.
    ///
    /// The second one begins with a copy of the first one's data, so that no state is transferred, for which
    /// MariaDB needs further programs; `STATE_IS_COPIED` tells it so.
    #[must_use]
    pub fn galera() -> [Self; 2] {
        let replication: [Port; 2] = std::array::from_fn(|_| Port::free());
        // Where a node receives what it lacks; by default the next higher port, which may be in use.
        let transfers: [Port; 2] = std::array::from_fn(|_| Port::free());
        let addresses = replication.each_ref().map(|port| format!("127.0.0.1:{}", port.number()));
        let node = |number: usize, known: &str| {
            let own = &addresses[number];
            let transfer = transfers[number].number();
            Self::unstarted(&[
                "--binlog-format=ROW",
                "--innodb-autoinc-lock-mode=2",
                "--wsrep-on=ON",
                &format!("--wsrep-provider={}", GALERA.name),
                &format!("--wsrep-cluster-address=gcomm://{known}"),
                &format!("--wsrep-node-address={own}"),
                &format!("--wsrep-node-name=node{number}"),
                "--wsrep-sst-method=copied",
                &format!(
                    "--wsrep-provider-options=gmcast.listen_addr=tcp://{own};ist.recv_addr=127.0.0.1:{transfer};gcache.size=8M"
                ),
            ])
        };
        let first = node(0, "").started();
        first.slot.end(Signal::SIGTERM);
        let second = node(1, &addresses.join(","));
        for node in [&first, &second] {
            let script = node.folder.path().join("wsrep_sst_copied");
            fs::write(&script, STATE_IS_COPIED)
                .and_then(|()| fs::set_permissions(&script, Permissions::from_mode(0o755)))
                .expect("our folder is ours");
        }
        copy(&first.folder.data(), &second.folder.data());
        first.start_again();
        second.start_again();
        [first, second]
    }

    fn unstarted(args: &[&str]) -> Self {
        Self {
            port: Port::free(),
            folder: Folder::new("mariadb"),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            tls: None,
            slot: ProcessSlot::empty(),
        }
    }

    fn started(self) -> Self {
        self.start_again();
        self
    }

    /// The port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The URL of the superuser and the database `app`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_as("root")
    }

    /// The same URL for another user: `worker` or `worker:secret`.
    #[must_use]
    pub fn url_as(&self, user: &str) -> String {
        format!("mysql://{user}@127.0.0.1:{}/{DATABASE}", self.port())
    }

    /// The superuser's URL by other addresses, such as those of proxies.
    #[must_use]
    pub fn url_at(addresses: &str) -> String {
        let user = "root";
        format!("mysql://{user}@{addresses}/{DATABASE}")
    }

    /// The file of the authority that issued the server's certificate.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").ca
    }

    /// The file of an authority that did *not* issue the server's certificate.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn stranger_ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").stranger
    }

    /// The output of the superuser's client for one or several statements in the database `app`: rows by
    /// line, columns separated by tabs.
    ///
    /// # Panics
    /// A statement fails, or the server does not answer.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Like [`MariaDb::sql`].
    ///
    /// # Errors
    /// A statement fails, or there is no answer within 30 s.
    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        self.client(&["--database", DATABASE, "--execute", sql])
    }

    fn client(&self, args: &[&str]) -> Result<String, String> {
        ask_client(self.port(), args)
    }

    /// Starts the server after [`MariaDb::kill`]: on the same port, with its data.
    pub fn start_again(&self) {
        SERVER.path();
        let data = self.folder.data();
        if !data.exists() {
            prepare(&data);
        }
        let mut line = line(self.port(), &data)
            .args(["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"]);
        if let Some(tls) = &self.tls {
            for (name, file) in [("ca", &tls.ca), ("cert", &tls.certificate), ("key", &tls.key)] {
                line = line.args([format!("--ssl-{name}={}", file.display())]);
            }
        }
        // Where a node of a cluster finds its script.
        let path = format!("{}:{}", self.folder.path().display(), env::var("PATH").unwrap_or_default());
        let line = line.args(&self.args).env("PATH", path);
        self.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log());
            process.wait_until_ready(SERVER.name, || {
                let create = format!("CREATE DATABASE IF NOT EXISTS {DATABASE}");
                self.client(&["--execute", &create]).map(drop)
            });
            process
        });
    }

    /// Ends the server gracefully (connections are closed), and starts it again.
    pub fn restart(&self) {
        self.slot.end(Signal::SIGTERM);
        self.start_again();
    }
}

/// The output of the client of `root` at this port on 127.0.0.1: rows by line, columns separated by tabs.
///
/// # Errors
/// A statement fails, or there is no answer within 30 s.
///
/// # Panics
/// The client is missing.
pub fn ask_client(port: u16, args: &[&str]) -> Result<String, String> {
    ask(CLIENT, |client| {
        client.args(["--no-defaults", "--user=root", "--host=127.0.0.1", "--batch", "--skip-column-names"]);
        client.arg(format!("--port={port}")).args(args);
    })
}

/// The command line of a MariaDB in the foreground: on 127.0.0.1, with its data in `folder`, and a small
/// footprint. It syncs each transaction, unless told otherwise.
#[must_use]
pub fn line(port: u16, folder: &Path) -> CommandLine {
    let data = |name: &str, file: &str| format!("--{name}={}", folder.join(file).display());
    CommandLine::new(found(SERVER))
        .unprivileged()
        .args(["--no-defaults", "--skip-name-resolve", "--bind-address=127.0.0.1"])
        .args([
            format!("--port={port}"),
            data("datadir", ""),
            // A server that starts deletes the temporary tables in this folder, also those of other servers.
            data("tmpdir", ""),
            data("socket", "socket"),
            data("pid-file", "pid"),
        ])
        .args(["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--max-connections=300"])
}

/// The program's path, or its name if it is missing.
fn found(program: Program) -> PathBuf {
    find(program.name).unwrap_or_else(|| program.name.into())
}

/// Initialises `folder` as the data of a new MariaDB, whose superuser `root` needs no password.
///
/// # Errors
/// MariaDB is missing, or `mariadb-install-db` fails; the text has its output. If this process is root, the
/// server runs as the user `postgres`, who must be able to traverse all parents of `folder`.
pub fn initialise(folder: &Path) -> Result<(), String> {
    make_for_unprivileged(folder);
    let line = CommandLine::new(found(INSTALL))
        .unprivileged()
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .args(["--skip-name-resolve", "--innodb-log-file-size=8M"])
        .args([format!("--datadir={}", folder.display())]);
    let output = line.detached().output();
    let output = output.map_err(|error| format!("{} does not start: {error}", INSTALL.name))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("{} failed ({}): {}", INSTALL.name, output.status, String::from_utf8_lossy(&said).trim()))
}

/// Makes `data` the data of a new server, from a template.
fn prepare(data: &Path) {
    INSTALL.path();
    let version = ask(SERVER, |server| _ = server.arg("--version")).unwrap_or_else(|why| panic!("{why}"));
    // `mariadbd  Ver 10.11.19-MariaDB-… for debian-linux-gnu …`
    let version = version.split_whitespace().nth(2).unwrap_or("unknown");
    copy_of_template(&format!("mariadb-{version}"), data, initialise);
}
