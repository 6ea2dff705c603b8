//! Redlock, and clocks that are set.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};
use lockkeeper_rig::{COMPILER, Redis};

use crate::account;
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "clock-step",
    title: "Redlock with a clock that is set",
    mistake: "Redis expires keys by its wall clock. If a majority of the servers has its clocks set forward (by an \
              operator, by NTP after a bad boot), the holder's keys are gone, and the next client gets a majority. \
              Redlock has no tokens, so no resource can tell the two apart.",
    remedy: "A lock that has tokens, and a fence. The clock still breaks the lock of this Redis; but the late write is \
             refused. (etcd, ZooKeeper and our own service do not measure leases by wall clocks at all.)",
    needs: &[SERVER, CLI, COMPILER],
    source: include_str!("clock_step.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let locks = actor.locks("redlock").await?;
    let guard = actor.acquire(&locks.mutex("account").ttl(Duration::from_secs(30))).await?;
    actor.say("has the lock, by a majority of three servers")?;
    let balance = account::read(actor, &mut redis).await?;
    guard.check(Duration::ZERO)?;
    actor.at("checked", "its lease is valid so far").await?;
    account::write(actor, &mut redis, balance).await?;
    actor.release(guard).await
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    account::withdraw_fenced(actor, &locks).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::server();
    let servers: [Redis; 3] =
        std::array::from_fn(|_| Redis::with_clock_and(&["--appendonly", "yes", "--appendfsync", "always"]));
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    scene.serve("account", redis.url());
    scene.serve("redlock", format!("redlock://{}", hosts.join(",")));
    scene.serve("locks", account::locks_at(&servers[0]));
    scene.start("A", &["checked"])?;
    servers.iter().for_each(|server| server.clock().step(3600));
    scene.note("the clocks of the lock servers are set forward by an hour");
    scene.start("B", &[])?;
    scene.end("A")?;
    account::outcome(&redis, 2)
}
