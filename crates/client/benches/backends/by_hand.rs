//! The baseline without the library: a loop over the driver crate's own calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_rig::{MariaDb, Postgres, Redis};
use mysql_async::prelude::Queryable;
use redis::Script;
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls, Statement};

use crate::Outcome;
use crate::measure::{Pair, p50};

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
/// Acquires with a token: the counter is incremented only if the `SET` succeeds, in the same atomic script.
const ACQUIRE_FENCED: &str = "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                              return redis.call('incr', KEYS[2]) end return 0";
const TTL_MS: u64 = 30_000;
/// The number of connections to Redis that the clients share.
const SHARED: usize = 4;
/// Connections for advisory locks: one for each of the 64 clients of the larger comparison (`measure::BARS`).
const CONNECTIONS: usize = 64;
/// The number of connections for lease rows, here and in the library.
pub(crate) const ROW_CONNECTIONS: usize = 8;

async fn connect(url: &str) -> Outcome<MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

async fn set(mut redis: MultiplexedConnection, key: String, value: String) -> Outcome {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(value).arg("NX").arg("PX").arg(TTL_MS);
    let set: Option<String> = command.query_async(&mut redis).await?;
    set.map(drop).ok_or_else(|| "it is held".into())
}

async fn delete(script: &Script, mut redis: MultiplexedConnection, key: String, value: String) -> Outcome {
    let deleted: u32 = script.key(key).arg(value).invoke_async(&mut redis).await?;
    if deleted == 1 { Ok(()) } else { Err("it was lost".into()) }
}

async fn set_fenced(script: &Script, mut redis: MultiplexedConnection, key: &str, value: &str) -> Outcome {
    let counter = format!("{{{key}}}:token");
    let token: u64 = script.key(key).key(counter).arg(value).arg(TTL_MS).invoke_async(&mut redis).await?;
    if token > 0 { Ok(()) } else { Err("it is held".into()) }
}

/// Acquires by `SET NX PX`, or with `tokens` by a script that also increments a counter. Releases by a script
/// that deletes the key if it has the expected value.
pub(crate) async fn redis(url: &str, tokens: bool) -> Outcome<Pair> {
    let mut wires = Vec::new();
    for _ in 0..SHARED {
        wires.push(connect(url).await?);
    }
    let scripts = Arc::new((Script::new(ACQUIRE_FENCED), Script::new(RELEASE)));
    Ok(Arc::new(move |client| {
        let (redis, scripts) = (wires[client % SHARED].clone(), scripts.clone());
        Box::pin(async move {
            let (acquire, release) = &*scripts;
            let (key, value) = (format!("bench/hand/{client}"), format!("{:032x}", fastrand::u128(..)));
            if tokens {
                set_fenced(acquire, redis.clone(), &key, &value).await?;
            } else {
                set(redis.clone(), key.clone(), value.clone()).await?;
            }
            delete(release, redis, key, value).await
        })
    }))
}

async fn connect_all(servers: &[Redis]) -> Outcome<Vec<MultiplexedConnection>> {
    let mut nodes = Vec::new();
    for server in servers {
        nodes.push(connect(&server.url()).await?);
    }
    Ok(nodes)
}

/// Acquires by `SET NX PX` on all nodes concurrently, and releases by the same script as `redis` on all of
/// them. Each step waits for the answers of all nodes.
pub(crate) async fn redlock(servers: &[Redis]) -> Outcome<Pair> {
    let (nodes, release) = (connect_all(servers).await?, Arc::new(Script::new(RELEASE)));
    Ok(Arc::new(move |client| {
        let (nodes, release) = (nodes.clone(), release.clone());
        Box::pin(async move {
            let (key, value) = (format!("bench/hand/{client}"), format!("{:032x}", fastrand::u128(..)));
            let sets = nodes.iter().map(|node| set(node.clone(), key.clone(), value.clone()));
            for set in futures_util::future::join_all(sets).await {
                set?;
            }
            let deletes = nodes.iter().map(|node| delete(&release, node.clone(), key.clone(), value.clone()));
            for deleted in futures_util::future::join_all(deletes).await {
                deleted?;
            }
            Ok(())
        })
    }))
}

/// The median time of a `SET` on the slowest single node.
pub(crate) async fn slowest_node_p50(servers: &[Redis]) -> Outcome<Duration> {
    let mut slowest = Duration::ZERO;
    let release = Script::new(RELEASE);
    for node in connect_all(servers).await? {
        let mut took = Vec::new();
        for round in 0..2000_u32 {
            let (key, value) = ("bench/node".to_owned(), round.to_string());
            let began = Instant::now();
            set(node.clone(), key.clone(), value.clone()).await?;
            took.push(began.elapsed());
            delete(&release, node.clone(), key, value).await?;
        }
        slowest = slowest.max(p50(took));
    }
    Ok(slowest)
}

async fn connect_postgres(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Draws a token durably. `nextval` writes WAL only for every 32nd value, so most calls would return without
/// a flush; the emitted message makes each call wait for one.
const DRAW: &str =
    "SELECT nextval('lockkeeper.token'), pg_logical_emit_message(true, 'bench'::text, ''::text)";

/// An advisory lock on each client's own connection, with prepared statements, and optionally a token.
pub(crate) async fn advisory(url: &str, tokens: bool) -> Outcome<Pair> {
    let mut clients: Vec<(Arc<Client>, Statement, Statement, Option<Statement>)> = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = connect_postgres(url).await?;
        let lock = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        let draw = if tokens { Some(client.prepare(DRAW).await?) } else { None };
        clients.push((Arc::new(client), lock, unlock, draw));
    }
    Ok(Arc::new(move |number| {
        let (client, lock, unlock, draw) = clients[number % clients.len()].clone();
        let key = i64::try_from(number).unwrap_or_default();
        Box::pin(async move {
            client.query(&lock, &[&key]).await?;
            if let Some(draw) = &draw {
                client.query_one(draw, &[]).await?;
            }
            client.query(&unlock, &[&key]).await?;
            Ok(())
        })
    }))
}

/// A lease row: taken if it is free or expired by the database's clock, and then given back.
pub(crate) async fn rows(server: &Postgres) -> Outcome<Pair> {
    let table = "CREATE TABLE IF NOT EXISTS by_hand (name text PRIMARY KEY, holder text, token bigint NOT NULL \
                 DEFAULT 0, until timestamptz NOT NULL)";
    connect_postgres(&server.url()).await?.batch_execute(table).await?;
    let take = "INSERT INTO by_hand AS lease (name, holder, token, until) VALUES ($1, $2, 1, now() + interval '30 s') \
                ON CONFLICT (name) DO UPDATE SET holder = $2, token = lease.token + 1, until = excluded.until \
                WHERE lease.holder IS NULL OR lease.until < now() RETURNING token";
    let give = "UPDATE by_hand SET holder = NULL WHERE name = $1 AND holder = $2";
    let mut clients: Vec<(Arc<Client>, Statement, Statement)> = Vec::new();
    for _ in 0..ROW_CONNECTIONS {
        let client = connect_postgres(&server.url()).await?;
        let (take, give) = (client.prepare(take).await?, client.prepare(give).await?);
        clients.push((Arc::new(client), take, give));
    }
    Ok(Arc::new(move |number| {
        let (client, take, give) = clients[number % clients.len()].clone();
        Box::pin(async move {
            let (name, holder) = (format!("bench/hand/{number}"), format!("{:032x}", fastrand::u128(..)));
            client.query_one(&take, &[&name, &holder]).await?;
            match client.execute(&give, &[&name, &holder]).await? {
                1 => Ok(()),
                _ => Err("it was lost".into()),
            }
        })
    }))
}

/// Rows that are updated by one statement each, whose token comes back as the last insert id.
pub(crate) async fn mysql_rows(server: &MariaDb) -> Outcome<Pair> {
    server.sql(
        "CREATE TABLE by_hand (name VARCHAR(64) PRIMARY KEY, holder VARCHAR(64), token BIGINT NOT NULL DEFAULT 0, \
         until DATETIME(6) NOT NULL DEFAULT '2000-01-01') ENGINE = InnoDB",
    );
    let make = "INSERT IGNORE INTO by_hand (name) VALUES (?)";
    let take = "UPDATE by_hand SET token = LAST_INSERT_ID(token + 1), holder = ?, \
                until = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND \
                WHERE name = ? AND (holder IS NULL OR until < UTC_TIMESTAMP(6))";
    let give = "UPDATE by_hand SET holder = NULL WHERE name = ? AND holder = ?";
    let mut clients = Vec::new();
    for _ in 0..ROW_CONNECTIONS {
        clients.push(Arc::new(Mutex::new(mysql_async::Conn::from_url(server.url()).await?)));
    }
    Ok(Arc::new(move |number| {
        let client = clients[number % clients.len()].clone();
        Box::pin(async move {
            let (name, holder) = (format!("bench/hand/{number}"), format!("{:032x}", fastrand::u128(..)));
            let mut taken = client.lock().await;
            taken.exec_drop(take, (&holder, &name)).await?;
            if taken.affected_rows() == 0 {
                taken.exec_drop(make, (&name,)).await?;
                taken.exec_drop(take, (&holder, &name)).await?;
            }
            drop(taken);
            let mut given = client.lock().await;
            given.exec_drop(give, (&name, &holder)).await?;
            if given.affected_rows() == 1 { Ok(()) } else { Err("it was lost".into()) }
        })
    }))
}
