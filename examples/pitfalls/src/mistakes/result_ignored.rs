//! The answer of the lock service is not looked at.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result, naive};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    let _ = naive::try_lock(role, &mut redis, Some(TTL)).await?;
    role.at("locked", "SET lock NX: takes no notice of the answer").await?;
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
    stage.start("A", &["read"])?;
    stage.start("B", &["waits", "read"])?;
    stage.end("A")?;
    stage.end("B")?;
    account::outcome(&redis, 2)
}
