//! A replica that is behind becomes the primary.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::{Reached, Stage};
use crate::{Outcome, Pitfall, Result};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "fail-over",
    title: "A fail-over of a replicated Redis",
    mistake: "Redis acknowledges a lock before its replica has it. If the primary dies then, the replica that takes \
              over knows nothing of the lock, and grants it again.",
    remedy: "Tokens that rise over a fail-over too, as those of `?fencing=counter` do, and a fence. Or a lock service \
             that acknowledges only what a majority has: etcd, ZooKeeper, our own.",
    needs: &[SERVER, CLI],
    source: include_str!("fail_over.rs"),
    script,
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    let locks = role.locks("locks").await?;
    let guard = role.acquire(&locks.mutex("account").ttl(TTL)).await?;
    role.say("has the lock")?;
    let balance = account::read(role, &mut redis).await?;
    guard.check(Duration::ZERO)?;
    role.at("checked", "its lease is valid so far").await?;
    account::write(role, &mut redis, balance).await
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?.fenced()?;
    let guard = role.acquire(&locks.mutex("account").ttl(TTL)).await?;
    role.say(format!("has the lock, with token {}", guard.token()))?;
    if account::section(role, &guard, Duration::ZERO).await? {
        return role.release(guard).await;
    }
    role.at("stopped", "stops: another worker gets its order").await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let redis = account::server();
    let primary = account::server();
    let replica = primary.replica();
    stage.serve("account", redis.url());
    stage.serve("locks", account::locks_at(&primary));
    // The replica falls behind: its link is cut, and it stands still, so that it does not connect again.
    replica.stop();
    primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    stage.note("the link between the primary and its replica is cut");
    stage.start("A", &["checked"])?;
    primary.kill();
    replica.cont();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    stage.note("the primary dies, and the replica takes over");
    stage.serve("locks", account::locks_at(&replica));
    stage.start("B", &[])?;
    if stage.until("A", &["stopped"])? != Reached::End {
        stage.start("C", &[])?;
    }
    account::outcome(&redis, 2)
}
