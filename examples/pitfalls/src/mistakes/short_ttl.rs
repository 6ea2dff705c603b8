//! A ttl that is shorter than the work.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result, naive};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

/// How long the work takes.
const WORK: Duration = Duration::from_secs(4);

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    naive::lock(role, &mut redis, Some(TTL)).await?;
    let balance = account::read(role, &mut redis).await?;
    role.say(format!("works for {WORK:?}"))?;
    tokio::time::sleep(WORK).await;
    account::write(role, &mut redis, balance).await?;
    naive::unlock(role, &mut redis).await
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?.fenced()?;
    account::withdraw_slowly(role, &locks, WORK).await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let redis = account::server();
    stage.serve("account", redis.url());
    stage.serve("locks", account::locks_at(&redis));
    stage.start("A", &["read"])?;
    stage.go("A", &[])?;
    stage.start("B", &["waits"])?;
    stage.go("B", &[])?;
    stage.wait("A")?;
    stage.wait("B")?;
    account::outcome(&redis, 2)
}
