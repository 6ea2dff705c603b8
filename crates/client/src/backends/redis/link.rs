//! The main connection to a server: shared by all calls, kept up on the backend's own thread. Errors report whether
//! the call may have arrived (P12).
//!
//! Calls of all tasks are pipelined on it. It is replaced when it ends, and when a call times out without any other
//! answer on it meanwhile. Redis sends messages about waiters as pushes on the same connection (RESP3). Messages may
//! be lost while there is no connection, so each new connection wakes all waiters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisResult, ServerError, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::lane::{Ended, Lane, Lanes, Passed};
use super::layout;
use super::limit::Limit;
use super::paced::{self, Made, UnderWay};
use super::refusal::{self, Refusal};
use super::scripts::Script;
use super::target::Target;
use crate::backend::CallError;
use crate::backends::leased::{EntryId, Wake, Wakes};
use crate::error::ConnectError;
use crate::io::LeaseThread;

/// Time limit for a new connection, with its handshake and subscription.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The number of a link's first connection.
const FIRST: u64 = 0;
/// Stands for no connection.
const NONE: u64 = u64::MAX;
/// Capacity of a connection's queue of commands to write.
const BUFFER: usize = 4096;
/// Largest batch of script calls (renewals, inspections) in one pipeline: other clients of the server must not wait
/// long.
const TOGETHER: usize = 500;

/// Why a call has no usable reply.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No reply, or an error after which the call may be repeated since nothing was done.
    Silent(CallError),
    /// Redis refused it.
    Refused(Refusal),
}

/// Nothing was sent, or the server did nothing.
const NOT_DONE: Failure = Failure::Silent(CallError { sent: false });
/// The server may have executed it.
const IN_DOUBT: Failure = Failure::Silent(CallError { sent: true });

/// A connection to one server that is kept up until the link is dropped.
pub(super) struct Link {
    up: watch::Receiver<Option<Connection>>,
    /// The number of the present connection, or `NONE`: every call reads it.
    number: Arc<AtomicU64>,
    lost: UnboundedSender<u64>,
    server: Arc<str>,
    trouble: Trouble,
    target: Arc<Target>,
    lanes: Lanes,
    /// The runtime of the main connection.
    thread: Id,
}

/// The error of the last failed attempt to connect, while there is no connection.
type Trouble = Arc<Mutex<Option<String>>>;

/// An established connection; clones share it.
#[derive(Clone)]
struct Connection {
    wire: MultiplexedConnection,
    number: u64,
    /// How many replies it has received.
    heard: Arc<AtomicU64>,
}

impl Link {
    /// Connects on the worker, which then keeps the connection up. Each runtime of callers gets up to `each`
    /// connections.
    pub(super) async fn open(
        target: Target,
        worker: &LeaseThread,
        wakes: Wakes,
        client: &str,
        each: usize,
    ) -> Result<Self, ConnectError> {
        let (lost, losses) = unbounded_channel();
        let (opened_in, opened) = oneshot::channel();
        let server: Arc<str> = target.to_string().into();
        let trouble = Trouble::default();
        let channel = layout::channel(client);
        let (target, number) = (Arc::new(target), Arc::new(AtomicU64::new(FIRST)));
        let keeper = Keeper {
            target: target.clone(),
            wakes,
            channel,
            number: number.clone(),
            lost: lost.clone(),
            trouble: trouble.clone(),
        };
        worker.run(Box::pin(async move {
            match keeper.connect(FIRST).await {
                Ok(connection) => {
                    let (up_in, up) = watch::channel(Some(connection));
                    if opened_in.send(Ok((up, Handle::current().id()))).is_ok() {
                        keeper.keep(up_in, losses).await;
                    }
                }
                // The caller may have stopped waiting.
                Err(error) => drop(opened_in.send(Err(error))),
            }
        }));
        let (up, thread) = opened.await.unwrap_or_else(|_| Err(refusal::no_thread()))?;
        Ok(Self { up, number, lost, server, trouble, target, lanes: Lanes::new(each), thread })
    }

    /// The server, for display.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Whether there is a connection at the moment.
    #[cfg_attr(not(feature = "redlock"), allow(dead_code, reason = "others wait for the next one"))]
    pub(super) fn is_up(&self) -> bool {
        self.number.load(Ordering::SeqCst) != NONE
    }

    /// Why there is no connection, if known.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a script. If the server does not have it, sends its text.
    pub(super) async fn run(&self, script: &Script, call: &Cmd, limit: impl Limit) -> Result<Value, Failure> {
        match self.ask(call, &limit).await? {
            Value::ServerError(error) if is_unknown(&error) => {
                let value = self.ask(&script.in_full(call), &limit).await?;
                self.sound(value)
            }
            value => self.sound(value),
        }
    }

    /// Runs a script after all calls sent before it on the runtimes' connections, if those answer within a quarter of
    /// the limit.
    pub(super) async fn run_last(
        &self,
        script: &Script,
        call: &Cmd,
        limit: Duration,
    ) -> Result<Value, Failure> {
        let deadline = Instant::now() + limit;
        // A call that was lost with its connection can't be waited for.
        let _ = timeout_at(Instant::now() + limit / 4, self.lanes.settle()).await;
        let ask = async |command: &Cmd| {
            let left = deadline.saturating_duration_since(Instant::now());
            self.exchange(left, async |wire| wire.send_packed_command(command).await).await
        };
        match ask(call).await? {
            Value::ServerError(error) if is_unknown(&error) => {
                let value = ask(&script.in_full(call)).await?;
                self.sound(value)
            }
            value => self.sound(value),
        }
    }

    /// Runs a script for each of `calls`. One failure fails them all.
    pub(super) async fn run_all(
        &self,
        script: &Script,
        calls: &[Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut values = Vec::with_capacity(calls.len());
        for calls in calls.chunks(TOGETHER) {
            let mut answers = self.ask_all(calls, limit).await?;
            let unknown = |value: &Value| matches!(value, Value::ServerError(error) if is_unknown(error));
            if let Some(first) = answers.iter().position(unknown) {
                answers[first] = self.ask(&script.in_full(&calls[first]), &limit).await?;
                let rest: Vec<usize> = (0..answers.len()).filter(|&at| unknown(&answers[at])).collect();
                let again: Vec<Cmd> = rest.iter().map(|&at| calls[at].clone()).collect();
                for (at, answer) in rest.into_iter().zip(self.ask_all(&again, limit).await?) {
                    answers[at] = answer;
                }
            }
            for answer in answers {
                values.push(self.sound(answer)?);
            }
        }
        Ok(values)
    }

    /// Sends a plain command.
    pub(super) async fn command(&self, command: &Cmd, limit: impl Limit) -> Result<Value, Failure> {
        let value = self.ask(command, &limit).await?;
        self.sound(value)
    }

    /// Sends plain commands in one pipeline. Error replies are returned as values.
    pub(super) async fn ask_all(&self, commands: &[Cmd], limit: Duration) -> Result<Vec<Value>, Failure> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        self.exchange(limit, async |wire| wire.send_packed_commands(&pipeline, 0, commands.len()).await).await
    }

    /// Sends a command on a connection of the caller's runtime if one is ready, else on the main connection.
    async fn ask(&self, command: &Cmd, limit: &impl Limit) -> Result<Value, Failure> {
        if let Some(lane) = self.lane() {
            let heard = lane.heard();
            match limit.within(lane.pass(command)).await {
                Some(Passed::Answered(answer)) => return Ok(answer),
                Some(Passed::InDoubt) => return Err(IN_DOUBT),
                Some(Passed::NotSent) => {}
                None => {
                    // A server that is only slow keeps its connection.
                    if lane.heard() == heard {
                        self.lanes.give_up(&lane);
                    }
                    return Err(IN_DOUBT);
                }
            }
        }
        // Boxed, so that the future of every call is not as large as this rare path.
        Box::pin(self.exchange(limit.left(), async |wire| wire.send_packed_command(command).await)).await
    }

    fn lane(&self) -> Option<Lane> {
        let beside = self.number.load(Ordering::SeqCst);
        if beside == NONE {
            return None;
        }
        let connect = || {
            let target = self.target.clone();
            move |ended, callers| connect_lane(target.clone(), ended, callers)
        };
        self.lanes.here(self.thread, beside, connect)
    }

    /// One exchange on the connection that is up, or on the next one within the limit.
    async fn exchange<T>(
        &self,
        limit: Duration,
        exchange: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + limit;
        let present = self.up.borrow().clone();
        let mut connection = match present {
            Some(connection) => connection,
            None => timeout_at(deadline, self.next()).await.ok().flatten().ok_or(NOT_DONE)?,
        };
        let heard = connection.heard.load(Ordering::Relaxed);
        match timeout_at(deadline, exchange(&mut connection.wire)).await {
            Ok(Ok(answer)) => {
                connection.heard.fetch_add(1, Ordering::Relaxed);
                Ok(answer)
            }
            Ok(Err(_)) => {
                self.suspect(connection.number);
                Err(IN_DOUBT)
            }
            Err(_) => {
                // A server that is only slow keeps its connection.
                if connection.heard.load(Ordering::Relaxed) == heard {
                    self.suspect(connection.number);
                }
                Err(IN_DOUBT)
            }
        }
    }

    /// The next connection that is established.
    async fn next(&self) -> Option<Connection> {
        self.up.clone().wait_for(Option::is_some).await.ok()?.clone()
    }

    fn suspect(&self, number: u64) {
        // The thread outlives this link.
        let _ = self.lost.send(number);
    }

    /// Returns a reply that is not an error.
    fn sound(&self, value: Value) -> Result<Value, Failure> {
        let Value::ServerError(error) = value else { return Ok(value) };
        let number = self.up.borrow().as_ref().map(|connection| connection.number);
        match refusal::of(&error, &self.server) {
            refusal::Meaning::TryAgain => Err(NOT_DONE),
            refusal::Meaning::ElsewhereNow => {
                number.into_iter().for_each(|number| self.suspect(number));
                Err(NOT_DONE)
            }
            refusal::Meaning::Refused(refusal) => Err(Failure::Refused(refusal)),
        }
    }
}

/// Without time limits of its own: each call has one.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(BUFFER)
}

/// A connection for one runtime; `ended` is set when it ends.
async fn connect_lane(target: Arc<Target>, ended: Ended, callers: UnderWay) -> Option<Made> {
    let connecting = async {
        let client = target.client().await.ok()?;
        let config = config().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                ended.store(true, Ordering::Relaxed);
            }
            Ok::<(), ()>(())
        });
        paced::connect(&client, config, callers).await.ok()
    };
    timeout(CONNECT_LIMIT, connecting).await.ok().flatten()
}

fn is_unknown(error: &ServerError) -> bool {
    error.code() == "NOSCRIPT"
}

/// Keeps a connection up.
struct Keeper {
    target: Arc<Target>,
    wakes: Wakes,
    channel: String,
    number: Arc<AtomicU64>,
    lost: UnboundedSender<u64>,
    trouble: Trouble,
}

impl Keeper {
    async fn connect(&self, number: u64) -> Result<Connection, ConnectError> {
        let connected = async {
            let client = self.target.client().await?;
            let (wakes, lost) = (self.wakes.clone(), self.lost.clone());
            let config = config().set_push_sender(move |push: PushInfo| match push.kind {
                PushKind::Disconnection => lost.send(number).map_err(drop),
                _ => {
                    deliver(&wakes, &push);
                    Ok(())
                }
            });
            let mut wire = client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(|error| refusal::of_connecting(&error, &self.target))?;
            wire.subscribe(&self.channel)
                .await
                .map_err(|error| refusal::of_connecting(&error, &self.target))?;
            Ok(Connection { wire, number, heard: Arc::default() })
        };
        let late = |_| refusal::connecting_took_too_long(&self.target, CONNECT_LIMIT);
        timeout(CONNECT_LIMIT, connected).await.map_err(late)?
    }

    /// Runs until the link is dropped.
    async fn keep(self, up: watch::Sender<Option<Connection>>, mut losses: UnboundedReceiver<u64>) {
        let mut number = FIRST;
        loop {
            if up.borrow().is_some() {
                tokio::select! {
                    () = up.closed() => return,
                    Some(lost) = losses.recv() => if lost != number { continue },
                }
                self.number.store(NONE, Ordering::SeqCst);
                up.send_replace(None);
            }
            number += 1;
            tokio::select! {
                () = up.closed() => return,
                connection = self.connect_at_last(number) => up.send_replace(Some(connection)),
            };
            self.number.store(number, Ordering::SeqCst);
            self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
        }
    }

    fn set_trouble(&self, says: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    async fn connect_at_last(&self, number: u64) -> Connection {
        let mut pause = PAUSES.0;
        loop {
            match self.connect(number).await {
                Ok(connection) => {
                    self.set_trouble(None);
                    return connection;
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection to Redis yet");
                    self.set_trouble(Some(error.to_string()));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Delivers a message on an entry: revoked, or the ms after which to try again.
fn deliver(wakes: &Wakes, push: &PushInfo) {
    let (PushKind::Message, [_, Value::BulkString(message)]) = (&push.kind, &push.data[..]) else { return };
    let Some((id, what)) = std::str::from_utf8(message).ok().and_then(|message| message.split_once(' '))
    else {
        return;
    };
    let wake = match what.parse() {
        Ok(ms) => Wake::Try(Duration::from_millis(ms)),
        Err(_) if what == "revoked" => Wake::Revoked,
        Err(_) => return,
    };
    wakes.deliver(&EntryId(id.to_owned()), wake);
}
