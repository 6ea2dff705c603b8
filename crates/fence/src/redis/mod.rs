//! A fence in Redis: marks beside the guarded keys, check and commands in one script. Feature `redis`.
//!
//! Responsible for the calls and for what they mean to a cluster. The rule is worded anew in `scripts/check.lua`, and
//! held against [`Marks::check`] by the tests. It knows nothing of locks or lock services.
//!
//! ```no_run
//! use lockkeeper_fence::redis::{Command, RedisFence};
//! use lockkeeper_fence::{Section, Token};
//!
//! # async fn pay(token: Token) -> Result<(), Box<dyn std::error::Error>> {
//! let mut connection = redis::Client::open("redis://127.0.0.1")?.get_multiplexed_async_connection().await?;
//! let fence = RedisFence::connect(connection.clone()).await?;
//! let section = Section::exclusive(token); // the token of the guard
//! fence.enter("stock", section).await?;
//! let old: u64 = redis::cmd("GET").arg("stock").query_async(&mut connection).await?;
//! fence.write("stock", section, &[Command::new("SET").key("stock").arg(old - 1)]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! - **What is undone: nothing.** Redis runs a script whole or not at all, as far as crashes go (its log holds a script
//!   as one transaction), but it takes nothing back when a command fails. So what can be checked is checked before
//!   anything is sent (names, keys, slots), then the fence is checked, then the commands run in order; one that fails
//!   (a key of the wrong type, a bad number) ends the write there: [`RedisFenceError::Failed`] says how many took effect.
//!   The marks are raised all the same, which is harmless.
//! - **What survives.** A killed client: everything acknowledged. A crash of the server or its host: as much as
//!   `appendonly` and `appendfsync` say; only `always` keeps every mark through a power loss ([`RedisFence::findings`]).
//!   Marks and guarded keys live in the same server, so what loses the one mostly loses the other: after `FLUSHALL`
//!   the resource is as new as its marks, and takes any token.
//! - **Fail-over.** Replicas follow without being waited for. One that becomes primary may lack the last writes, and
//!   their marks: a section that was out may then pass. Where that matters, let no replica take over.
//! - **Only what goes through the fence is fenced.** A plain `SET` beside it goes round it. Expire, rename or delete the
//!   marks never.

mod command;
mod error;
mod keys;
mod settings;

use std::fmt;
use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, ServerErrorKind, ToRedisArgs, Value};

pub use command::{Command, FenceScript, WORDS_MAX};
pub use error::RedisFenceError;
pub use settings::Finding;

use crate::resource;
use crate::rule::{Action, Marks, Pair, Refused, Section};
use command::{CHECK, Script};
use lockkeeper_core::limits::PERMITS_MAX;
use lockkeeper_core::{ModeKind, Slot, Token};
use settings::Servers;

/// Checks, and runs commands: enter is a write without any.
static COMMANDS: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[CHECK, include_str!("scripts/commands.lua")]));
static RESET: LazyLock<Script> = LazyLock::new(|| Script::new(&[include_str!("scripts/reset.lua")]));

/// Fences in one Redis, or in one cluster of them: any number of resources by name, any number of processes.
///
/// `C` is a connection that is shared by cloning: `redis`'s multiplexed connection, its connection manager, or its
/// connection for clusters. One that repeats a command by itself when a connection breaks (the last of them) may do a write
/// twice, and answer a `check_once` that passed with [`Refused::Repeated`].
///
/// In a cluster the keys of a write must have the hash tag of the resource: for `stock`, `stock` itself and
/// `{stock}:anything`; for `{user:1}:cart`, whatever has `{user:1}`. Others are refused before anything is sent.
#[derive(Clone)]
pub struct RedisFence<C> {
    connection: C,
    cluster: bool,
}

/// Not every connection can be shown.
impl<C> fmt::Debug for RedisFence<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFence").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl<C: ConnectionLike + Clone> RedisFence<C> {
    /// Fences behind `connection`, if the server keeps its keys.
    ///
    /// # Errors
    /// [`RedisFenceError::Evicts`] for any `maxmemory-policy` but `noeviction`, [`RedisFenceError::EvictionUnknown`] for
    /// one that the server does not tell, [`RedisFenceError::Replica`]; [`RedisFenceError::Unknown`] if it doesn't
    /// answer.
    pub async fn connect(mut connection: C) -> Result<Self, RedisFenceError> {
        let servers = Self::ask(&mut connection).await?;
        servers.refuse_eviction(&mut connection).await?;
        Ok(Self { cluster: servers.is_cluster(), connection })
    }

    /// The same, on the caller's word that the server never throws keys away: for a hosted one that does not tell. If
    /// the word is wrong, the fence forgets, and lets every token in.
    ///
    /// # Errors
    /// [`RedisFenceError::Replica`]; [`RedisFenceError::Unknown`] if it doesn't answer.
    pub async fn trusting_no_eviction(mut connection: C) -> Result<Self, RedisFenceError> {
        let servers = Self::ask(&mut connection).await?;
        Ok(Self { cluster: servers.is_cluster(), connection })
    }

    async fn ask(connection: &mut C) -> Result<Servers, RedisFenceError> {
        let servers = Servers::ask(connection).await.map_err(|source| RedisFenceError::Unknown { source })?;
        servers.refuse_replicas()?;
        Ok(servers)
    }

    /// What the server's settings mean for its marks: what a crash or a fail-over may take. For a page that operators
    /// read, or a check at start.
    ///
    /// # Errors
    /// [`RedisFenceError::Unknown`] if it doesn't answer.
    pub async fn findings(&self) -> Result<Vec<Finding>, RedisFenceError> {
        let mut connection = self.connection.clone();
        let servers =
            Servers::ask(&mut connection).await.map_err(|source| RedisFenceError::Unknown { source })?;
        Ok(servers.findings(&mut connection).await)
    }

    /// Raises the marks of `resource`. Call it before the section reads the data that it will write.
    ///
    /// # Errors
    /// [`RedisFenceError::Refused`] if a later section has been here: stop. Any other error: the section may not go on,
    /// and may enter again.
    pub async fn enter(&self, resource: &str, section: Section) -> Result<(), RedisFenceError> {
        self.pass(resource, Action::Enter, section, &[]).await.map(drop)
    }

    /// Checks, and runs `commands` in the same step: no other command of anyone comes in between. Gives their answers,
    /// as a script sees them: a number above 2^53 is rounded in the answer (not in the store).
    ///
    /// # Errors
    /// [`RedisFenceError::Refused`]: nothing was done. [`RedisFenceError::Failed`]: the commands before the one that
    /// failed took effect. [`RedisFenceError::Unknown`]: no answer; whether it was done is unknown, and it may yet
    /// take effect, after later writes with the same token too: repeat it only as the last write of the section and if its
    /// commands may run twice; else acquire again, and enter with the new token. Others: nothing was done.
    pub async fn write(
        &self,
        resource: &str,
        section: Section,
        commands: &[Command],
    ) -> Result<Vec<Value>, RedisFenceError> {
        self.pass(resource, Action::Write, section, commands).await
    }

    /// As [`write`](Self::write), once per token and without `enter`: for one blind effect per grant (F-d). At most
    /// once: if a command fails, the same token is refused all the same.
    ///
    /// # Errors
    /// As `write`, and [`Refused::Repeated`] for a token that has been here. After [`RedisFenceError::Unknown`] nobody
    /// can tell by the fence whether it was done: look at the keys.
    pub async fn check_once(
        &self,
        resource: &str,
        section: Section,
        commands: &[Command],
    ) -> Result<Vec<Value>, RedisFenceError> {
        self.pass(resource, Action::CheckOnce, section, commands).await
    }

    /// As [`write`](Self::write), with the caller's own Lua as the effect: for a write that depends on what it finds.
    /// Gives what the script returns.
    ///
    /// # Errors
    /// As `write`, with [`RedisFenceError::Script`] if the script fails: what it did before stays done.
    pub async fn write_script(
        &self,
        resource: &str,
        section: Section,
        script: &FenceScript,
        keys: &[&str],
        args: impl ToRedisArgs,
    ) -> Result<Value, RedisFenceError> {
        let marks = self.marks_beside(resource, keys.iter().map(|key| key.as_bytes()))?;
        let of_call: Vec<&[u8]> =
            [marks.as_bytes()].into_iter().chain(keys.iter().map(|key| key.as_bytes())).collect();
        let mut call = script.script().call(&of_call);
        with_section(&mut call, Action::Write, section)?;
        call.arg(args);
        match self.run(script.script(), call, &marks, section).await? {
            Answer::Done(mut answer) => Ok(answer.pop().unwrap_or(Value::Nil)),
            Answer::Failed { message, .. } => Err(RedisFenceError::Script { message }),
        }
    }

    /// The marks of `resource` as they are now; the default ones if it was never seen.
    ///
    /// # Errors
    /// [`RedisFenceError::WrongType`] and [`RedisFenceError::Damaged`]; [`RedisFenceError::Unknown`] if there is no
    /// answer.
    pub async fn marks(&self, resource: &str) -> Result<Marks, RedisFenceError> {
        let key = keys::marks_key(resource::checked(resource)?);
        let mut ask = redis::cmd("HGETALL");
        ask.arg(&key);
        let answer = self.connection.clone().req_packed_command(&ask).await.and_then(Value::extract_error);
        let answer = answer.map_err(|error| RedisFenceError::of_call(error, &key))?;
        let fields: Vec<(String, String)> =
            redis::from_redis_value(answer).map_err(|error| RedisFenceError::of_call(error.into(), &key))?;
        let mut marks = Marks::default();
        for (field, value) in fields {
            let token = value.parse().ok().and_then(Token::new);
            match (place(&mut marks, &field), token) {
                (Some(mark), Some(_)) => *mark = token,
                _ => return Err(RedisFenceError::Damaged { key, field, value }),
            }
        }
        Ok(marks)
    }

    /// Sets the marks of `resource` to `to`, for every slot, *whatever they were*: tokens below are out, tokens from
    /// `to` on pass. To be used on purpose only: when a lock service with lower tokens takes over, or marks are damaged;
    /// with all writers stopped, since lowering the marks lets in who was out.
    ///
    /// # Errors
    /// [`RedisFenceError::WrongType`]; [`RedisFenceError::Unknown`] if there is no answer: repeat it.
    pub async fn reset(&self, resource: &str, to: Token) -> Result<(), RedisFenceError> {
        let key = keys::marks_key(resource::checked(resource)?);
        let mut call = RESET.call(&[key.as_bytes()]);
        call.arg(to.get());
        self.send(&RESET, call, &key).await.map(drop)
    }

    async fn pass(
        &self,
        resource: &str,
        action: Action,
        section: Section,
        commands: &[Command],
    ) -> Result<Vec<Value>, RedisFenceError> {
        let marks = self.marks_beside(resource, commands.iter().flat_map(Command::keys))?;
        if let Some((command, why)) = commands.iter().find_map(|command| Some((command, command.fault()?))) {
            return Err(RedisFenceError::Command { command: command.name(), why });
        }
        let keys: Vec<&[u8]> =
            [marks.as_bytes()].into_iter().chain(commands.iter().flat_map(Command::keys)).collect();
        let mut call = COMMANDS.call(&keys);
        with_section(&mut call, action, section)?;
        for command in commands {
            call.arg(command.words().len()).arg(command.words());
        }
        match self.run(&COMMANDS, call, &marks, section).await? {
            Answer::Done(mut answer) => match answer.pop() {
                Some(Value::Array(results)) => Ok(results),
                _ => Err(RedisFenceError::unreadable("the script's answer has no list of results")),
            },
            Answer::Failed { done, message } => {
                let command = commands.get(done).map(Command::name).unwrap_or_default();
                Err(RedisFenceError::Failed { done, of: commands.len(), command, message })
            }
        }
    }

    /// The key of the marks, if a call may touch it and `keys` in one step.
    fn marks_beside<'k>(
        &self,
        resource: &str,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<String, RedisFenceError> {
        let marks = keys::marks_key(resource::checked(resource)?);
        let shown = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        for key in keys {
            if key == marks.as_bytes() {
                let why =
                    "it is the key of the marks, which only the fence writes; `reset` sets them on purpose";
                return Err(RedisFenceError::Command { command: shown(key), why });
            }
            let marks_slot = self.cluster.then(|| keys::slot_of(marks.as_bytes()));
            if let Some(marks_slot) = marks_slot.filter(|slot| *slot != keys::slot_of(key)) {
                return Err(RedisFenceError::CrossSlot {
                    resource: resource.to_owned(),
                    key: shown(key),
                    slot: keys::slot_of(key),
                    marks_slot,
                    tag: shown(keys::hashed(marks.as_bytes())),
                });
            }
        }
        Ok(marks)
    }

    /// Runs a script that begins with the check, and understands its answer.
    async fn run(
        &self,
        script: &Script,
        call: Cmd,
        marks: &str,
        section: Section,
    ) -> Result<Answer, RedisFenceError> {
        let Value::Array(answer) = self.send(script, call, marks).await? else {
            return Err(RedisFenceError::unreadable("the script's answer is no list"));
        };
        let mut words = answer.into_iter();
        let mut word = || match words.next() {
            Some(Value::BulkString(bytes)) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Some(Value::SimpleString(text)) => Some(text),
            Some(Value::Int(number)) => Some(number.to_string()),
            _ => None,
        };
        let unreadable = || RedisFenceError::unreadable("the script's answer has an unknown form");
        let offered = section.token();
        match word().ok_or_else(unreadable)?.as_str() {
            "done" => Ok(Answer::Done(words.collect())),
            "failed" => {
                let done = word().and_then(|done| done.parse().ok()).ok_or_else(unreadable)?;
                Ok(Answer::Failed { done, message: word().unwrap_or_default() })
            }
            "stale" => {
                let highest = word().and_then(|mark| mark.parse().ok()).and_then(Token::new);
                Err(Refused::Stale { offered, highest: highest.ok_or_else(unreadable)? }.into())
            }
            "repeated" => Err(Refused::Repeated { token: offered }.into()),
            "damaged" => {
                let (field, value) = (word().unwrap_or_default(), word().unwrap_or_default());
                Err(RedisFenceError::Damaged { key: marks.to_owned(), field, value })
            }
            _ => Err(unreadable()),
        }
    }

    async fn send(&self, script: &Script, call: Cmd, marks: &str) -> Result<Value, RedisFenceError> {
        let mut connection = self.connection.clone();
        let mut answer = connection.req_packed_command(&call).await.and_then(top_error);
        let unknown = ErrorKind::Server(ServerErrorKind::NoScript);
        if answer.as_ref().is_err_and(|error| error.kind() == unknown) {
            // Nothing of it has run.
            answer = connection.req_packed_command(&script.in_full(&call)).await.and_then(top_error);
        }
        answer.map_err(|error| RedisFenceError::of_call(error, marks))
    }
}

/// How a script that begins with the check ended, if the section passed.
enum Answer {
    Done(Vec<Value>),
    Failed { done: usize, message: String },
}

/// An error as the whole answer; those inside of one are the caller's to read.
fn top_error(answer: Value) -> Result<Value, redis::RedisError> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        other => Ok(other),
    }
}

/// The arguments that say who asks, if the mode may do it at all (F-c).
fn with_section(call: &mut Cmd, action: Action, section: Section) -> Result<(), Refused> {
    let kind = match (section.mode(), action) {
        (ModeKind::Shared, Action::Enter) => "r",
        (ModeKind::Shared, action) => return Err(Refused::SharedWrite { action }),
        (_, Action::CheckOnce) => "o",
        _ => "w",
    };
    call.arg(section.token().get()).arg(kind);
    match section.slot() {
        Some(slot) => call.arg(slot),
        None => call.arg(""),
    };
    Ok(())
}

/// The mark that a field of the hash holds.
fn place<'m>(marks: &'m mut Marks, field: &str) -> Option<&'m mut Option<Token>> {
    let (which, slot) = field.split_once(':').map_or((field, None), |(which, slot)| (which, Some(slot)));
    let pair: &mut Pair = match slot {
        None => &mut marks.base,
        Some(text) => {
            let slot: Slot = text.parse().ok().filter(|slot| *slot < PERMITS_MAX)?;
            // As the script writes it: it would not find slot 3 under `03`.
            if slot.to_string() != text {
                return None;
            }
            marks.slots.entry(slot).or_default()
        }
    };
    match which {
        "any" => Some(&mut pair.any),
        "writer" => Some(&mut pair.writer),
        _ => None,
    }
}
