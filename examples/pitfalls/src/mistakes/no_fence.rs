//! A lock without a fence.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "no-fence",
    title: "No fence",
    mistake: "All is right with this lock: it expires, it is renewed, its loss is signalled, the holder checks before it \
              writes. And yet a holder that stands still after this check writes over the work of the next one. No \
              lock service can prevent that, because it does not see the write.",
    remedy: "The resource keeps the highest token that it has seen, and refuses lower ones.",
    needs: &[SERVER, CLI],
    source: include_str!("no_fence.rs"),
    script,
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    let locks = role.locks("locks").await?;
    let guard = role.acquire(&locks.mutex("account").ttl(TTL)).await?;
    role.at("locked", "has the lock").await?;
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
    stage.serve("account", redis.url());
    stage.serve("locks", account::locks_at(&redis));
    stage.start("A", &["checked"])?;
    stage.pause("A")?;
    stage.start("B", &[])?;
    stage.resume("A")?;
    stage.end("A")?;
    account::outcome(&redis, 2)
}
