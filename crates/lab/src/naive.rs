//! A lock in Redis as it is found in many programs: `SET name owner NX PX ttl`, and `DEL name`.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::Result;
use crate::actor::Actor;

/// The name of the lock's key.
pub(crate) const KEY: &str = "lock";

/// Takes the lock if it is free.
pub(crate) async fn try_lock(
    actor: &Actor,
    redis: &mut MultiplexedConnection,
    ttl: Option<Duration>,
) -> Result<bool> {
    let mut command = redis::cmd("SET");
    command.arg(KEY).arg(actor.name()).arg("NX");
    if let Some(ttl) = ttl {
        command.arg("PX").arg(ttl.as_millis() as u64);
    }
    let answer: Option<String> = command.query_async(redis).await?;
    Ok(answer.is_some())
}

/// Takes the lock, and tries again until it is free.
pub(crate) async fn lock(
    actor: &mut Actor,
    redis: &mut MultiplexedConnection,
    ttl: Option<Duration>,
) -> Result {
    let mut waits = false;
    while !try_lock(actor, redis, ttl).await? {
        if !waits {
            waits = true;
            actor.at("waits", "waits: another has the lock").await?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ttl = ttl.map_or_else(String::new, |ttl| format!(" PX {}", ttl.as_millis()));
    actor.at("locked", format!("SET {KEY} {} NX{ttl}: has the lock", actor.name())).await
}

/// Deletes the lock's key.
pub(crate) async fn unlock(actor: &mut Actor, redis: &mut MultiplexedConnection) -> Result {
    redis::cmd("DEL").arg(KEY).query_async::<()>(redis).await?;
    actor.say(format!("DEL {KEY}"))
}
