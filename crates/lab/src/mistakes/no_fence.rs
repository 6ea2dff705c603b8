//! A lock without a fence.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict};

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
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let locks = actor.locks("locks").await?;
    let guard = actor.acquire(&locks.mutex("account").ttl(TTL)).await?;
    actor.at("locked", "has the lock").await?;
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
    let redis = account::served(scene);
    scene.start("A", &["checked"])?;
    scene.pause("A")?;
    scene.start("B", &[])?;
    scene.resume("A")?;
    scene.end("A")?;
    account::outcome(&redis, 2)
}
