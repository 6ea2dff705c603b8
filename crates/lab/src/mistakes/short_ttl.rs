//! A ttl that is shorter than the work.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "short-ttl",
    title: "A ttl that is shorter than the operation",
    mistake: "The ttl was long enough when it was chosen. The data have grown, or the database is busy: the lock \
              expires in the middle of the work, without any fault, and the next client begins.",
    remedy: "The hold is renewed while the work goes on, so a ttl need only be longer than the pauses of the holder, \
             not than its work. And a fence, for the day on which a pause is longer.",
    needs: &[SERVER, CLI],
    source: include_str!("short_ttl.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

/// How long the work takes.
const WORK: Duration = Duration::from_secs(4);

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    naive::lock(actor, &mut redis, Some(TTL)).await?;
    let balance = account::read(actor, &mut redis).await?;
    actor.say(format!("works for {WORK:?}"))?;
    tokio::time::sleep(WORK).await;
    account::write(actor, &mut redis, balance).await?;
    naive::unlock(actor, &mut redis).await
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    account::withdraw_slowly(actor, &locks, WORK).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::served(scene);
    scene.start("A", &["read"])?;
    scene.go("A", &[])?;
    scene.start("B", &["waits"])?;
    scene.go("B", &[])?;
    scene.wait("A")?;
    scene.wait("B")?;
    account::outcome(&redis, 2)
}
