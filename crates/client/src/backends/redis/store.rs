//! Entries in one Redis. Each call is one script, except the first attempt at an exclusive hold without a token,
//! which is a plain `SET NX PX`; the script runs only if the key exists.
//!
//! Why a plain `SET` may replace the script, which checks more keys than the lock's:
//! - *The queue* (P8). A step that frees a lock of this library while others wait also reserves the lock's key for
//!   them (`keep_free` in queue.lua), until the first waiter takes it. So a `SET` succeeds beside a queue only where
//!   a key expired, another client deleted it, or the first waiter did not come within the two seconds of the
//!   reservation.
//! - *The entry's own end* (P7). A `SET` that arrives after its entry was ended must not hold. It can't arrive late
//!   if it was sent before the end on the same connection. An end in doubt first waits for the calls pending on the
//!   runtimes' connections, and is sent on the link's main connection ([`Link::run_last`]). If the `SET` was sent on
//!   a connection that is lost or does not answer, it may arrive at any time. Then the record of the end (`gone`)
//!   invalidates the key that the `SET` creates (`in_the_way` in way.lua): every script treats such a key as free,
//!   and a `SET` that finds it is followed by a script. The record must outlive the key, which with `keep_closed` it
//!   might not: there the first attempt is the script.
//! - *A repeat* (P7) is never a `SET`: the script recognizes the entry's own value.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{End, LockName, Mode, PermitGrant, Rejection, Token};
use redis::{Cmd, RedisWrite, Value};
use tokio::time::Instant;

use super::answers::Items;
use super::layout::{self, Keys, Told};
use super::limit::Limit;
use super::link::{Failure, Link};
use super::scripts::{SCRIPTS, Script};
use super::settings::{Settings, Topology};
use super::target::Target;
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, Renewed, Store, Tried, Wakes};
use crate::error::{BackendError, BackendErrorKind, Busy, ConnectError};
use crate::io::LeaseThread;
use crate::machine::Granted;
use crate::url::Host;

/// Bounds in ms of the random pause before the first waiter checks again a lock that another client holds.
const FOREIGN_LOOKS: (u64, u64) = (50, 150);

/// Connections for each runtime of callers, at most. With a single one, callers and server would wait for each other
/// in turns. Where several servers are called at once they don't, and further connections only add packets.
const LANES_EACH: usize = 2;

/// One Redis server, or a service that acts as one: a primary with its replicas, or a node of a cluster.
pub(crate) struct RedisStore(Arc<Inner>);

pub(super) struct Inner {
    pub(super) link: Link,
    prefix: Arc<str>,
    /// Names this client's pub/sub channel.
    client: String,
    fair: bool,
    fencing: bool,
    /// Whether the keys of a name must be in one slot.
    cluster: bool,
}

/// The first command of an attempt: a plain `SET` where that is allowed, or the error that prevents the attempt.
pub(crate) struct Opening(Result<Option<Cmd>, BackendError>);

/// A call as it is sent.
#[cfg(feature = "redlock")]
pub(crate) type Written = Cmd;

/// Opens one of several servers for a majority. Its I/O runs on `worker`, and its messages about entries go to
/// `wakes`; all servers know this client by the same name. Such a server is not fair: it grants a free lock
/// regardless of its queue.
#[cfg_attr(not(feature = "redlock"), allow(dead_code, reason = "a majority has several of them"))]
pub(crate) async fn open_store(
    host: &Host,
    settings: &Settings,
    worker: &LeaseThread,
    wakes: Wakes,
    client: &str,
) -> Result<Arc<RedisStore>, ConnectError> {
    let topology = Topology::Single(host.clone());
    RedisStore::open_as(settings, topology, worker, wakes, false, client, false).await.map(Arc::new)
}

impl RedisStore {
    pub(super) async fn open(
        settings: &Settings,
        topology: Topology,
        worker: &LeaseThread,
        wakes: Wakes,
    ) -> Result<Self, ConnectError> {
        let client = Self::new_client()?;
        Self::open_as(settings, topology, worker, wakes, true, &client, false).await
    }

    /// Opens one node of a cluster. All its nodes know this client by the same name.
    pub(super) async fn open_node(
        settings: &Settings,
        host: &Host,
        worker: &LeaseThread,
        wakes: Wakes,
        client: &str,
    ) -> Result<Arc<Self>, ConnectError> {
        let topology = Topology::Single(host.clone());
        Self::open_as(settings, topology, worker, wakes, true, client, true).await.map(Arc::new)
    }

    /// A random name for a client and its pub/sub channel.
    pub(crate) fn new_client() -> Result<String, BackendError> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| {
            let what = format!("the system gives no random bytes: {error}");
            BackendError::new(BackendErrorKind::Operator, what)
        })?;
        Ok(format!("{:016x}", u64::from_be_bytes(random)))
    }

    async fn open_as(
        settings: &Settings,
        topology: Topology,
        worker: &LeaseThread,
        wakes: Wakes,
        fair: bool,
        client: &str,
        cluster: bool,
    ) -> Result<Self, ConnectError> {
        let target = Target::new(settings.clone(), topology);
        let each = if fair { LANES_EACH } else { 1 };
        let link = Link::open(target, worker, wakes, client, each).await?;
        let (prefix, fencing, client) = (settings.prefix.clone(), settings.fencing, client.to_owned());
        Ok(Self(Arc::new(Inner { link, prefix, client, fair, fencing, cluster })))
    }

    /// Whether there is a connection at the moment.
    pub(crate) fn is_up(&self) -> bool {
        self.0.link.is_up()
    }

    /// The server, for display.
    pub(super) fn server(&self) -> &str {
        self.0.link.server()
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Store for RedisStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<Result<Tried, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let deadline = Instant::now() + attempt.entry.limit();
            inner.attempt(&attempt, &inner.opening(&attempt), deadline).await
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
            let calls: Vec<Cmd> = entries.iter().map(|entry| inner.renew_call(entry)).collect();
            let answers = inner.link.run_all(&SCRIPTS.renew, &calls, limit).await.map_err(not_known)?;
            let renewed = |answer: &Value| match answer {
                Value::Int(0) => Ok(Renewed::Gone),
                Value::Int(1) => Ok(Renewed::Kept),
                Value::Int(2) => Ok(Renewed::Revoked),
                _ => Err(CallError { sent: true }),
            };
            answers.iter().map(renewed).collect()
        })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<Result<End, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.finish(&inner.finish_call(&entry, doubt), doubt, entry.limit()).await })
    }

    fn trouble(&self) -> Option<String> {
        self.0.link.trouble()
    }
}

/// The outcome of a renewal or an end that Redis refuses is unknown; the caller repeats it.
fn not_known(failure: Failure) -> CallError {
    match failure {
        Failure::Silent(error) => error,
        Failure::Refused(refusal) if refusal.moved => CallError { sent: false },
        Failure::Refused(refusal) => {
            tracing::warn!(error = %refusal.into_error(), "a renewal or an end is tried again");
            CallError { sent: false }
        }
    }
}

/// For calls that go to several servers with the same settings: a call is encoded once for all of them.
#[cfg(feature = "redlock")]
impl RedisStore {
    pub(crate) fn write_attempt(&self, attempt: &Attempt) -> Opening {
        self.0.opening(attempt)
    }

    /// [`Store::attempt`] within `limit`.
    pub(crate) fn attempt_by<'a>(
        &'a self,
        attempt: &'a Attempt,
        opening: &'a Opening,
        limit: impl Limit + Copy + 'a,
    ) -> impl Future<Output = Result<Tried, CallError>> + 'a {
        self.0.attempt(attempt, opening, limit)
    }

    pub(crate) fn write_finish(&self, entry: &Entry, doubt: bool) -> Written {
        self.0.finish_call(entry, doubt)
    }

    /// [`Store::finish`] within `limit`.
    pub(crate) fn finish_by<'a>(
        &'a self,
        call: &'a Written,
        doubt: bool,
        limit: impl Limit + 'a,
    ) -> impl Future<Output = Result<End, CallError>> + 'a {
        self.0.finish(call, doubt, limit)
    }
}

impl Inner {
    fn opening(&self, attempt: &Attempt) -> Opening {
        Opening(self.check_name(&attempt.entry.name).map(|()| self.plain_call(attempt)))
    }

    async fn attempt(
        &self,
        attempt: &Attempt,
        opening: &Opening,
        limit: impl Limit + Copy,
    ) -> Result<Tried, CallError> {
        let asked = match &opening.0 {
            Err(refused) => return Ok(Tried::Refused(refused.clone())),
            Ok(Some(set)) => match self.link.command(set, limit).await {
                Ok(Value::Nil) => self.ask_script(attempt, limit).await,
                Ok(Value::Okay) => Ok(Value::Int(0)),
                // Not a reply of `SET`: it must not pass for a grant.
                Ok(_) => return Err(CallError { sent: true }),
                Err(failure) => Err(failure),
            },
            Ok(None) => self.ask_script(attempt, limit).await,
        };
        match asked {
            Ok(answer) => self.tried(&attempt.entry, answer),
            Err(Failure::Silent(error)) => Err(error),
            // The key is on another node now: nothing was done here.
            Err(Failure::Refused(refusal)) if self.cluster && refusal.moved => Err(CallError { sent: false }),
            Err(Failure::Refused(refusal)) => Ok(Tried::Refused(refusal.into_error())),
        }
    }

    async fn finish(&self, call: &Cmd, doubt: bool, limit: impl Limit) -> Result<End, CallError> {
        let answer = match doubt {
            true => Box::pin(self.link.run_last(&SCRIPTS.finish, call, limit.left())).await,
            false => self.link.run(&SCRIPTS.finish, call, limit).await,
        };
        match answer.map_err(not_known)? {
            Value::Int(0) => Ok(End::Gone),
            Value::Int(1) => Ok(End::Released),
            Value::Int(2) => Ok(End::Broken),
            Value::Int(3) => Ok(End::Left),
            _ => Err(CallError { sent: true }),
        }
    }

    pub(super) fn keys<'a>(&'a self, name: &'a LockName) -> Keys<'a> {
        Keys::of(&self.prefix, name)
    }

    /// How many keys are passed to a script that usually needs `least` of them. In a cluster, whose keys migrate one
    /// by one, it gets all keys that it may touch, so that a migrating key is not taken for a missing one.
    fn told(&self, mode: Mode, least: Told) -> Told {
        match mode {
            Mode::Permit { .. } => Told::All,
            _ if self.cluster => Told::Waiters,
            _ => least,
        }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn check_name(&self, name: &LockName) -> Result<(), BackendError> {
        if self.keys(name).looks_like_one_beside() {
            let what = format!(
                "`{name}` can't be a lock: keys with `{}` in them are what stands beside locks; choose another name",
                layout::BESIDE
            );
            return Err(BackendError::new(BackendErrorKind::Refused, what));
        }
        if !self.cluster || self.keys(name).share_a_slot() {
            return Ok(());
        }
        let what = format!(
            "`{name}` can't be a lock in a cluster: with a `}}` and without a hash tag, its keys would fall into \
             several slots; leave the `}}` out, or write a tag, as in `{{orders}}/42`"
        );
        Err(BackendError::new(BackendErrorKind::Refused, what))
    }

    /// The `SET` for a free lock, where the lock's key alone decides.
    fn plain_call(&self, attempt: &Attempt) -> Option<Cmd> {
        let entry = &attempt.entry;
        // With `keep_closed` the key lives so long that the record of its end might expire first.
        let lasts = !entry.keep_closed.is_zero();
        if !attempt.first || lasts || self.fencing || matches!(entry.mode, Mode::Permit { .. }) {
            return None;
        }
        let (lives, size) = (lives_ms(entry), self.prefix.len() + entry.name.as_str().len());
        let mut set = Cmd::with_capacity(6, size + attempt.label.len() + attempt.meta.len() + 192);
        set.arg("SET");
        layout::write_arg(&mut set, &[&*self.prefix, entry.name.as_str()]);
        layout::write_plain_value(&mut set, attempt, &self.client, lives);
        set.arg("NX").arg("PX").arg(lives);
        Some(set)
    }

    async fn ask_script(&self, attempt: &Attempt, limit: impl Limit) -> Result<Value, Failure> {
        let (script, call) = self.attempt_call(attempt);
        self.link.run(script, &call, limit).await
    }

    fn attempt_call(&self, attempt: &Attempt) -> (&'static Script, Cmd) {
        let entry = &attempt.entry;
        let letters = match (attempt.wait, self.fair, self.fencing) {
            (false, false, false) => "",
            (false, false, true) => "t",
            (false, true, false) => "f",
            (false, true, true) => "ft",
            (true, false, false) => "w",
            (true, false, true) => "wt",
            (true, true, false) => "wf",
            (true, true, true) => "wft",
        };
        let script = match entry.mode {
            Mode::Permit { .. } => &SCRIPTS.permit,
            _ => &SCRIPTS.acquire,
        };
        let told = self.told(entry.mode, if self.fencing { Told::Counter } else { Told::Gone });
        let size = 128 + 2 * attempt.label.len() + attempt.meta.len();
        let mut call = script.call(&self.keys(&entry.name), &entry.id, told, size);
        layout::write_held(&mut call, &entry.id);
        layout::write_tail(&mut call, attempt, &self.client);
        call.arg(lives_ms(entry));
        call.write_arg_fmt(format_args!("{letters}{}", ms(entry.ttl)));
        if let Mode::Permit { of } = entry.mode {
            call.arg(of.unwrap_or(0)).arg(&*layout::one_line(&attempt.label));
        }
        (script, call)
    }

    fn renew_call(&self, entry: &Entry) -> Cmd {
        let told = self.told(entry.mode, Told::Queue);
        let mut call = SCRIPTS.renew.call(&self.keys(&entry.name), &entry.id, told, 64);
        call.arg(&entry.id.0).arg(lives_ms(entry)).arg(ms(entry.ttl));
        call
    }

    fn finish_call(&self, entry: &Entry, doubt: bool) -> Cmd {
        let told = self.told(entry.mode, if doubt { Told::Gone } else { Told::Queue });
        let mut call = SCRIPTS.finish.call(&self.keys(&entry.name), &entry.id, told, 128);
        layout::write_held(&mut call, &entry.id);
        call.arg(if self.fair { "f" } else { "" });
        // A server can stand still for longer than any ttl, and with it the attempts sent before. An attempt that
        // arrives within twice the ttl is rejected by this record for as long as the key that it sets may live. One
        // that arrives even later sets a key that expires.
        let remembered = if doubt { ms(entry.ttl * 2) + lives_ms(entry) } else { 0 };
        let extra = entry.closed_after_expiry();
        // `keep_closed` is never longer than `extra`.
        if remembered > 0 || !extra.is_zero() {
            call.arg(ms(entry.keep_closed)).arg(ms(extra)).arg(remembered);
        }
        call
    }

    /// Decodes the reply of `acquire.lua` or `permit.lua`.
    fn tried(&self, entry: &Entry, answer: Value) -> Result<Tried, CallError> {
        let items = match answer {
            Value::Int(token) => {
                let token = u64::try_from(token).ok().and_then(Token::new);
                return Ok(Tried::Granted(Granted { token, permits: Vec::new() }));
            }
            Value::Array(items) => items,
            other => return Ok(self.not_understood(&other)),
        };
        let mut items = Items::from(items);
        Ok(match &*items.word() {
            "granted" => {
                let token = items.number().and_then(Token::new);
                let (Some(slot), Some(limit)) = (items.small(), items.small()) else {
                    return Ok(self.not_understood(&"a grant without its permit"));
                };
                Tried::Granted(Granted { token, permits: vec![PermitGrant { slot, limit }] })
            }
            "busy" => {
                let value = items.bytes();
                let holder = if value.is_empty() { None } else { layout::Value::decode(&value).owner() };
                Tried::Busy(Busy { holder, queued_ahead: items.number().unwrap_or(0) })
            }
            "waits" => {
                let ahead = items.number().unwrap_or(0);
                Tried::Waits { ahead, again: items.number().map_or_else(foreign_look, Duration::from_millis) }
            }
            // The entry's end arrived before the attempt: the caller has stopped waiting for it.
            "over" => Tried::Busy(Busy::default()),
            // Broken before its grant was received. It expires, since it is not renewed; then the caller tries again.
            "revoked" => return Err(CallError { sent: true }),
            "type" => Tried::Refused(self.wrong_type(&entry.name, &items.word())),
            "limit" => {
                let asked = match entry.mode {
                    Mode::Permit { of } => of.unwrap_or(0),
                    _ => 0,
                };
                let (name, have) = (entry.name.clone(), items.small().unwrap_or(0));
                Tried::Refused(Rejection::LimitMismatch { name, have, asked }.into())
            }
            "no limit" => Tried::Refused(Rejection::NoLimit { name: entry.name.clone() }.into()),
            other => self.not_understood(&other),
        })
    }

    fn not_understood(&self, answer: &dyn std::fmt::Debug) -> Tried {
        let what =
            format!("{} answered what no script of this client answers: {answer:?}", self.link.server());
        Tried::Refused(BackendError::new(BackendErrorKind::Operator, what))
    }

    pub(super) fn wrong_type(&self, name: &LockName, kind: &str) -> BackendError {
        let whose = match kind {
            "hash" => "as Redisson's locks are",
            "set" | "zset" | "list" | "stream" => "which is no lock that any client we know of makes",
            _ => "which is no lock",
        };
        let what = format!(
            "the key `{}{name}` at {} is a {kind}, {whose}; choose another name or `?prefix=`",
            self.prefix,
            self.link.server()
        );
        BackendError::new(BackendErrorKind::Refused, what)
    }
}

/// How long a key lives without a renewal: the ttl, and the time for which the lock then stays closed.
fn lives_ms(entry: &Entry) -> u64 {
    ms(entry.ttl + entry.closed_after_expiry())
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The pause before the next check of a lock whose holder sends no wake-ups. Random, to spread the waiters' checks.
fn foreign_look() -> Duration {
    let mut random = [0];
    // Without randomness all waiters use the same pause, which does no harm.
    let _ = getrandom::fill(&mut random);
    let spread = FOREIGN_LOOKS.1 - FOREIGN_LOOKS.0;
    Duration::from_millis(FOREIGN_LOOKS.0 + spread * u64::from(random[0]) / 255)
}
