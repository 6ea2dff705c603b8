//! A fence that checks writes only.

use lockkeeper_fence::redis::RedisCommand;
use lockkeeper_fence::{RedisFence, Section};
use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    let fence = RedisFence::connect(redis.clone()).await?;
    let locks = role.locks("locks").await?.fenced()?;
    loop {
        let guard = role.acquire(&locks.mutex("account").ttl(TTL)).await?;
        role.at("locked", format!("has the lock, with token {}", guard.token())).await?;
        let balance = account::read(role, &mut redis).await? - account::AMOUNT; // without enter
        role.at("computed", format!("computes {balance}")).await?;
        let write = RedisCommand::new("SET").key(account::KEY).arg(balance);
        let written = fence.write(account::KEY, Section::exclusive(guard.token()), &[write]).await;
        if account::refused(role, written)?.is_some() {
            role.at("written", format!("writes {balance}, with its token")).await?;
            return role.release(guard).await;
        }
    }
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?.fenced()?;
    account::withdraw_fenced(role, &locks).await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let redis = account::server();
    stage.serve("account", redis.url());
    stage.serve("locks", account::locks_at(&redis));
    stage.start("A", &["read"])?;
    stage.pause("A")?;
    stage.start("B", &["read"])?;
    stage.resume("A")?;
    stage.until("A", &["written", "waits"])?;
    stage.end("B")?;
    stage.end("A")?;
    account::outcome(&redis, 2)
}
