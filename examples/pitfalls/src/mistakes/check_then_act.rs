//! The lease is checked, and then it ends.

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result, naive};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    naive::lock(role, &mut redis, Some(TTL)).await?;
    let balance = account::read(role, &mut redis).await?;
    let owner: Option<String> = redis::cmd("GET").arg(naive::KEY).query_async(&mut redis).await?;
    if owner.as_deref() != Some(role.actor()) {
        return role.say("has lost the lock, and gives up");
    }
    role.at("checked", format!("GET lock: {}, still its own", role.actor())).await?;
    account::write(role, &mut redis, balance).await
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
    stage.start("B", &["waits"])?;
    stage.end("B")?;
    stage.resume("A")?;
    stage.end("A")?;
    account::outcome(&redis, 2)
}
