//! Calls to one server. Errors report whether the call may have arrived (P12).
//!
//! Renewals go over the main connection, on the lease thread. All other calls go over a connection of the
//! current runtime ([`Pool`]), to the address of the main connection. The lease thread also has such a
//! connection, beside the main one, for ends of requests that no caller waits for; such an end can overtake
//! an earlier attempt. Once the main connection was replaced, the runtimes' connections are not used any
//! more: after a fail-over no call goes to the former primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, mem};

use lockkeeper_backend::io::{Connect, LeaseThread, Pool, PoolLimits, Used};
use lockkeeper_backend::leased::Wakes;
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, CallError, ConnectError, Host};
use redis::RedisError;
use redis::{Cmd, Pipeline, PushInfo, PushKind, RedisResult, ServerError, Value};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::dial::{RedisConnection, without_time_limit};
use super::main_connection::{CONNECT_LIMIT, MainConnection};
use super::refusal::{self, Refusal};
use super::scripts::Script;
use super::target::Target;

/// Each runtime has one connection, closed after a minute without use. The limit on the total only matters
/// for programs that create more and more runtimes.
const LIMITS: PoolLimits = PoolLimits { shared_each: 1, total: 256, idle: Duration::from_secs(60) };
/// Largest batch of script calls (renewals, inspections) in one pipeline: other clients of the server must
/// not wait long.
const BATCH: usize = 500;
/// Time limit of the `PING` on the main connection after another connection could not be opened.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// Why a call has no usable reply.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No reply, or an error after which the call may be repeated since nothing was done.
    Silent(CallError),
    /// Nothing was done, and a repeat may succeed soon. The error reply, formatted for users.
    TryAgain(Refusal),
    /// Redis refused it.
    Refused(Refusal),
}

/// Nothing was sent, or the server did nothing.
const NOT_DONE: Failure = Failure::Silent(CallError::NOT_SENT);
/// The server may have executed the call.
const IN_DOUBT: Failure = Failure::Silent(CallError::IN_DOUBT);

/// The server did nothing; a repeat may succeed.
fn passing(refusal: Refusal) -> Failure {
    Failure::Silent(CallError::refused(refusal.into_error()))
}

/// The connections to one server.
pub(super) struct Link {
    main: MainConnection,
    pool: Pool<Connector>,
    server: String,
}

/// The connection on which a call is sent.
#[derive(Clone, Copy)]
pub(super) enum Over {
    Main,
    /// The current runtime's connection.
    Runtime,
}

impl Link {
    /// Connects on the lease thread.
    pub(super) async fn open(
        target: Target,
        lease_thread: &LeaseThread,
        wakes: Wakes,
        client: &str,
    ) -> Result<Self, ConnectError> {
        let server = target.to_string();
        let main = MainConnection::open(target, lease_thread, wakes, client).await?;
        let pool = Pool::new(Connector(main.clone()), LIMITS, lease_thread);
        Ok(Self { main, pool, server })
    }

    /// The server, for display.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Whether there is a main connection at the moment.
    pub(super) fn is_up(&self) -> bool {
        self.main.number().is_some()
    }

    /// Replaces the connections: the server is not the right one any more.
    pub(super) fn replace(&self) {
        self.main.number().into_iter().for_each(|number| self.main.replace(number));
    }

    /// Why there is no connection, if known.
    pub(super) fn last_error(&self) -> Option<String> {
        self.main.last_error().or_else(|| self.pool.trouble().map(|error| error.to_string()))
    }

    /// Runs a script. If the server does not have it, sends its text.
    pub(super) async fn run(&self, script: &Script, call: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        match self.send(call, deadline).await? {
            Value::ServerError(error) if is_unknown(&error) => {
                self.command(&script.in_full(call), deadline).await
            }
            value => self.settled(value, || script.in_full(call), deadline).await,
        }
    }

    /// Runs a script for each of `calls`, within `limit` for each batch. One failure fails them all.
    pub(super) async fn run_all(
        &self,
        over: Over,
        script: &Script,
        calls: &[Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut values = Vec::with_capacity(calls.len());
        for calls in calls.chunks(BATCH) {
            let deadline = Instant::now() + limit;
            let mut answers = self.send_all(over, calls, deadline).await?;
            let unknown = |value: &Value| matches!(value, Value::ServerError(error) if is_unknown(error));
            let again: Vec<usize> = (0..answers.len()).filter(|&at| unknown(&answers[at])).collect();
            let in_full: Vec<Cmd> = again.iter().map(|&at| script.in_full(&calls[at])).collect();
            for (at, answer) in again.into_iter().zip(self.send_all(over, &in_full, deadline).await?) {
                answers[at] = answer;
            }
            for (answer, call) in answers.into_iter().zip(calls) {
                values.push(self.settled(answer, || script.in_full(call), deadline).await?);
            }
        }
        Ok(values)
    }

    /// Sends a plain command.
    pub(super) async fn command(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        self.settled(self.send(command, deadline).await?, || command.clone(), deadline).await
    }

    /// Returns the reply, or converts an error reply. If the key's slot migrates and the key is not here
    /// (`ASK`), returns the reply of the other node.
    async fn settled(
        &self,
        value: Value,
        call: impl FnOnce() -> Cmd,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        match &value {
            Value::ServerError(error) if error.code() == "ASK" => match refusal::of(error, &self.server) {
                refusal::Meaning::Ask(there) => {
                    let asking = timeout_at(deadline, self.ask_there(&there, call()));
                    self.checked(asking.await.map_err(|_| IN_DOUBT)??)
                }
                _ => self.checked(value),
            },
            _ => self.checked(value),
        }
    }

    /// Sends a command to the node to which its slot migrates, on a connection for this command alone:
    /// migrations are rare and short.
    async fn ask_there(&self, address: &str, call: Cmd) -> Result<Value, Failure> {
        let (name, port) = address.rsplit_once(':').ok_or(NOT_DONE)?;
        let host = Host { name: name.trim_matches(['[', ']']).to_owned(), port: port.parse().ok() };
        let dialer = self.main.target().settings().dialer(&host).map_err(|_| NOT_DONE)?;
        let opened = dialer.connect(without_time_limit()).await;
        let mut connection = opened.map_err(|_| NOT_DONE)?;
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(call);
        let answers = connection.calls.send_packed_commands(&pipeline, 1, 1).await;
        let answers = answers.map_err(|error| in_doubt(&error, &address))?;
        answers.into_iter().next().ok_or(IN_DOUBT)
    }

    /// Sends plain commands in one pipeline. Error replies are returned as values.
    pub(super) async fn send_all(
        &self,
        over: Over,
        commands: &[Cmd],
        deadline: Instant,
    ) -> Result<Vec<Value>, Failure> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let send = async |mut connection: RedisConnection| {
            connection.calls.send_packed_commands(&pipeline, 0, commands.len()).await
        };
        match over {
            Over::Main => self.main.send(deadline, send).await,
            Over::Runtime => self.send_on_runtime(deadline, send).await,
        }
    }

    async fn send(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        let send =
            async |mut connection: RedisConnection| connection.calls.send_packed_command(command).await;
        self.send_on_runtime(deadline, send).await
    }

    /// Sends on the current runtime's connection. If there is no answer, for whatever reason, this connection
    /// is not used again.
    async fn send_on_runtime<T>(
        &self,
        deadline: Instant,
        send: impl AsyncFnOnce(RedisConnection) -> RedisResult<T>,
    ) -> Result<T, Failure> {
        let used = self.pool.shared_until(deadline).await.ok_or(NOT_DONE)?;
        let unanswered = DiscardOnDrop(&used);
        let answer = timeout_at(deadline, send(used.connection.clone())).await;
        let why = match &answer {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("not in time".to_owned()),
        };
        if let Some(why) = why {
            let what = format!("{} did not answer a call: {why}", self.server);
            self.pool.set_trouble(BackendError::new(BackendErrorKind::Unreachable, what));
        }
        let answer = answered(answer, &self.server)?;
        mem::forget(unanswered);
        Ok(answer)
    }

    /// Returns the reply, or converts an error reply. After `READONLY`, the main connection is replaced.
    fn checked(&self, value: Value) -> Result<Value, Failure> {
        let Value::ServerError(error) = value else { return Ok(value) };
        match refusal::of(&error, &self.server) {
            refusal::Meaning::Ask(_) => Err(NOT_DONE),
            refusal::Meaning::TryAgain(refusal) => Err(Failure::TryAgain(refusal)),
            refusal::Meaning::ElsewhereNow(refusal) => {
                self.replace();
                Err(passing(refusal))
            }
            refusal::Meaning::Refused(refusal) => Err(Failure::Refused(refusal)),
        }
    }
}

impl MainConnection {
    /// Sends on the main connection. If there is no answer, the connection is replaced.
    async fn send<T>(
        &self,
        deadline: Instant,
        send: impl AsyncFnOnce(RedisConnection) -> RedisResult<T>,
    ) -> Result<T, Failure> {
        let established = timeout_at(deadline, self.established()).await;
        let main = established.ok().and_then(Result::ok).ok_or(NOT_DONE)?;
        let answer = timeout_at(deadline, send(main.connection)).await;
        answered(answer, self.target()).inspect_err(|_| self.replace(main.number))
    }
}

/// Opens connections beside the main one.
struct Connector(MainConnection);

/// A runtime's connection.
struct RuntimeConnection {
    connection: RedisConnection,
    /// The number of the main connection at the time when this one was opened.
    beside: u64,
    has_ended: Arc<AtomicBool>,
}

impl Connector {
    async fn open(&self) -> Result<RuntimeConnection, BackendError> {
        let main = self.0.established().await?;
        // The password may have been changed since the main connection was opened.
        let mut dialer = self.0.target().settings().dialer_at(main.dialer.address.clone())?;
        let refused = |error| refusal::of_connecting(&error, self.0.target());
        let has_ended = Arc::<AtomicBool>::default();
        let ended = has_ended.clone();
        let mut config = without_time_limit();
        // Over RESP2, the next call detects the end of the connection.
        if main.dialer.is_resp2() {
            dialer = dialer.with_resp2();
        } else {
            config = config.set_push_sender(move |push: PushInfo| {
                ended.fetch_or(push.kind == PushKind::Disconnection, Ordering::Relaxed);
                Ok::<(), ()>(())
            });
        }
        let connection = dialer.connect(config).await.map_err(refused)?;
        Ok(RuntimeConnection { connection, beside: main.number, has_ended })
    }
}

impl Connect for Connector {
    type Connection = RuntimeConnection;

    fn connect(&self) -> BoxFuture<'static, Result<RuntimeConnection, BackendError>> {
        let connector = Self(self.0.clone());
        Box::pin(async move {
            let opened = timeout(CONNECT_LIMIT, connector.open()).await;
            let late = |_| refusal::connecting_took_too_long(connector.0.target(), CONNECT_LIMIT);
            let opened = opened.unwrap_or_else(|elapsed| Err(late(elapsed)));
            if opened.is_err() {
                // If the server does not answer on the main connection either, the main connection is
                // replaced: there may have been a fail-over.
                let ping = redis::cmd("PING");
                let send = async |mut main: RedisConnection| main.calls.send_packed_command(&ping).await;
                let _ = connector.0.send(Instant::now() + PROBE_LIMIT, send).await;
            }
            opened
        })
    }

    fn is_usable(&self, connection: &RuntimeConnection) -> bool {
        self.0.number() == Some(connection.beside) && !connection.has_ended.load(Ordering::Relaxed)
    }
}

/// Discards the connection when dropped; `mem::forget` prevents this.
struct DiscardOnDrop<'a>(&'a Used<Connector>);

impl Drop for DiscardOnDrop<'_> {
    fn drop(&mut self) {
        self.0.discard();
    }
}

/// The answer, if there is one within the time limit. Otherwise the call is in doubt.
fn answered<T>(answer: Result<RedisResult<T>, Elapsed>, server: &dyn fmt::Display) -> Result<T, Failure> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(in_doubt(&error, server)),
        Err(_) => Err(IN_DOUBT),
    }
}

/// The server may have executed the call. The error names a reply that can't be read: the repeat may get the
/// same one.
fn in_doubt(error: &RedisError, server: &dyn fmt::Display) -> Failure {
    let refusal = refusal::of_reply(error, server).map(Arc::new);
    Failure::Silent(CallError { sent: true, refusal })
}

fn is_unknown(error: &ServerError) -> bool {
    error.code() == "NOSCRIPT"
}
