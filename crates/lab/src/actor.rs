//! An actor's side of a play: its process reads its cue, runs its program, and reports each step.

use std::collections::BTreeMap;
use std::io::{BufRead, Write, stdin, stdout};

use lockkeeper::{Guard, Lock, Locks, ReleaseError};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};

use crate::{Pitfall, Result, Variant};

/// What an actor is to do: the first line on its standard input. Each further line lets it go on from a
/// point.
#[derive(Serialize, Deserialize)]
pub(crate) struct Cue {
    pub(crate) pitfall: String,
    pub(crate) variant: Variant,
    pub(crate) actor: String,
    pub(crate) urls: BTreeMap<String, String>,
}

/// What an actor reports: a line of JSON on its standard output.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message {
    /// It did something. At a point it waits until it may go on.
    Step { point: Option<String>, text: String },
    /// Its program has come to its end.
    End,
    /// Its program failed.
    Error { text: String },
}

/// Runs an actor: reads its cue from standard input, and reports on standard output.
///
/// # Errors
/// Standard input has no cue, or standard output is closed.
pub fn act() -> Result {
    // The actor must not outlive a script that was killed.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    let cue: Cue = serde_json::from_str(&line)?;
    let pitfall = Pitfall::named(&cue.pitfall).ok_or("no pitfall has this name")?;
    let program = match cue.variant {
        Variant::Wrong => pitfall.wrong,
        Variant::Right => pitfall.right,
    };
    let mut actor = Actor { name: cue.actor, urls: cue.urls };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(program(&mut actor));
    actor.report(&match ended {
        Ok(()) => Message::End,
        Err(error) => Message::Error { text: error.to_string() },
    })
}

/// What a program knows of the play.
pub(crate) struct Actor {
    name: String,
    urls: BTreeMap<String, String>,
}

impl Actor {
    /// The actor's name: `A`, `B`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The URL of a server that the script has started.
    pub(crate) fn url(&self, server: &str) -> Result<&str> {
        Ok(self.urls.get(server).ok_or_else(|| format!("the script serves no `{server}`"))?)
    }

    /// A connection to a Redis server.
    pub(crate) async fn redis(&self, server: &str) -> Result<MultiplexedConnection> {
        Ok(redis::Client::open(self.url(server)?)?.get_multiplexed_async_connection().await?)
    }

    /// A connection to a PostgreSQL server, or to a pooler before it.
    pub(crate) async fn postgres(&self, server: &str) -> Result<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(self.url(server)?, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The library, with a lock service.
    pub(crate) async fn locks(&self, server: &str) -> Result<Locks> {
        Ok(Locks::connect_as(self.url(server)?, &self.name).await?)
    }

    /// Acquires a lock of the library, and reports a wait at the point `waits`.
    pub(crate) async fn acquire<F: lockkeeper::Kind>(&mut self, lock: &Lock<F>) -> Result<Guard<F>> {
        if let Some(guard) = lock.try_acquire().await? {
            return Ok(guard);
        }
        self.at("waits", "waits: another has the lock").await?;
        Ok(lock.acquire().await?)
    }

    /// Releases a lock of the library, and reports it.
    pub(crate) async fn release<F: lockkeeper::Kind>(&self, guard: Guard<F>) -> Result {
        match guard.release().await {
            Ok(()) => self.say("releases the lock"),
            Err(ReleaseError::AlreadyLost(_)) => self.say("its hold is over, so it releases nothing"),
            Err(error) => Err(error.into()),
        }
    }

    /// Reports a step.
    pub(crate) fn say(&self, text: impl Into<String>) -> Result {
        self.report(&Message::Step { point: None, text: text.into() })
    }

    /// Reports a step that ends at a point, and waits there until the script lets the actor go on.
    pub(crate) async fn at(&mut self, point: &str, text: impl Into<String>) -> Result {
        self.report(&Message::Step { point: Some(point.to_owned()), text: text.into() })?;
        let read = tokio::task::spawn_blocking(|| stdin().lock().read_line(&mut String::new())).await??;
        if read == 0 { Err("the script has ended".into()) } else { Ok(()) }
    }

    fn report(&self, message: &Message) -> Result {
        Ok(writeln!(stdout().lock(), "{}", serde_json::to_string(message)?)?)
    }
}
