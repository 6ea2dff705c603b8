//! The lease is checked, and then it ends.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "check-then-act",
    title: "Check the lease, then act",
    mistake: "The holder asks whether it still has the lock, gets \"yes\", and writes. Between the answer and the write \
              it may stand still for as long as the ttl: no check by the client can close this gap.",
    remedy: "The check belongs into the write: the resource compares the token in the same step. A check before (`guard.\
             check`) saves work, and proves nothing.",
    needs: &[SERVER, CLI],
    source: include_str!("check_then_act.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    naive::lock(actor, &mut redis, Some(TTL)).await?;
    let balance = account::read(actor, &mut redis).await?;
    let owner: Option<String> = redis::cmd("GET").arg(naive::KEY).query_async(&mut redis).await?;
    if owner.as_deref() != Some(actor.name()) {
        return actor.say("has lost the lock, and gives up");
    }
    actor.at("checked", format!("GET lock: {}, still its own", actor.name())).await?;
    account::write(actor, &mut redis, balance).await
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    account::withdraw_fenced(actor, &locks).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::served(scene);
    scene.start("A", &["checked"])?;
    scene.pause("A")?;
    scene.start("B", &["waits"])?;
    scene.end("B")?;
    scene.resume("A")?;
    scene.end("A")?;
    account::outcome(&redis, 2)
}
