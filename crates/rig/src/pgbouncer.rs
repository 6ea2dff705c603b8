//! A connection pooler for PostgreSQL.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::postgres::{Postgres, psql};
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program};

/// The pooler.
pub const SERVER: Program = Program { name: "pgbouncer", package: "pgbouncer" };

/// A `PgBouncer` for a [`Postgres`], with `pool_mode=transaction`: between two transactions of one client,
/// another client may use the same connection to the server. Ended when dropped.
pub struct PgBouncer {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
}

process_methods!(PgBouncer);

impl PgBouncer {
    /// Starts a pooler; returns once it answers.
    ///
    /// # Panics
    /// `pgbouncer` is missing or doesn't start.
    #[must_use]
    pub fn start(postgres: &Postgres) -> Self {
        Self::with(postgres, &[])
    }

    /// Starts a pooler with further settings: with `&["default_pool_size=1"]` all clients share one
    /// connection to the server.
    ///
    /// # Panics
    /// Those of [`PgBouncer::start`].
    #[must_use]
    pub fn with(postgres: &Postgres, settings: &[&str]) -> Self {
        let bouncer =
            Self { port: Port::free(), folder: Folder::new("pgbouncer"), slot: ProcessSlot::empty() };
        write_settings(bouncer.folder.path(), bouncer.port(), postgres.port(), settings);
        bouncer.start_again();
        bouncer
    }

    /// The port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`. All clients are the superuser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }

    /// The output of `psql` through the pooler, as for [`Postgres::psql`].
    ///
    /// # Panics
    /// A statement fails, or there is no answer.
    #[track_caller]
    pub fn psql(&self, sql: &str) -> String {
        psql(&self.url(), sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Starts the pooler after [`PgBouncer::kill`], on the same port.
    pub fn start_again(&self) {
        SERVER.path();
        let line = line(self.folder.path());
        self.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log());
            process.wait_until_ready(SERVER.name, || psql(&self.url(), "select 1").map(|_| ()));
            process
        });
    }
}

/// Writes the settings of a `PgBouncer` in `folder`.
///
/// # Panics
/// The file can't be written.
pub fn write_settings(folder: &Path, port: u16, postgres: u16, settings: &[&str]) {
    // `auth_type=any` authenticates no client, so the user of the connections to PostgreSQL must be named
    // here.
    let text = format!(
        "[databases]\npostgres = host=127.0.0.1 port={postgres} user=postgres\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = transaction\n{}\n",
        settings.join("\n")
    );
    let file = folder.join(SETTINGS);
    fs::write(&file, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
}

const SETTINGS: &str = "pgbouncer.ini";

/// The command line of a `PgBouncer` in the foreground, with the settings of [`write_settings`] in `folder`.
#[must_use]
pub fn line(folder: &Path) -> CommandLine {
    CommandLine::new(SERVER.name).unprivileged().path(&folder.join(SETTINGS))
}
