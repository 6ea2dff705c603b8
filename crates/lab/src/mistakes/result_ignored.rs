//! The answer of the lock service is not looked at.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "result-ignored",
    title: "The result of acquire is ignored",
    mistake: "`SET … NX`, `tryLock()` and `flock -n` return whether the lock was free. A program that drops this result \
              works in all tests, because one client alone always gets the lock.",
    remedy: "A hold is a value, without which there is no token, no section and no release: `try_acquire` returns \
             `Option<Guard>`, and the compiler refuses to go on without looking.",
    needs: &[SERVER, CLI],
    source: include_str!("result_ignored.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let _ = naive::try_lock(actor, &mut redis, Some(TTL)).await?;
    actor.at("locked", "SET lock NX: takes no notice of the answer").await?;
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
    scene.start("A", &["read"])?;
    scene.start("B", &["waits", "read"])?;
    scene.end("A")?;
    scene.end("B")?;
    account::outcome(&redis, 2)
}
