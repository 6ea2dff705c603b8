//! Redis: `SET NX PX` with a random value; release by a script that compares the value and deletes the key.
//!
//! Waiting works as in Redisson: the release script also publishes a message. Each connection subscribes to
//! the channel of a lock that it found held, and a message wakes *one* of the connection's waiters, which
//! retries. If no waiters are expected, the release does not publish, like that of many clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ExistenceCheck, PushInfo, PushKind, Script, SetExpiry, SetOptions, Value,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{CONNECTIONS, KEEPALIVE_TTL, Peer, Setup, TTL, failed, renewals, watch_cpu};
use crate::TaskResult;
use crate::bench::server::ServerProcesses;

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
const RELEASE_AND_TELL: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
     redis.call('del', KEYS[1]) redis.call('publish', KEYS[1] .. ':free', '') return 1 end return 0";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0";

/// How often waiters poll, since messages can be lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// More than the calls in flight on one connection in any workload, so that no call waits for space in the
/// queue.
const QUEUED_MAX: usize = 4096;

pub(crate) struct RedisSystem {
    connections: Vec<BenchConnection>,
    release: Script,
    ttl: Duration,
}

/// A connection and its waiters.
struct BenchConnection {
    redis: MultiplexedConnection,
    /// Serializes subscriptions, so that no waiter uses a channel before the subscription is confirmed.
    subscribing: tokio::sync::Mutex<()>,
    channels: Arc<Channels>,
}

/// The waiters of each channel.
#[derive(Default)]
struct Channels(Mutex<HashMap<Vec<u8>, Arc<Notify>>>);

pub(crate) struct RedisHold {
    client: usize,
    name: String,
    value: String,
}

impl Peer for RedisSystem {
    type Held = RedisHold;

    async fn connect(setup: Setup<'_>) -> TaskResult<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS.min(setup.clients) {
            connections.push(BenchConnection::open(setup.at).await?);
        }
        let release = Script::new(if setup.contended { RELEASE_AND_TELL } else { RELEASE });
        Ok(Self { connections, release, ttl: setup.ttl })
    }

    async fn acquire(&self, client: usize, name: &str) -> TaskResult<RedisHold> {
        let connection = self.connection(client);
        let held = RedisHold { client, name: name.to_owned(), value: random_value()? };
        if connection.try_acquire(&held, self.ttl).await? {
            return Ok(held);
        }
        let freed = connection.subscribe(name).await?;
        // `Notify` stores a message that arrives while nothing waits, so no message is lost between the
        // attempt and the wait.
        while !connection.try_acquire(&held, self.ttl).await? {
            let _ = timeout(LOOK_EVERY, freed.notified()).await;
        }
        Ok(held)
    }

    async fn release(&self, held: RedisHold) -> TaskResult {
        let mut redis = self.connection(held.client).redis.clone();
        let freed: u32 = self
            .release
            .key(&held.name)
            .arg(&held.value)
            .invoke_async(&mut redis)
            .await
            .map_err(failed("Redis", "release"))?;
        if freed == 1 { Ok(()) } else { Err(format!("Redis has lost the lock {}", held.name)) }
    }

    async fn close(self) -> TaskResult {
        let mut redis = self.connection(0).redis.clone();
        redis::cmd("FLUSHALL").query_async(&mut redis).await.map_err(failed("Redis", "forget all locks"))
    }
}

impl RedisSystem {
    fn connection(&self, client: usize) -> &BenchConnection {
        &self.connections[client % self.connections.len()]
    }

    /// Holds `sessions` locks, each extended by its own script call, because Redis has no sessions.
    pub(crate) async fn keep_alive(
        at: &str,
        server: &ServerProcesses,
        sessions: usize,
        duration: Duration,
    ) -> TaskResult<f64> {
        let peer =
            Arc::new(Self::connect(Setup { at, clients: CONNECTIONS, contended: false, ttl: TTL }).await?);
        let mut renewing = JoinSet::new();
        for number in 0..sessions {
            let held = peer.acquire(number, &format!("lockkeeper-bench/session/{number}")).await?;
            let mut redis = peer.connection(number).redis.clone();
            let mut due = renewals(number, sessions);
            renewing.spawn(async move {
                let extend = Script::new(EXTEND);
                loop {
                    due.tick().await;
                    let mut call = extend.key(&held.name);
                    call.arg(&held.value).arg(KEEPALIVE_TTL.as_millis() as u64);
                    let extended: Result<u32, _> = call.invoke_async(&mut redis).await;
                    match extended {
                        Ok(1) => {}
                        Ok(_) => return format!("Redis let the lock {} expire", held.name),
                        Err(error) => return failed("Redis", "extend a lock")(error),
                    }
                }
            });
        }
        let kept = tokio::select! {
            kept = watch_cpu(server, duration) => kept?,
            Some(ended) = renewing.join_next() => return Err(ended.unwrap_or_else(|error| error.to_string())),
        };
        renewing.shutdown().await;
        Arc::into_inner(peer).ok_or("a task of keepalive did not end")?.close().await?;
        Ok(kept)
    }
}

impl BenchConnection {
    async fn open(at: &str) -> TaskResult<Self> {
        let channels = Arc::new(Channels::default());
        let receiver = channels.clone();
        // No time-out for each command, which would cost a timer each; `plan` has a time-out for every
        // measurement.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let config = config.set_pipeline_buffer_size(QUEUED_MAX).set_push_sender(move |push: PushInfo| {
            receiver.tell(&push);
            Ok::<(), redis::aio::SendError>(())
        });
        // Only with RESP3 do channel messages arrive on the connection that carries replies.
        let client =
            Client::open(format!("redis://{at}/?protocol=resp3")).map_err(failed("Redis", "read its URL"))?;
        let redis = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(failed("Redis", "connect"))?;
        Ok(Self { redis, subscribing: tokio::sync::Mutex::default(), channels })
    }

    async fn try_acquire(&self, held: &RedisHold, ttl: Duration) -> TaskResult<bool> {
        let options = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .with_expiration(SetExpiry::PX(ttl.as_millis() as u64));
        let mut redis = self.redis.clone();
        let set: Option<String> = redis::cmd("SET")
            .arg(&held.name)
            .arg(&held.value)
            .arg(options)
            .query_async(&mut redis)
            .await
            .map_err(failed("Redis", "acquire"))?;
        Ok(set.is_some())
    }

    /// Subscribes to the messages about lock `name`; returns the object that those messages notify.
    async fn subscribe(&self, name: &str) -> TaskResult<Arc<Notify>> {
        let channel = format!("{name}:free");
        let _turn = self.subscribing.lock().await;
        if let Some(freed) = self.channels.lock().get(channel.as_bytes()) {
            return Ok(freed.clone());
        }
        self.redis.clone().subscribe(&channel).await.map_err(failed("Redis", "subscribe"))?;
        Ok(self.channels.lock().entry(channel.into_bytes()).or_default().clone())
    }
}

impl Channels {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, push: &PushInfo) {
        if let (PushKind::Message, Some(Value::BulkString(channel))) = (&push.kind, push.data.first())
            && let Some(freed) = self.lock().get(channel)
        {
            freed.notify_one();
        }
    }
}

fn random_value() -> TaskResult<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| format!("the system gives no random bytes: {error}"))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
