//! A lock that never expires.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "no-ttl",
    title: "A lock without a ttl",
    mistake: "The lock is a key that its holder deletes when it is done. A holder that is killed deletes nothing, \
              and nobody else may: the work stands still until a person finds the key.",
    remedy: "Each hold is a lease that expires unless its holder renews it. The library has no lock without one.",
    needs: &[SERVER, CLI],
    source: include_str!("no_ttl.rs"),
    script,
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    naive::lock(role, &mut redis, None).await?;
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
    stage.start("A", &["locked"])?;
    stage.kill("A")?;
    stage.start("B", &["waits"])?;
    stage.go("B", &[])?;
    // PTTL is -1 for a key that never expires.
    if !stage.comes("B", 2 * TTL, || redis.cli(&["PTTL", naive::KEY]) == "-1")? {
        return Ok(Outcome::Lost("B waits for ever: A is dead, and its lock has no end".to_owned()));
    }
    account::outcome(&redis, 1)
}
