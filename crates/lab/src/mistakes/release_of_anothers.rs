//! A release that does not look whose lock it is.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "release-of-anothers",
    title: "A release of another's lock",
    mistake: "`DEL lock` deletes whatever is there. A holder that is late, even if it has done all its work in time, \
              deletes the lock of the next one, and a third gets in beside that one.",
    remedy: "A release names the hold that it ends, and does nothing if that hold is over. In Redis it compares and \
             deletes in one script; each release of the library does the like.",
    needs: &[SERVER, CLI],
    source: include_str!("release_of_anothers.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    // Long enough for B and C: the only mistake is A's release.
    let ttl = if actor.name() == "A" { TTL } else { 60 * TTL };
    naive::lock(actor, &mut redis, Some(ttl)).await?;
    let balance = account::read(actor, &mut redis).await?;
    account::write(actor, &mut redis, balance).await?;
    naive::unlock(actor, &mut redis).await
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    account::withdraw_fenced(actor, &locks).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::served(scene);
    scene.start("A", &["written"])?;
    scene.pause("A")?;
    scene.start("B", &["read"])?;
    scene.resume("A")?;
    scene.end("A")?;
    scene.start("C", &["waits", "read"])?;
    scene.end("B")?;
    scene.end("C")?;
    account::outcome(&redis, 3)
}
