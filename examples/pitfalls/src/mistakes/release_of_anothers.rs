//! A release that does not look whose lock it is.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result, naive};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    // Long enough for B and C: the only mistake is A's release.
    let ttl = if role.actor() == "A" { TTL } else { 60 * TTL };
    naive::lock(role, &mut redis, Some(ttl)).await?;
    let balance = account::read(role, &mut redis).await?;
    account::write(role, &mut redis, balance).await?;
    naive::unlock(role, &mut redis).await
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?.fenced()?;
    account::withdraw_fenced(role, &locks).await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let redis = account::server();
    stage.serve("account", redis.url());
    stage.serve("locks", account::locks_at(&redis));
    stage.start("A", &["written"])?;
    stage.pause("A")?;
    stage.start("B", &["read"])?;
    stage.resume("A")?;
    stage.end("A")?;
    stage.start("C", &["waits", "read"])?;
    stage.end("B")?;
    stage.end("C")?;
    account::outcome(&redis, 3)
}
