//! Redlock, and clocks that are set.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};
use lockkeeper_rig::{COMPILER, Redis};

use crate::account;
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    let locks = role.locks("redlock").await?;
    let guard = role.acquire(&locks.mutex("account").ttl(Duration::from_secs(30))).await?;
    role.say("has the lock, by a majority of three servers")?;
    let balance = account::read(role, &mut redis).await?;
    guard.check(Duration::ZERO)?;
    role.at("checked", "its lease is valid so far").await?;
    account::write(role, &mut redis, balance).await?;
    role.release(guard).await
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?.fenced()?;
    account::withdraw_fenced(role, &locks).await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let redis = account::server();
    let servers: [Redis; 3] =
        std::array::from_fn(|_| Redis::with_clock_and(&["--appendonly", "yes", "--appendfsync", "always"]));
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    stage.serve("account", redis.url());
    stage.serve("redlock", format!("redlock://{}", hosts.join(",")));
    stage.serve("locks", account::locks_at(&servers[0]));
    stage.start("A", &["checked"])?;
    servers.iter().for_each(|server| server.clock().step(3600));
    stage.note("the clocks of the lock servers are set forward by an hour");
    stage.start("B", &[])?;
    stage.end("A")?;
    account::outcome(&redis, 2)
}
