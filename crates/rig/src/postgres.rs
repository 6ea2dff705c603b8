//! One PostgreSQL server.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::folder::{Folder, make_for_unprivileged};
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program, ask, find};
use crate::template::copy_of_template;
use crate::tls::Certificates;

/// The server.
pub const SERVER: Program = Program { name: "postgres", package: "postgresql" };
const INITDB: Program = Program { name: "initdb", package: "postgresql" };
/// The command line client.
pub const PSQL: Program = Program { name: "psql", package: "postgresql-client" };
const IPCRM: Program = Program { name: "ipcrm", package: "util-linux" };

/// A PostgreSQL server on its own port, whose superuser `postgres` needs no password; ended when dropped.
///
/// It syncs nothing to disk, which is fast. Its data survive [`Postgres::kill`] nevertheless, as the kernel
/// keeps the writes of a dead process.
pub struct Postgres {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
    args: Vec<String>,
    tls: Option<Certificates>,
    password: Option<String>,
}

process_methods!(Postgres);

impl Postgres {
    /// Starts a server; returns once it answers.
    ///
    /// # Panics
    /// PostgreSQL is missing or doesn't start; this applies to all functions that start a server.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments: `&["-c", "max_connections=20"]`. With `-c fsync=on` it syncs
    /// as in production.
    #[must_use]
    pub fn with(args: &[&str]) -> Self {
        Self::unstarted(args).started()
    }

    /// Starts a server that accepts TLS only, with a certificate by [`Postgres::ca`] for `localhost` and
    /// `127.0.0.1`. A user `certified` must show a certificate of the same authority, as
    /// [`Postgres::certificate`].
    #[must_use]
    pub fn with_tls() -> Self {
        let mut postgres = Self::unstarted(&[]);
        postgres.tls = Some(Certificates::make(postgres.folder.path()));
        postgres.started()
    }

    /// Starts a server that requires passwords (SCRAM); `password` is the superuser's.
    #[must_use]
    pub fn with_password(password: &str) -> Self {
        let mut postgres = Self::unstarted(&[]);
        postgres.password = Some(password.to_owned());
        postgres.started()
    }

    fn unstarted(args: &[&str]) -> Self {
        Self {
            port: Port::free(),
            folder: Folder::new("postgres"),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            tls: None,
            password: None,
            slot: ProcessSlot::empty(),
        }
    }

    fn started(self) -> Self {
        self.make_data();
        self.start_again();
        self
    }

    fn make_data(&self) {
        let data = self.folder.data();
        prepare(&data);
        if let Some(password) = &self.password {
            set_password(&data, password).unwrap_or_else(|why| panic!("cannot set a password: {why}"));
        }
    }

    /// The port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.password {
            None => self.url_as("postgres"),
            Some(password) => self.url_as(&format!("postgres:{password}")),
        }
    }

    /// The same URL for another user: `worker` or, where passwords are required, `worker:secret`.
    #[must_use]
    pub fn url_as(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port())
    }

    /// The file of the authority that issued the server's certificate.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").ca
    }

    /// The files of a certificate and its key by [`Postgres::ca`], which clients may use too.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn certificate(&self) -> [&Path; 2] {
        let tls = self.tls.as_ref().expect("only `with_tls` has certificates");
        [&tls.certificate, &tls.key]
    }

    /// The file of an authority that did *not* issue the server's certificate.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn stranger_ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").stranger
    }

    /// The output of the superuser's `psql` for one or several statements: rows by line, columns separated by
    /// `|`.
    ///
    /// # Panics
    /// A statement fails, or the server does not answer.
    #[track_caller]
    pub fn psql(&self, sql: &str) -> String {
        self.try_psql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Like [`Postgres::psql`].
    ///
    /// # Errors
    /// A statement fails, or there is no answer within 30 s.
    pub fn try_psql(&self, sql: &str) -> Result<String, String> {
        self.ask(&self.url(), sql)
    }

    /// Like [`Postgres::try_psql`], as another user, given as for [`Postgres::url_as`].
    ///
    /// # Errors
    /// Those of [`Postgres::try_psql`].
    pub fn try_psql_as(&self, user: &str, sql: &str) -> Result<String, String> {
        self.ask(&self.url_as(user), sql)
    }

    fn ask(&self, url: &str, sql: &str) -> Result<String, String> {
        match &self.tls {
            None => psql(url, sql),
            Some(tls) => psql(&format!("{url}?sslmode=verify-full&sslrootcert={}", tls.ca.display()), sql),
        }
    }

    /// Starts the server after [`Postgres::kill`]: on the same port, with its data.
    pub fn start_again(&self) {
        SERVER.path();
        let mut line = line(self.port(), &self.folder.data());
        line = line.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
        let access = self.folder.path().join("access");
        let connection = if self.tls.is_some() { "hostssl" } else { "host" };
        let method = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let certified = match &self.tls {
            Some(_) => "hostssl all certified 127.0.0.1/32 trust clientcert=verify-ca\n",
            None => "",
        };
        fs::write(&access, format!("{certified}{connection} all all 127.0.0.1/32 {method}\n"))
            .expect("our folder is ours");
        line = line.args(["-c", &format!("hba_file={}", access.display())]);
        if let Some(tls) = &self.tls {
            line = line.args(["-c", "ssl=on"]);
            for (name, file) in
                [("ssl_ca_file", &tls.ca), ("ssl_cert_file", &tls.certificate), ("ssl_key_file", &tls.key)]
            {
                line = line.args(["-c", &format!("{name}={}", file.display())]);
            }
        }
        let line = line.args(&self.args);
        self.slot.fill(|| {
            // The signal for the case that this process ends: SIGQUIT ends the server and its backends at
            // once, and releases its shared memory.
            let mut process = ServerProcess::start(&line, Signal::SIGQUIT, &self.folder.log());
            process.wait_until_ready(SERVER.name, || self.try_psql("select 1").map(|_| ()));
            process
        });
    }

    /// Ends the server gracefully (fast shutdown: connections are closed), and starts it again.
    pub fn restart(&self) {
        self.slot.end(Signal::SIGINT);
        self.start_again();
    }

    /// Deletes the server's data. A running server is killed first, and then started again without data.
    pub fn wipe(&self) {
        let ran = self.pid().is_some();
        if ran {
            self.kill();
        }
        forget_shared_memory(&self.folder.data());
        fs::remove_dir_all(self.folder.data()).expect("our folder is ours");
        self.make_data();
        if ran {
            self.start_again();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.slot.clear(Signal::SIGQUIT);
        forget_shared_memory(&self.folder.data());
    }
}

/// The output of `psql` for `sql` at `url`: rows by line, columns separated by `|`.
///
/// # Errors
/// A statement fails, or there is no answer within 30 s.
///
/// # Panics
/// `psql` is missing.
pub fn psql(url: &str, sql: &str) -> Result<String, String> {
    ask(PSQL, |psql| {
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                psql.env_remove(name);
            }
        }
        psql.args(["--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "--no-password"]);
        psql.args(["--set", "ON_ERROR_STOP=1", "--command", sql, url]);
    })
}

/// The command line of a PostgreSQL in the foreground: on 127.0.0.1, with its data in `folder`.
#[must_use]
pub fn line(port: u16, folder: &Path) -> CommandLine {
    CommandLine::new(found(SERVER))
        .unprivileged()
        .args(["-D"])
        .path(folder)
        .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
        .args(["-c", "unix_socket_directories="])
}

/// The program's path, or its name if it is missing.
fn found(program: Program) -> PathBuf {
    find(program.name).unwrap_or_else(|| program.name.into())
}

/// Initialises `folder` as the data of a new PostgreSQL, with the superuser `postgres`; connections need no
/// password.
///
/// # Errors
/// PostgreSQL is missing, or `initdb` fails; the text has its output. If this process is root, the server
/// runs as the user `postgres`, who must be able to traverse all parents of `folder`.
pub fn initialise(folder: &Path) -> Result<(), String> {
    make_for_unprivileged(folder);
    let line = CommandLine::new(found(INITDB))
        .unprivileged()
        .args(["-D"])
        .path(folder)
        .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"])
        // WAL segments of 1 MB, which halve the size of the data.
        .args(["--wal-segsize=1"]);
    let output = line.detached().output().map_err(|error| format!("initdb does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "initdb failed ({}): {}\nThe user who runs it must be able to pass all folders above {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim(),
        folder.display()
    ))
}

/// Sets the superuser's password in the data in `folder`, before the server is started.
fn set_password(folder: &Path, password: &str) -> Result<(), String> {
    let line = CommandLine::new(SERVER.path())
        .unprivileged()
        .args(["--single", "-D"])
        .path(folder)
        .args(["postgres"]);
    let failed = |error: io::Error| error.to_string();
    let mut command = line.detached();
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut input = child.stdin.take().expect("its input is a pipe");
    writeln!(input, "alter role postgres password '{}'", password.replace('\'', "''")).map_err(failed)?;
    drop(input);
    let output = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && !said.contains("ERROR") { Ok(()) } else { Err(said.into_owned()) }
}

/// Makes `data` the data of a new server, from a template.
fn prepare(data: &Path) {
    INITDB.path();
    let version = ask(SERVER, |postgres| _ = postgres.arg("--version")).unwrap_or_else(|why| panic!("{why}"));
    // `postgres (PostgreSQL) 15.18 (Debian …)`
    let version = version.split(' ').nth(2).unwrap_or("unknown");
    copy_of_template(&format!("postgres-{version}"), data, initialise);
}

/// Removes the shared memory segment of a killed PostgreSQL. PostgreSQL itself would remove it only at its
/// next start with the same data, and a machine has a limit of some thousand segments.
fn forget_shared_memory(data: &Path) {
    let Ok(pid_file) = fs::read_to_string(data.join("postmaster.pid")) else { return };
    let Some((_, id)) = pid_file.lines().nth(6).and_then(|line| line.trim().rsplit_once(' ')) else { return };
    // Fails if the segment is gone. Must not panic, as this function may run during a panic.
    let _ = Command::new(IPCRM.name).args(["--shmem-id", id]).output();
}
