//! The Redis fence on real servers: the common suite, its own tests, and server faults.

mod cluster;
mod servers;
mod writes;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::suite::{Lasting, Subject};
use lockkeeper_fence::redis::{RedisCommand, RedisFence, RedisFenceError};
use lockkeeper_fence::{Marks, Refused, Section};
use lockkeeper_rig::Redis;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

crate::suite::contract!(one_server => User, lasting);

/// A server that loses no data in a crash.
fn lasting_server() -> Redis {
    Redis::with(&["--appendonly", "yes", "--appendfsync", "always"])
}

/// A connection with a long time limit, for a busy machine.
async fn connected(url: &str) -> MultiplexedConnection {
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
    let client = Client::open(url).expect("a URL");
    client.get_multiplexed_async_connection_with_config(&patient).await.expect("a connection")
}

async fn fence(redis: &Redis) -> RedisFence<MultiplexedConnection> {
    RedisFence::connect(connected(&redis.url()).await).await.expect("a fence")
}

fn exclusive(value: u64) -> Section {
    Section::exclusive(crate::suite::token(value))
}

fn set(key: &str, value: u64) -> RedisCommand {
    RedisCommand::new("SET").key(key).arg(value)
}

fn refusal<T>(result: Result<T, RedisFenceError>) -> Result<T, Refused> {
    result.map_err(|error| match error {
        RedisFenceError::Refused(refused) => refused,
        other => panic!("{other}: {other:?}"),
    })
}

/// A user with its own connection.
struct User {
    fence: RedisFence<MultiplexedConnection>,
    connection: MultiplexedConnection,
    url: String,
    name: String,
}

impl Subject for User {
    type World = (Redis, AtomicU64);
    const CASES: u32 = 64;

    async fn world() -> Self::World {
        (lasting_server(), AtomicU64::new(0))
    }

    async fn fresh((redis, made): &Self::World) -> Self {
        Self::at(&format!("{} number:{}", redis.url(), made.fetch_add(1, Ordering::SeqCst))).await
    }

    async fn another(&self) -> Self {
        Self::at(&self.address()).await
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        refusal(self.fence.enter(&self.name, section).await)
    }

    async fn read(&self) -> u64 {
        let number: Option<u64> =
            redis::cmd("GET").arg(&self.name).query_async(&mut self.connection.clone()).await.expect("read");
        number.unwrap_or_default()
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        refusal(self.fence.write(&self.name, section, &[set(&self.name, number)]).await.map(drop))
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        refusal(self.fence.check_once(&self.name, section, &[]).await.map(drop))
    }

    async fn marks(&self) -> Marks {
        refusal(self.fence.marks(&self.name).await).expect("no refusal")
    }
}

impl Lasting for User {
    const KILLS: u64 = 60;

    fn address(&self) -> String {
        format!("{} {}", self.url, self.name)
    }

    async fn at(address: &str) -> Self {
        let (url, name) = address.split_once(' ').expect("a URL and a name");
        let connection = connected(url).await;
        let fence = RedisFence::connect(connection.clone()).await.expect("a fence");
        Self { fence, connection, url: url.to_owned(), name: name.to_owned() }
    }
}
