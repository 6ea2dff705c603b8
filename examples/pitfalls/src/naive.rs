//! A lock in Redis as it is found in many programs: `SET name owner NX PX ttl`, and `DEL name`.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::Result;
use crate::role::Role;

/// The name of the lock's key.
pub(crate) const KEY: &str = "lock";

/// Takes the lock if it is free.
pub(crate) async fn try_lock(
    role: &Role,
    redis: &mut MultiplexedConnection,
    ttl: Option<Duration>,
) -> Result<bool> {
    let mut command = redis::cmd("SET");
    command.arg(KEY).arg(role.actor()).arg("NX");
    if let Some(ttl) = ttl {
        command.arg("PX").arg(ttl.as_millis() as u64);
    }
    let answer: Option<String> = command.query_async(redis).await?;
    Ok(answer.is_some())
}

/// Takes the lock, and tries again until it is free.
pub(crate) async fn lock(
    role: &mut Role,
    redis: &mut MultiplexedConnection,
    ttl: Option<Duration>,
) -> Result {
    let mut waits = false;
    while !try_lock(role, redis, ttl).await? {
        if !waits {
            waits = true;
            role.at("waits", "waits: another has the lock").await?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ttl = ttl.map_or_else(String::new, |ttl| format!(" PX {}", ttl.as_millis()));
    role.at("locked", format!("SET {KEY} {} NX{ttl}: has the lock", role.actor())).await
}

/// Deletes the lock's key.
pub(crate) async fn unlock(role: &mut Role, redis: &mut MultiplexedConnection) -> Result {
    redis::cmd("DEL").arg(KEY).query_async::<()>(redis).await?;
    role.say(format!("DEL {KEY}"))
}
