//! A replica that is behind becomes the primary.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::{Reached, Scene};
use crate::{Pitfall, Result, Verdict};

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
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let locks = actor.locks("locks").await?;
    let guard = actor.acquire(&locks.mutex("account").ttl(TTL)).await?;
    actor.say("has the lock")?;
    let balance = account::read(actor, &mut redis).await?;
    guard.check(Duration::ZERO)?;
    actor.at("checked", "its lease is valid so far").await?;
    account::write(actor, &mut redis, balance).await
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    let guard = actor.acquire(&locks.mutex("account").ttl(TTL)).await?;
    actor.say(format!("has the lock, with token {}", guard.token()))?;
    if account::section(actor, &guard, Duration::ZERO).await? {
        return actor.release(guard).await;
    }
    actor.at("stopped", "stops: another worker gets its order").await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::server();
    let primary = account::server();
    let replica = primary.replica();
    scene.serve("account", redis.url());
    scene.serve("locks", account::locks_at(&primary));
    // The replica falls behind: its link is cut, and it stands still, so that it does not connect again.
    replica.stop();
    primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    scene.note("the link between the primary and its replica is cut");
    scene.start("A", &["checked"])?;
    primary.kill();
    replica.cont();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    scene.note("the primary dies, and the replica takes over");
    scene.serve("locks", account::locks_at(&replica));
    scene.start("B", &[])?;
    if scene.until("A", &["stopped"])? != Reached::End {
        scene.start("C", &[])?;
    }
    account::outcome(&redis, 2)
}
