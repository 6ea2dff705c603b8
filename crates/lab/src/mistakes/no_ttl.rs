//! A lock that never expires.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "no-ttl",
    title: "A lock without a ttl",
    mistake: "The lock is a key that its holder deletes when it is done. A holder that is killed deletes nothing, \
              and nobody else may: the work stands still until a person finds the key.",
    remedy: "Each hold is a lease that expires unless its holder renews it. The library has no lock without one.",
    needs: &[SERVER, CLI],
    source: include_str!("no_ttl.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    naive::lock(actor, &mut redis, None).await?;
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
    scene.start("A", &["locked"])?;
    scene.kill("A")?;
    scene.start("B", &["waits"])?;
    scene.go("B", &[])?;
    // PTTL is -1 for a key that never expires.
    if !scene.comes("B", 2 * TTL, || redis.cli(&["PTTL", naive::KEY]) == "-1")? {
        return Ok(Verdict::Lost("B waits for ever: A is dead, and its lock has no end".to_owned()));
    }
    account::outcome(&redis, 1)
}
