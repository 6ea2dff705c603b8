//! A fence in Redis: marks beside the guarded keys, check and commands in one script. Feature `redis`.
//!
//! Contains the calls, and the check that the keys of a call are in one cluster slot. The rule is implemented
//! in Lua, in `scripts/check.lua`, and tests compare it with [`Marks::check`]. The fence depends on no lock
//! service.
//!
//! ```no_run
//! use lockkeeper_fence::redis::{RedisCommand, RedisFence};
//! use lockkeeper_fence::{Section, Token};
//!
//! # async fn pay(token: Token) -> Result<(), Box<dyn std::error::Error>> {
//! let mut connection = redis::Client::open("redis://127.0.0.1")?.get_multiplexed_async_connection().await?;
//! let fence = RedisFence::connect(connection.clone()).await?;
//! let section = Section::exclusive(token); // the token of the guard
//! fence.enter("stock", section).await?;
//! let old: u64 = redis::cmd("GET").arg("stock").query_async(&mut connection).await?;
//! fence.write("stock", section, &[RedisCommand::new("SET").key("stock").arg(old - 1)]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! - **No rollback.** Redis runs a script atomically and logs it as one transaction, so a crash leaves all or
//!   none of it, but a failed command does not undo the earlier ones. So names, keys and slots are checked
//!   before anything is sent; then the script checks the fence, and runs the commands in order. A command
//!   that fails (a key of the wrong type, a bad number) ends the write there: [`RedisFenceError::Failed`] has
//!   the number of commands that took effect. The marks are raised nevertheless, which is harmless.
//! - **Durability.** Acknowledged marks survive a killed client. After a crash of the server or its host,
//!   `appendonly` and `appendfsync` determine the loss; only `always` keeps every mark through a power loss
//!   ([`RedisFence::findings`]). Marks and guarded keys are in the same server, so a fault usually loses
//!   both: after `FLUSHALL` both are empty, and any token passes.
//! - **Fail-over.** Replication is asynchronous. A replica that becomes primary may lack the last writes and
//!   their marks: a stale section may then pass. Where that matters, disable fail-over.
//! - **The connection is yours.** Those of the `redis` crate take replies of any length; `RedisConnection` of
//!   the crate `lockkeeper` limits them.
//! - **Only writes through the fence are checked.** A plain `SET` bypasses it. Never expire, rename or delete
//!   the marks.

mod command;
mod error;
mod keys;
mod settings;

use std::fmt;
use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, ServerErrorKind, ToRedisArgs, Value};

pub use command::{FenceScript, RedisCommand, WORDS_MAX};
pub use error::RedisFenceError;
pub use settings::Finding;

use crate::resource;
use crate::rule::{Action, Marks, Pair, Refused, Section};
use command::{CHECK, Script};
use lockkeeper_core::limits::PERMITS_MAX;
use lockkeeper_core::{ModeKind, Slot, Token};
use settings::Servers;

/// The script of `enter`, `write` and `check_once`: checks, then runs the commands. An `enter` has none.
static COMMANDS: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[CHECK, include_str!("scripts/commands.lua")]));
static RESET: LazyLock<Script> = LazyLock::new(|| Script::new(&[include_str!("scripts/reset.lua")]));

/// Fences in one Redis server or cluster: any number of resources by name, any number of processes.
///
/// `C` is a connection that is shared by cloning: `redis`'s multiplexed connection, its connection manager,
/// or its cluster connection. A connection type that resends a command when a connection breaks (the cluster
/// connection does) may execute a write twice, and return [`Refused::Repeated`] for a `check_once` that
/// passed.
///
/// In a cluster the keys of a write must be in the cluster slot of the marks. Keys with the hash tag of the
/// resource are: for `stock`, `stock` itself and `{stock}:anything`; for `{user:1}:cart`, any key with
/// `{user:1}`. A key in another slot is refused before anything is sent.
#[derive(Clone)]
pub struct RedisFence<C> {
    connection: C,
    cluster: bool,
}

/// Not derived, because not every connection type implements `Debug`.
impl<C> fmt::Debug for RedisFence<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFence").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl<C: ConnectionLike + Clone> RedisFence<C> {
    /// Connects through `connection`; fails if the server may evict keys.
    ///
    /// # Errors
    /// [`RedisFenceError::Evicts`] for any `maxmemory-policy` but `noeviction`,
    /// [`RedisFenceError::EvictionUnknown`] if the server does not report it, [`RedisFenceError::Replica`];
    /// [`RedisFenceError::Unknown`] if the server does not respond.
    pub async fn connect(mut connection: C) -> Result<Self, RedisFenceError> {
        let servers = Self::ask(&mut connection).await?;
        servers.refuse_eviction(&mut connection).await?;
        Ok(Self { cluster: servers.is_cluster(), connection })
    }

    /// As [`connect`](Self::connect), but trusts the caller that the server never evicts keys: for hosted
    /// servers that don't report their policy. If keys are evicted after all, marks are lost and stale tokens
    /// pass.
    ///
    /// # Errors
    /// [`RedisFenceError::Replica`]; [`RedisFenceError::Unknown`] if the server does not respond.
    pub async fn trusting_no_eviction(mut connection: C) -> Result<Self, RedisFenceError> {
        let servers = Self::ask(&mut connection).await?;
        Ok(Self { cluster: servers.is_cluster(), connection })
    }

    async fn ask(connection: &mut C) -> Result<Servers, RedisFenceError> {
        let servers = Servers::ask(connection).await.map_err(|source| RedisFenceError::Unknown { source })?;
        servers.refuse_replicas()?;
        Ok(servers)
    }

    /// The consequences of the server's settings for its marks: what a crash or a fail-over may lose. For an
    /// operator's status page, or a check at start.
    ///
    /// # Errors
    /// [`RedisFenceError::Unknown`] if the server does not respond.
    pub async fn findings(&self) -> Result<Vec<Finding>, RedisFenceError> {
        let mut connection = self.connection.clone();
        let servers =
            Servers::ask(&mut connection).await.map_err(|source| RedisFenceError::Unknown { source })?;
        Ok(servers.findings(&mut connection).await)
    }

    /// Raises the marks of `resource`. Call it before the section reads the data that it will write.
    ///
    /// # Errors
    /// [`RedisFenceError::Refused`] if a later section has passed: stop. Any other error: the section must
    /// not continue, and may enter again.
    pub async fn enter(&self, resource: &str, section: Section) -> Result<(), RedisFenceError> {
        self.pass(resource, Action::Enter, section, &[]).await.map(drop)
    }

    /// Checks, and runs `commands` in the same step: no other client's command runs in between. Returns their
    /// replies as Lua sees them: a number above 2^53 is rounded in the reply (but not in the store).
    ///
    /// # Errors
    /// [`RedisFenceError::Refused`]: nothing was done. [`RedisFenceError::Failed`]: the commands before the
    /// failed one took effect. [`RedisFenceError::Unknown`]: no response; whether the write was done is
    /// unknown, and it may still take effect, even after later writes with the same token. Repeat it only as
    /// the last write of the section and only if its commands may run twice; otherwise acquire again, and
    /// enter with the new token. Others: nothing was done.
    pub async fn write(
        &self,
        resource: &str,
        section: Section,
        commands: &[RedisCommand],
    ) -> Result<Vec<Value>, RedisFenceError> {
        self.pass(resource, Action::Write, section, commands).await
    }

    /// As [`write`](Self::write), but each token passes only once, and `enter` is not needed: for an effect
    /// that does not depend on anything read before, executed at most once per grant (rule F-d). The token
    /// counts as used even if a command fails.
    ///
    /// # Errors
    /// As `write`, and [`Refused::Repeated`] for a token that has passed before. After
    /// [`RedisFenceError::Unknown`] the fence can't determine whether the write was done: read the keys.
    pub async fn check_once(
        &self,
        resource: &str,
        section: Section,
        commands: &[RedisCommand],
    ) -> Result<Vec<Value>, RedisFenceError> {
        self.pass(resource, Action::CheckOnce, section, commands).await
    }

    /// As [`write`](Self::write), with the caller's own Lua as the effect: for writes that depend on the
    /// current values. Returns the script's result.
    ///
    /// # Errors
    /// As `write`, with [`RedisFenceError::Script`] if the script fails: its effects before the failure
    /// remain.
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
            ScriptOutcome::Done(mut answer) => Ok(answer.pop().unwrap_or(Value::Nil)),
            ScriptOutcome::Failed { message, .. } => Err(RedisFenceError::Script { message }),
        }
    }

    /// The current marks of `resource`; the default ones if it was never seen.
    ///
    /// # Errors
    /// [`RedisFenceError::WrongType`] and [`RedisFenceError::Damaged`]; [`RedisFenceError::Unknown`] if there
    /// is no response.
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
            match (mark_mut(&mut marks, &field), token) {
                (Some(mark), Some(_)) => *mark = token,
                _ => return Err(RedisFenceError::Damaged { key, field, value }),
            }
        }
        Ok(marks)
    }

    /// Sets the marks of `resource` to `to`, for every slot, *unconditionally*: tokens below `to` are stale,
    /// tokens from `to` on pass. Only for the case that a lock service with lower tokens takes over, or that
    /// marks are damaged, and with all writers stopped: lowering the marks lets stale sections pass.
    ///
    /// # Errors
    /// [`RedisFenceError::WrongType`]; [`RedisFenceError::Unknown`] if there is no response: call `reset`
    /// again.
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
        commands: &[RedisCommand],
    ) -> Result<Vec<Value>, RedisFenceError> {
        let marks = self.marks_beside(resource, commands.iter().flat_map(RedisCommand::keys))?;
        if let Some((command, why)) = commands.iter().find_map(|command| Some((command, command.fault()?))) {
            return Err(RedisFenceError::Command { command: command.name(), why });
        }
        let keys: Vec<&[u8]> =
            [marks.as_bytes()].into_iter().chain(commands.iter().flat_map(RedisCommand::keys)).collect();
        let mut call = COMMANDS.call(&keys);
        with_section(&mut call, action, section)?;
        for command in commands {
            call.arg(command.words().len()).arg(command.words());
        }
        match self.run(&COMMANDS, call, &marks, section).await? {
            ScriptOutcome::Done(mut answer) => match answer.pop() {
                Some(Value::Array(results)) => Ok(results),
                _ => Err(RedisFenceError::unreadable("the script's answer has no list of results")),
            },
            ScriptOutcome::Failed { done, message } => {
                let command = commands.get(done).map(RedisCommand::name).unwrap_or_default();
                Err(RedisFenceError::Failed { done, of: commands.len(), command, message })
            }
        }
    }

    /// Returns the key of the marks, if a script may access it together with `keys`: none of these is the key
    /// of the marks itself, and in a cluster all are in its slot.
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

    /// Runs a script that begins with the check, and parses its reply.
    async fn run(
        &self,
        script: &Script,
        call: Cmd,
        marks: &str,
        section: Section,
    ) -> Result<ScriptOutcome, RedisFenceError> {
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
            "done" => Ok(ScriptOutcome::Done(words.collect())),
            "failed" => {
                let done = word().and_then(|done| done.parse().ok()).ok_or_else(unreadable)?;
                Ok(ScriptOutcome::Failed { done, message: word().unwrap_or_default() })
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
            // The server does not know the script (NOSCRIPT), so it executed nothing.
            answer = connection.req_packed_command(&script.in_full(&call)).await.and_then(top_error);
        }
        answer.map_err(|error| RedisFenceError::of_call(error, marks))
    }
}

/// The outcome of a script whose check passed.
enum ScriptOutcome {
    Done(Vec<Value>),
    Failed { done: usize, message: String },
}

/// Converts an error reply to `Err`; errors nested inside a reply are left to the caller.
fn top_error(answer: Value) -> Result<Value, redis::RedisError> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        other => Ok(other),
    }
}

/// Adds the script arguments of the section, if its mode permits the action (F-c).
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

/// The mark in `marks` for a field of the hash; `None` for a field that the fence never writes.
fn mark_mut<'m>(marks: &'m mut Marks, field: &str) -> Option<&'m mut Option<Token>> {
    let (which, slot) = field.split_once(':').map_or((field, None), |(which, slot)| (which, Some(slot)));
    let pair: &mut Pair = match slot {
        None => &mut marks.base,
        Some(text) => {
            let slot: Slot = text.parse().ok().filter(|slot| *slot < PERMITS_MAX)?;
            // Accepts the canonical form only: the script would not find slot 3 under `03`.
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
