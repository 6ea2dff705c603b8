//! A slow call under a lock.

use lockkeeper_fence::redis::RedisCommand;
use lockkeeper_fence::{RedisFence, Section};
use lockkeeper_rig::redis::{CLI, SERVER};
use redis::aio::MultiplexedConnection;

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "slow-call",
    title: "A slow call under the lock",
    mistake: "The lock is to prevent that a customer is charged twice, so the provider is called under it. The provider \
              is slow today: the lock expires while the call is under way, and the next worker calls as well. All \
              others wait meanwhile.",
    remedy: "Under the lock, store the intent with an idempotency key; call without the lock; store the result under \
             the lock again. The provider answers a repeated key with the first receipt, so a second call is harmless.",
    needs: &[SERVER, CLI],
    source: include_str!("slow_call.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    naive::lock(actor, &mut redis, Some(TTL)).await?;
    if get(&mut redis, "receipt").await?.is_some() {
        actor.say("the order is paid already")?;
        return naive::unlock(actor, &mut redis).await;
    }
    let receipt = charge(actor, &mut redis, None).await?;
    redis::cmd("SET").arg("receipt").arg(&receipt).query_async::<()>(&mut redis).await?;
    actor.say(format!("stores the receipt: {receipt}"))?;
    naive::unlock(actor, &mut redis).await
}

async fn right(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let fence = RedisFence::connect(redis.clone()).await?;
    let lock = actor.locks("locks").await?.fenced()?.mutex("order").ttl(TTL);

    // Briefly under the lock: the first key is the order's key for ever.
    let guard = actor.acquire(&lock).await?;
    let section = Section::exclusive(guard.token());
    fence.enter("order", section).await?;
    let key = match get(&mut redis, "intent").await? {
        Some(key) => key,
        None => {
            let key = "order-42/1".to_owned();
            let intent = RedisCommand::new("SET").key("intent").arg(&key);
            fence.write("order", section, &[intent]).await?;
            key
        }
    };
    actor.say(format!("under the lock: the idempotency key is {key}"))?;
    actor.release(guard).await?;

    // Without the lock.
    let receipt = charge(actor, &mut redis, Some(&key)).await?;

    let guard = actor.acquire(&lock).await?;
    let paid = RedisCommand::new("SET").key("receipt").arg(&receipt);
    fence.check_once("order", Section::exclusive(guard.token()), &[paid]).await?;
    actor.say(format!("under the lock: stores the receipt: {receipt}"))?;
    actor.release(guard).await
}

/// The provider: takes four seconds, and charges once for each key. Without a key it charges each time.
async fn charge(actor: &mut Actor, redis: &mut MultiplexedConnection, key: Option<&str>) -> Result<String> {
    actor.at("calling", format!("calls the provider ({})", key.unwrap_or("no idempotency key"))).await?;
    tokio::time::sleep(2 * TTL).await;
    let receipt = format!("receipt of {}", actor.name());
    if let Some(key) = key {
        let known: Option<String> =
            redis::cmd("SET").arg(key).arg(&receipt).arg("NX").arg("GET").query_async(redis).await?;
        if let Some(known) = known {
            return Ok(known);
        }
    }
    redis::cmd("RPUSH").arg("charges").arg(&receipt).query_async::<()>(redis).await?;
    Ok(receipt)
}

async fn get(redis: &mut MultiplexedConnection, key: &str) -> Result<Option<String>> {
    Ok(redis::cmd("GET").arg(key).query_async(redis).await?)
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::served(scene);
    scene.start("A", &["calling"])?;
    scene.go("A", &[])?;
    scene.start("B", &["waits", "calling"])?;
    scene.go("B", &[])?;
    scene.wait("A")?;
    scene.wait("B")?;
    Ok(match redis.cli(&["LLEN", "charges"]).as_str() {
        "1" => Verdict::Kept("the customer is charged once".to_owned()),
        times => Verdict::Lost(format!("the customer is charged {times} times for one order")),
    })
}
