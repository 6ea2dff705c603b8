//! All waiters wake up for one lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lockkeeper_rig::Redis;
use lockkeeper_rig::redis::{CLI, SERVER};
use tokio::sync::{Semaphore, watch};

use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, account, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "thundering-herd",
    title: "A thundering herd",
    mistake: "A release is published to all who wait, and all try again: one gets the lock, the others have woken up for \
              nothing. With a thousand waiters a thousand hand-overs cost half a million commands. Polling is the same, \
              at a rate of its own.",
    remedy: "A queue at the lock service: a release passes the lock to the first waiter, and wakes up nobody else.",
    needs: &[SERVER, CLI],
    source: include_str!("thundering_herd.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

const WAITERS: usize = 1000;
/// More commands for a hand-over are a herd's.
const LIMIT: u64 = 100;
/// As many hand-overs are measured.
const HAND_OVERS: usize = 100;
/// Longer than the play.
const LONG: Duration = Duration::from_secs(60);

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    naive::lock(actor, &mut redis, Some(LONG)).await?;
    let mut messages = redis::Client::open(actor.url("account")?)?.get_async_pubsub().await?;
    messages.subscribe("unlocked").await?;
    let (released, _) = watch::channel(());
    let queued = Arc::new(Semaphore::new(0));
    let handed_over = Arc::new(Semaphore::new(0));
    for waiter in 0..WAITERS {
        let (mut redis, mut released) = (redis.clone(), released.subscribe());
        let (queued, handed_over) = (queued.clone(), handed_over.clone());
        tokio::spawn(async move {
            let mut first = Some(&queued);
            loop {
                released.mark_unchanged();
                let mut lock = redis::cmd("SET");
                lock.arg(naive::KEY).arg(waiter).arg("NX").arg("PX").arg(LONG.as_millis() as u64);
                if lock.query_async::<Option<String>>(&mut redis).await?.is_some() {
                    break;
                }
                if let Some(queued) = first.take() {
                    queued.add_permits(1);
                }
                released.changed().await?;
            }
            handed_over.add_permits(1);
            release(&mut redis).await
        });
    }
    let _all = queued.acquire_many(WAITERS as u32).await?;
    actor.at("queued", format!("{WAITERS} clients wait for the lock, by a subscription")).await?;
    tokio::spawn(async move {
        let mut messages = messages.into_on_message();
        while messages.next().await.is_some() {
            released.send_replace(());
        }
    });
    release(&mut redis).await?;
    let _measured = handed_over.acquire_many(HAND_OVERS as u32).await?;
    actor.at("measured", format!("the lock was handed over {HAND_OVERS} times")).await
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?;
    let lock = locks.mutex("lock").ttl(LONG);
    let guard = actor.acquire(&lock).await?;
    actor.say("has the lock")?;
    let handed_over = Arc::new(Semaphore::new(0));
    for _ in 0..WAITERS {
        let (lock, handed_over) = (lock.clone(), handed_over.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await?;
            handed_over.add_permits(1);
            guard.release().await?;
            Result::Ok(())
        });
    }
    while locks.list(None).await?.iter().map(|lock| lock.waiter_count).sum::<usize>() < WAITERS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    actor.at("queued", format!("{WAITERS} clients wait for the lock, in its queue")).await?;
    guard.release().await?;
    let _measured = handed_over.acquire_many(HAND_OVERS as u32).await?;
    actor.at("measured", format!("the lock was handed over {HAND_OVERS} times")).await
}

async fn release(redis: &mut redis::aio::MultiplexedConnection) -> Result {
    redis::cmd("DEL").arg(naive::KEY).query_async::<()>(redis).await?;
    Ok(redis::cmd("PUBLISH").arg("unlocked").arg("").query_async::<()>(redis).await?)
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::served(scene);
    scene.start("clients", &["queued"])?;
    let before = commands(&redis)?;
    scene.until("clients", &["measured"])?;
    let each = (commands(&redis)? - before) / HAND_OVERS as u64;
    scene.note(format!("Redis has run {each} commands for each hand-over"));
    Ok(if each > LIMIT {
        Verdict::Lost(format!("each release wakes up all of {WAITERS} waiters: more than {LIMIT} commands"))
    } else {
        Verdict::Kept(format!("each release wakes up one waiter: at most {LIMIT} commands"))
    })
}

/// The number of commands that the server has run.
fn commands(redis: &Redis) -> Result<u64> {
    let stats = redis.cli(&["INFO", "stats"]);
    let count = stats.lines().find_map(|line| line.trim().strip_prefix("total_commands_processed:"));
    Ok(count.ok_or("INFO has no total_commands_processed")?.parse()?)
}
