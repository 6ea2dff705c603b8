//! The resource of most plays: an account in Redis with 100, from which each actor withdraws 30.

use std::time::Duration;

use lockkeeper::{Fenced, Guard, Locks};
use lockkeeper_fence::redis::RedisCommand;
use lockkeeper_fence::{RedisFence, RedisFenceError, Section};
use lockkeeper_rig::Redis;
use redis::aio::MultiplexedConnection;

use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Result, Verdict};

/// The account's key.
pub(crate) const KEY: &str = "account";
/// The ttl of all locks.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// The balance at the beginning.
const BALANCE: i64 = 100;
/// What each actor withdraws.
pub(crate) const AMOUNT: i64 = 30;

/// Starts a Redis server with the account. The server syncs every write, which tokens require.
pub(crate) fn server() -> Redis {
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    redis.cli(&["SET", KEY, &BALANCE.to_string()]);
    redis
}

/// The URL of the locks of a Redis server, with tokens. The locks' keys have a prefix: the lock `account`
/// must not be the key of the account.
pub(crate) fn locks_at(redis: &Redis) -> String {
    format!("{}?fencing=counter&prefix=locks:", redis.url())
}

/// Starts one Redis server for both the account and the locks.
pub(crate) fn served(scene: &mut Scene<'_>) -> Redis {
    let redis = server();
    scene.serve("account", redis.url());
    scene.serve("locks", locks_at(&redis));
    redis
}

/// Reads the balance and judges it after `withdrawals` withdrawals.
pub(crate) fn outcome(redis: &Redis, withdrawals: i64) -> Result<Verdict> {
    let balance: i64 = redis.cli(&["GET", KEY]).parse()?;
    Ok(judge(balance, withdrawals))
}

/// Judges a balance after `withdrawals` withdrawals.
pub(crate) fn judge(balance: i64, withdrawals: i64) -> Verdict {
    let due = BALANCE - AMOUNT * withdrawals;
    if balance == due {
        return Verdict::Kept(format!("the balance is {balance}, as it must be"));
    }
    let lost = (balance - due) / AMOUNT;
    Verdict::Lost(format!(
        "the balance is {balance} instead of {due}: {lost} of {withdrawals} withdrawals is lost"
    ))
}

/// Reads the balance.
pub(crate) async fn read(actor: &mut Actor, redis: &mut MultiplexedConnection) -> Result<i64> {
    let balance = redis::cmd("GET").arg(KEY).query_async(redis).await?;
    actor.at("read", format!("reads the balance: {balance}")).await?;
    Ok(balance)
}

/// Withdraws from the balance that was read, without any check.
pub(crate) async fn write(actor: &mut Actor, redis: &mut MultiplexedConnection, read: i64) -> Result {
    let balance = read - AMOUNT;
    redis::cmd("SET").arg(KEY).arg(balance).query_async::<()>(redis).await?;
    actor.at("written", format!("writes {balance}")).await
}

/// The right way of most plays: a lock with tokens, and a fence that is entered before the account is read.
pub(crate) async fn withdraw_fenced(actor: &mut Actor, locks: &Locks<Fenced>) -> Result {
    withdraw_slowly(actor, locks, Duration::ZERO).await
}

/// As [`withdraw_fenced`], with work between the read and the write.
pub(crate) async fn withdraw_slowly(actor: &mut Actor, locks: &Locks<Fenced>, work: Duration) -> Result {
    loop {
        let guard = actor.acquire(&locks.mutex("account").ttl(TTL)).await?;
        actor.at("locked", format!("has the lock, with token {}", guard.token())).await?;
        if section(actor, &guard, work).await? {
            return actor.release(guard).await;
        }
        actor.say("acquires the lock again")?;
    }
}

/// Runs one section under a hold. Returns false if the fence refused it or the lease was lost.
pub(crate) async fn section(actor: &mut Actor, guard: &Guard<Fenced>, work: Duration) -> Result<bool> {
    let mut redis = actor.redis("account").await?;
    let fence = RedisFence::connect(redis.clone()).await?;
    let section = Section::exclusive(guard.token());
    let entered = fence.enter(KEY, section).await; // before it reads
    if refused(actor, entered)?.is_none() {
        return Ok(false);
    }
    let balance = read(actor, &mut redis).await? - AMOUNT;
    if !work.is_zero() {
        actor.say(format!("works for {work:?}"))?;
        tokio::time::sleep(work).await;
    }
    if let Err(lost) = guard.check(Duration::ZERO) {
        actor.say(format!("gives up: {lost}"))?;
        return Ok(false);
    }
    actor.at("checked", "its lease is valid so far").await?;
    let write = RedisCommand::new("SET").key(KEY).arg(balance);
    let written = fence.write(KEY, section, &[write]).await;
    if refused(actor, written)?.is_none() {
        return Ok(false);
    }
    actor.at("written", format!("writes {balance}, with its token")).await?;
    Ok(true)
}

/// Reports a refusal of the fence and returns `None` for it.
pub(crate) fn refused<T>(
    actor: &Actor,
    passed: std::result::Result<T, RedisFenceError>,
) -> Result<Option<T>> {
    match passed {
        Ok(it) => Ok(Some(it)),
        Err(RedisFenceError::Refused(why)) => {
            let why = why.to_string();
            let why = why.split_once(';').map_or(why.as_str(), |(why, _advice)| why);
            actor.say(format!("the fence refuses: {why}"))?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
