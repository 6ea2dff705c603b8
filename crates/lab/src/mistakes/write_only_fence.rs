//! A fence that checks writes only.

use lockkeeper_fence::redis::RedisCommand;
use lockkeeper_fence::{RedisFence, Section};
use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "write-only-fence",
    title: "A fence on writes only",
    mistake: "The resource refuses a write whose token is lower than that of the last write. But the next holder has \
              only read so far: the late write is the highest one, and passes. Then the next holder writes what it has \
              computed from the old value.",
    remedy: "Enter before you read: the section raises the mark first, so that from its read on nobody with a lower \
             token can write.",
    needs: &[SERVER, CLI],
    source: include_str!("write_only_fence.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let fence = RedisFence::connect(redis.clone()).await?;
    let locks = actor.locks("locks").await?.fenced()?;
    loop {
        let guard = actor.acquire(&locks.mutex("account").ttl(TTL)).await?;
        actor.at("locked", format!("has the lock, with token {}", guard.token())).await?;
        let balance = account::read(actor, &mut redis).await? - account::AMOUNT; // without enter
        actor.at("computed", format!("computes {balance}")).await?;
        let write = RedisCommand::new("SET").key(account::KEY).arg(balance);
        let written = fence.write(account::KEY, Section::exclusive(guard.token()), &[write]).await;
        if account::refused(actor, written)?.is_some() {
            actor.at("written", format!("writes {balance}, with its token")).await?;
            return actor.release(guard).await;
        }
    }
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    account::withdraw_fenced(actor, &locks).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::served(scene);
    scene.start("A", &["read"])?;
    scene.pause("A")?;
    scene.start("B", &["read"])?;
    scene.resume("A")?;
    scene.until("A", &["written", "waits"])?;
    scene.end("B")?;
    scene.end("A")?;
    account::outcome(&redis, 2)
}
