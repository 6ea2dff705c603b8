//! A leader that believes in its election.

use lockkeeper_fence::redis::RedisCommand;
use lockkeeper_fence::{RedisFence, Section};
use lockkeeper_rig::redis::{CLI, SERVER};
use redis::aio::MultiplexedConnection;

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::node::Node;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "leader-does-not-notice",
    title: "A leader that does not notice",
    mistake: "`is_leader = true` is set once, by the election, and read by everything that a leader does. Who stands \
              still for longer than the lease goes on leading, beside the new leader.",
    remedy: "Leadership is a hold with a deadline and a token: `leadership.lost()` fires before another can lead, and \
             what the leader writes carries the token, for the case that it reads the signal too late.",
    needs: &[SERVER, CLI],
    source: include_str!("leader_does_not_notice.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

/// As many jobs does a leader start before it resigns.
const JOBS: u32 = 2;

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    naive::lock(actor, &mut redis, Some(TTL)).await?;
    let is_leader = true;
    for _ in 0..JOBS {
        let job = next_job(actor, &mut redis).await?;
        if is_leader {
            redis::cmd("RPUSH").arg("started").arg(job).query_async::<()>(&mut redis).await?;
            redis::cmd("SET").arg("next").arg(job + 1).query_async::<()>(&mut redis).await?;
            actor.say(format!("is the leader: starts job {job}"))?;
        }
    }
    Ok(())
}

async fn right(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let fence = RedisFence::connect(redis.clone()).await?;
    let locks = actor.locks("locks").await?.fenced()?;
    let election = locks.election("scheduler").with(|lock| lock.ttl(TTL));
    actor.at("waits", "campaigns").await?;
    let leadership = election.campaign(actor.name()).await?;
    actor.say(format!("leads, with token {}", leadership.token()))?;
    let section = Section::exclusive(leadership.token());
    fence.enter("started", section).await?;
    for _ in 0..JOBS {
        let job = next_job(actor, &mut redis).await?;
        if leadership.lost().is_cancelled() {
            return actor.say("its leadership is lost: stops");
        }
        let start = RedisCommand::new("RPUSH").key("started").arg(job);
        let next = RedisCommand::new("SET").key("next").arg(job + 1);
        let started = fence.write("started", section, &[start, next]).await;
        if account::refused(actor, started)?.is_none() {
            return actor.say("no longer leads: stops");
        }
        actor.say(format!("starts job {job}, with its token"))?;
    }
    actor.release(leadership).await
}

async fn next_job(actor: &mut Actor, redis: &mut MultiplexedConnection) -> Result<u32> {
    let next: Option<u32> = redis::cmd("GET").arg("next").query_async(redis).await?;
    let job = next.unwrap_or(1);
    actor.at("chosen", format!("the next job is {job}")).await?;
    Ok(job)
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::server();
    scene.serve("account", redis.url());
    // The value of a leader, which says who it is, is an ability that Redis lacks.
    let node = Node::start()?;
    scene.serve("locks", node.url());
    scene.start("A", &["chosen"])?;
    scene.pause("A")?;
    scene.start("B", &[])?;
    scene.resume("A")?;
    scene.end("A")?;
    let started = redis.cli(&["LRANGE", "started", "0", "-1"]);
    let starts = started.lines().count();
    Ok(if starts == JOBS as usize {
        Verdict::Kept(format!("{JOBS} jobs are started, each once"))
    } else {
        Verdict::Lost(format!("{JOBS} jobs are started {starts} times: two led at the same time"))
    })
}
