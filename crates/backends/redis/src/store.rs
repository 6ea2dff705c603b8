//! Lease-store entries in one Redis. Each call is one script, except the first attempt at an exclusive hold
//! without a token: it is a plain `SET NX PX`, followed by the script only if the key exists.
//!
//! Why a plain `SET` may replace the script, which checks more keys than the lock's:
//! - *The queue* (P8). A step that frees a lock of this library while others wait also reserves the lock's
//!   key for them (`reserve` in scripts/parts/queue.lua), until the first waiter takes it. So a `SET`
//!   succeeds beside a queue only where a key expired, another client deleted it, or the first waiter did not
//!   come within the two seconds of the reservation.
//! - *The entry's own end* (P7). An attempt and the end of its entry may use different connections, so that
//!   the `SET` may arrive after the end. Such a late `SET` must not hold. An end that may overtake an attempt
//!   (`doubt`) therefore leaves a record (`gone`), which outlives the key of a late `SET` and invalidates it:
//!   every script treats this key as free (`conflicting` in scripts/parts/conflict.lua), a renewal does not
//!   extend it, and a `SET` that finds it is followed by a script. Only clients that do not know the record
//!   are excluded until the key expires. So the key must not live for longer than the ttl: an entry that
//!   keeps the lock closed for longer is created by the script, which checks the record itself.
//! - *A repeat* (P7) is never a `SET`: the script recognizes the entry's own value.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{Attempt, Entry, Renewed, Store, Tried, Wakes};
use lockkeeper_backend::{
    BackendError, BackendErrorKind, BoxFuture, Busy, CallError, ConnectError, Granted, Host, hex,
    random_bytes,
};
use lockkeeper_core::{End, LockName, Mode, PermitGrant, Rejection, Token};
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::answers::Items;
use super::layout::{self, KeySet, Keys};
use super::link::{Failure, Link, Over};
use super::refusal::{self, PASSING_PAUSE};
use super::scripts::{SCRIPTS, Script};
use super::settings::{Settings, Topology};
use super::target::Target;

/// Bounds in ms of the random pause before the first waiter checks the lock again, if its holder is no client
/// of this library and sends no wake-ups.
const FOREIGN_POLL_MS: (u64, u64) = (50, 150);

/// One Redis server, or a service that acts as one: a primary with its replicas, or a node of a cluster.
pub struct RedisStore {
    pub(super) link: Link,
    role: Role,
    pub(super) prefix: Arc<str>,
    /// Names this client's pub/sub channel.
    client: String,
    fencing: bool,
}

/// The role of a server for its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Alone,
    /// A node of a cluster: the keys of a name must be in one slot.
    ClusterNode,
    /// One of several for a majority. Grants a free lock regardless of its queue (not fair).
    OfMajority,
}

/// Opens one of several servers for a majority. Wake-ups for entries go to `wakes`. `client`: this client's
/// name, the same at all servers.
pub async fn open_store(
    host: &Host,
    settings: &Settings,
    lease_thread: &LeaseThread,
    wakes: Wakes,
    client: &str,
) -> Result<Arc<RedisStore>, ConnectError> {
    let target = Target::new(settings.clone(), Topology::Member(host.clone()));
    RedisStore::open(Role::OfMajority, target, lease_thread, wakes, client).await
}

impl RedisStore {
    /// A random name for a client and its pub/sub channel.
    pub fn new_client() -> Result<String, BackendError> {
        Ok(hex(&random_bytes::<8>()?))
    }

    pub(super) async fn open(
        role: Role,
        target: Target,
        lease_thread: &LeaseThread,
        wakes: Wakes,
        client: &str,
    ) -> Result<Arc<Self>, ConnectError> {
        let (prefix, fencing) = (target.settings().prefix.clone(), target.settings().fencing);
        let link = Link::open(target, lease_thread, wakes, client).await?;
        Ok(Arc::new(Self { link, role, prefix, client: client.to_owned(), fencing }))
    }

    /// Whether there is a connection at the moment.
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// The server, for display.
    pub(super) fn server(&self) -> &str {
        self.link.server()
    }

    fn is_in_cluster(&self) -> bool {
        self.role == Role::ClusterNode
    }

    fn is_fair(&self) -> bool {
        matches!(self.role, Role::Alone | Role::ClusterNode)
    }

    pub(super) fn keys(&self, name: &LockName) -> Keys {
        Keys::of(&self.prefix, name)
    }

    pub(super) fn check_name(&self, name: &LockName) -> Result<(), BackendError> {
        let keys = self.keys(name);
        if keys.looks_like_one_beside() {
            let what = format!(
                "`{name}` can't be a lock: keys with `{}` in them are what stands beside locks; choose another name",
                layout::BESIDE
            );
            return Err(BackendError::new(BackendErrorKind::Refused, what));
        }
        if !self.is_in_cluster() || keys.share_a_slot() {
            return Ok(());
        }
        let what = format!(
            "`{name}` can't be a lock in a cluster: with a `}}` and without a hash tag, its keys would fall into \
             several slots; leave the `}}` out, or write a tag, as in `{{orders}}/42`"
        );
        Err(BackendError::new(BackendErrorKind::Refused, what))
    }

    /// Whether a plain `SET` may be sent first (see the module documentation).
    fn may_set(&self, attempt: &Attempt) -> bool {
        attempt.first
            && !self.fencing
            && matches!(attempt.entry.mode, Mode::Exclusive)
            && attempt.entry.closed_after_expiry().is_zero()
    }

    fn set_call(&self, attempt: &Attempt) -> Cmd {
        let (keys, lives) = (self.keys(&attempt.entry.name), lives_ms(&attempt.entry));
        let value = layout::plain_value(attempt, &self.client, lives);
        let mut set = Cmd::with_capacity(6, keys.lock().len() + value.len() + 32);
        set.arg("SET").arg(keys.lock()).arg(value);
        set.arg("NX").arg("PX").arg(lives);
        set
    }

    fn attempt_call(&self, attempt: &Attempt) -> Cmd {
        let entry = &attempt.entry;
        let script = match entry.mode {
            Mode::Permit { .. } => &SCRIPTS.acquire_permit,
            _ => &SCRIPTS.acquire,
        };
        let options = [(attempt.wait, 'w'), (self.is_fair(), 'f'), (self.fencing, 't')];
        let letters: String = options.iter().filter(|(set, _)| *set).map(|(_, letter)| *letter).collect();
        let mut call = script.call(&self.keys(&entry.name), key_set(entry), &entry.id);
        call.arg(layout::held(&entry.id)).arg(layout::tail(attempt, &self.client));
        call.arg(lives_ms(entry)).arg(format!("{letters}{}", ms(entry.ttl)));
        if let Mode::Permit { of } = entry.mode {
            call.arg(of.unwrap_or(0)).arg(&*layout::one_line(&attempt.label));
        }
        call
    }

    /// Renews entries one by one, and exclusive holds by their lock key alone: a slot that migrates must
    /// neither end them nor delay entries in other slots. A waiter counts as gone, and so attempts again.
    async fn renew_apart(&self, entries: &[Arc<Entry>], limit: Duration) -> Result<Vec<Value>, Failure> {
        let mut answers = Vec::with_capacity(entries.len());
        for entry in entries {
            let (script, call) = match entry.mode {
                Mode::Permit { .. } => (&SCRIPTS.renew, self.renew_call(entry)),
                _ => {
                    let alone = &SCRIPTS.renew_alone;
                    (alone, self.renew_call_of(alone, entry, KeySet::LockOnly))
                }
            };
            answers.extend(self.link.run_all(Over::Main, script, &[call], limit).await?);
        }
        Ok(answers)
    }

    fn renew_call(&self, entry: &Entry) -> Cmd {
        self.renew_call_of(&SCRIPTS.renew, entry, key_set(entry))
    }

    fn renew_call_of(&self, script: &Script, entry: &Entry, keys: KeySet) -> Cmd {
        let mut call = script.call(&self.keys(&entry.name), keys, &entry.id);
        call.arg(&entry.id.0).arg(lives_ms(entry)).arg(ms(entry.ttl));
        call
    }

    fn finish_call(&self, entry: &Entry, doubt: bool) -> Cmd {
        // A server can stand still for longer than any ttl, and then execute attempts sent before. An attempt
        // that is executed within twice the ttl after this end is invalidated by the record, which is kept
        // until the key that the attempt sets has expired. An attempt that is executed even later sets a key
        // that is never renewed and expires.
        let remembered = if doubt { ms(entry.ttl * 2) + lives_ms(entry) } else { 0 };
        let mut call = SCRIPTS.finish.call(&self.keys(&entry.name), key_set(entry), &entry.id);
        call.arg(layout::held(&entry.id)).arg(if self.is_fair() { "f" } else { "" });
        call.arg(ms(entry.keep_closed)).arg(ms(entry.closed_after_expiry())).arg(remembered);
        call
    }

    /// Decodes the reply of `acquire.lua` or `acquire_permit.lua`. `None`: it is none of theirs.
    fn tried(&self, entry: &Entry, answer: &Value) -> Option<Result<Tried, CallError>> {
        if let Value::Int(token) = answer {
            let token = self.token(u64::try_from(*token).ok()?)?;
            return Some(Ok(Tried::Granted(Granted { token, ..Granted::default() })));
        }
        let mut items = Items::of(answer)?;
        Some(Ok(match items.word()? {
            "granted" => {
                let token = self.token(items.number()?)?;
                let permit = PermitGrant { slot: items.small()?, limit: items.small()? };
                Tried::Granted(Granted { token, permits: vec![permit], spare_tokens: 0 })
            }
            "busy" => {
                let value = items.bytes()?;
                let holder = if value.is_empty() { None } else { layout::Value::decode(value).owner() };
                Tried::Busy(Busy { holder, queued_ahead: items.number()? })
            }
            "waits" => {
                let (ahead, again) = (items.number()?, u64::try_from(items.integer()?));
                Tried::Waits { ahead, again: again.map_or_else(|_| foreign_poll(), Duration::from_millis) }
            }
            // The entry's end arrived before the attempt: the caller has stopped waiting for it.
            "over" => Tried::Busy(Busy::default()),
            // An operator broke the hold before its grant was received. The hold is not renewed and expires;
            // the caller tries again.
            "revoked" => return Some(Err(CallError::IN_DOUBT)),
            "type" => Tried::Refused(self.wrong_type(&entry.name, items.word()?)),
            "limit" => {
                let asked = match entry.mode {
                    Mode::Permit { of } => of.unwrap_or(0),
                    _ => 0,
                };
                let (name, have) = (entry.name.clone(), items.small()?);
                Tried::Refused(Rejection::LimitMismatch { name, have, asked }.into())
            }
            "no limit" => Tried::Refused(Rejection::NoLimit { name: entry.name.clone() }.into()),
            _ => return None,
        }))
    }

    /// The token of a grant; `None` if a grant of this client can't have it.
    fn token(&self, number: u64) -> Option<Option<Token>> {
        let token = Token::new(number);
        (token.is_some() == self.fencing).then_some(token)
    }

    /// The error for a reply that the command never gives: the command may have been executed.
    fn in_doubt(&self, command: &str, reply: &Value) -> CallError {
        let error = refusal::unexpected(&self.link.server(), command, reply);
        CallError { sent: true, ..CallError::refused(error) }
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

impl Store for RedisStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move {
            if let Err(refused) = self.check_name(&attempt.entry.name) {
                return Ok(Tried::Refused(refused));
            }
            let deadline = Instant::now() + attempt.entry.limit();
            let run_script = async || {
                let script = match attempt.entry.mode {
                    Mode::Permit { .. } => &SCRIPTS.acquire_permit,
                    _ => &SCRIPTS.acquire,
                };
                self.link.run(script, &self.attempt_call(&attempt), deadline).await
            };
            let answer = if self.may_set(&attempt) {
                match self.link.command(&self.set_call(&attempt), deadline).await {
                    Ok(Value::Okay) => Ok(Value::Int(0)),
                    Ok(Value::Nil) => run_script().await,
                    // `SET` never replies this; it must not count as a grant.
                    Ok(other) => return Err(self.in_doubt("SET", &other)),
                    Err(failure) => Err(failure),
                }
            } else {
                run_script().await
            };
            match answer {
                Ok(answer) => self.tried(&attempt.entry, &answer).unwrap_or_else(|| {
                    Ok(Tried::Refused(refusal::unexpected(&self.link.server(), "EVALSHA", &answer)))
                }),
                Err(Failure::Silent(error)) => Err(error),
                Err(Failure::TryAgain(refusal)) => Err(CallError::refused(refusal.into_error())),
                // The key has moved to another node: nothing was done.
                Err(Failure::Refused(refusal)) if self.is_in_cluster() && refusal.moved => {
                    Err(CallError::NOT_SENT)
                }
                Err(Failure::Refused(refusal)) => Ok(Tried::Refused(refusal.into_error())),
            }
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
            let calls: Vec<Cmd> = entries.iter().map(|entry| self.renew_call(entry)).collect();
            let answers = match self.link.run_all(Over::Main, &SCRIPTS.renew, &calls, limit).await {
                Err(Failure::TryAgain(_)) if self.is_in_cluster() => self.renew_apart(&entries, limit).await,
                answers => answers,
            };
            let answers = answers.map_err(not_known)?;
            let renewed = |answer: &Value| match answer {
                Value::Int(0) => Ok(Renewed::Gone),
                Value::Int(1) => Ok(Renewed::Kept),
                Value::Int(2) => Ok(Renewed::Revoked),
                other => Err(self.in_doubt("EVALSHA", other)),
            };
            answers.iter().map(renewed).collect()
        })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move {
            let deadline = Instant::now() + entry.limit();
            let call = self.finish_call(&entry, doubt);
            let mut why = None;
            let answer = loop {
                match self.link.run(&SCRIPTS.finish, &call, deadline).await {
                    Err(Failure::TryAgain(refusal)) if Instant::now() + PASSING_PAUSE < deadline => {
                        why = Some(Arc::new(refusal.into_error()));
                        tokio::time::sleep(PASSING_PAUSE).await;
                    }
                    answer => break answer,
                }
            };
            // The last attempt may have had no time for an answer.
            let failed = |error: CallError| CallError { refusal: error.refusal.or(why), ..error };
            match answer.map_err(not_known).map_err(failed)? {
                Value::Int(0) => Ok(End::Gone),
                Value::Int(1) => Ok(End::Released),
                Value::Int(2) => Ok(End::Broken),
                Value::Int(3) => Ok(End::Left),
                other => Err(self.in_doubt("EVALSHA", &other)),
            }
        })
    }

    fn trouble(&self) -> Option<String> {
        self.link.last_error()
    }
}

/// Converts the failure of a renewal or an end. If Redis refused it, it was not executed; the caller repeats
/// it.
fn not_known(failure: Failure) -> CallError {
    match failure {
        Failure::Silent(error) => error,
        Failure::TryAgain(refusal) => CallError::refused(refusal.into_error()),
        Failure::Refused(refusal) if refusal.moved => CallError::refused(refusal.into_error()),
        Failure::Refused(refusal) => {
            let error = refusal.into_error();
            tracing::warn!(%error, "a renewal or an end is tried again");
            CallError::refused(error)
        }
    }
}

/// Which keys of its name the scripts for an entry get.
fn key_set(entry: &Entry) -> KeySet {
    match entry.mode {
        Mode::Permit { .. } => KeySet::All,
        _ => KeySet::WithoutPermits,
    }
}

/// How long a key lives without a renewal: the ttl, and the time for which the lock then stays closed.
fn lives_ms(entry: &Entry) -> u64 {
    ms(entry.ttl + entry.closed_after_expiry())
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The pause before the next check of a lock whose holder sends no wake-ups. Random, to spread the waiters'
/// checks.
fn foreign_poll() -> Duration {
    let mut random = [0];
    // Without randomness all waiters use the same pause, which does no harm.
    let _ = getrandom::fill(&mut random);
    let spread = FOREIGN_POLL_MS.1 - FOREIGN_POLL_MS.0;
    Duration::from_millis(FOREIGN_POLL_MS.0 + spread * u64::from(random[0]) / 255)
}

#[cfg(test)]
mod tests {
    use lockkeeper_rig::Redis;

    use super::*;
    use lockkeeper_backend::leased::EntryId;
    use lockkeeper_backend::{BootInstant, Url};

    const TTL: Duration = Duration::from_secs(30);

    async fn store(redis: &Redis, query: &str) -> Arc<RedisStore> {
        let url = Url::parse(&format!("{}{query}", redis.url()), &["redis"]).unwrap();
        let (settings, topology) = Settings::parse(&url).unwrap();
        let (target, thread) = (Target::new(settings, topology), LeaseThread::start("test").unwrap());
        RedisStore::open(Role::Alone, target, &thread, Wakes::default(), "c0ffee").await.unwrap()
    }

    fn attempt(id: &str, mode: Mode, keep_closed: Duration, lock_delay: Duration) -> Attempt {
        let (id, name) = (EntryId(id.to_owned()), "jobs".parse().unwrap());
        let entry = Arc::new(Entry { id, name, mode, ttl: TTL, keep_closed, lock_delay });
        Attempt {
            entry,
            first: true,
            wait: false,
            ttl_from: BootInstant::now(),
            label: "me".into(),
            value: Box::default(),
            meta: Box::default(),
        }
    }

    #[tokio::test]
    #[ignore = "needs redis-server: `cargo xtask test -p lockkeeper-redis`"]
    async fn an_attempt_that_arrives_after_its_end_holds_nothing() {
        const ZERO: Duration = Duration::ZERO;
        let redis = Redis::start();
        let permit = Mode::Permit { of: Some(1) };
        for (case, (query, mode, keep_closed, lock_delay)) in [
            ("", Mode::Exclusive, ZERO, ZERO),
            ("", Mode::Exclusive, TTL, ZERO),
            ("", Mode::Exclusive, ZERO, TTL),
            ("", permit, ZERO, ZERO),
            ("?fencing=counter", Mode::Exclusive, ZERO, ZERO),
            ("?fencing=counter", permit, ZERO, ZERO),
        ]
        .into_iter()
        .enumerate()
        {
            let store = store(&redis, query).await;
            let late = attempt("1a7e-1", mode, keep_closed, lock_delay);
            assert!(matches!(store.finish(late.entry.clone(), true).await, Ok(End::Gone)), "{case}");
            let tried = store.attempt(late.clone()).await.unwrap();
            // Only the plain `SET` of the first case does not read the record of the end.
            assert_eq!(matches!(tried, Tried::Granted(_)), case == 0, "{case}: {tried:?}");
            // A renewal that was sent before the end, and arrives after the attempt, does not turn the key
            // into a hold.
            assert_eq!(store.renew(vec![late.entry.clone()]).await.unwrap(), [Renewed::Gone], "{case}");
            assert!(redis.cli(&["PTTL", "jobs"]).parse::<i64>().unwrap() <= 30_000, "{case}");
            let next = attempt("0e87-1", mode, ZERO, lock_delay);
            let tried = store.attempt(next.clone()).await.unwrap();
            assert!(matches!(tried, Tried::Granted(_)), "{case}: {tried:?}");
            assert!(matches!(store.finish(next.entry, false).await, Ok(End::Released)), "{case}");
            redis.cli(&["FLUSHALL"]);
        }
    }
}
