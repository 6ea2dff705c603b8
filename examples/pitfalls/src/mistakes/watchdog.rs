//! A renewal that goes on without its holder.

use std::process::{Command, Stdio};

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result, naive};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "watchdog",
    title: "A watchdog that outlives its holder",
    mistake: "A program beside the holder renews the lock: a sidecar, a shell loop, a thread of another process. It \
              goes on when the holder has died, and the ttl, which was to end such a hold, never ends it.",
    remedy: "What renews must die with what works: the library renews from the holder's own process. For a holder \
             that hangs and does not die, `max_hold` is the limit of renewals.",
    needs: &[SERVER, CLI],
    source: include_str!("watchdog.rs"),
    script,
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    naive::lock(role, &mut redis, Some(TTL)).await?;
    // As a sidecar would, until somebody ends it. (It gives up after a minute, for the sake of this machine.)
    let renew = format!(
        "for i in $(seq 200); do redis-cli -u {} PEXPIRE {} {} && sleep 0.3; done",
        role.url("account")?,
        naive::KEY,
        TTL.as_millis()
    );
    let mut watchdog = Command::new("sh").args(["-c", &renew]).stdout(Stdio::null()).spawn()?;
    role.at("renews", "starts its watchdog, a process that renews the lock every 0.3 s").await?;
    let balance = account::read(role, &mut redis).await?;
    account::write(role, &mut redis, balance).await?;
    watchdog.kill()?;
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
    stage.start("A", &["renews", "read"])?;
    stage.kill("A")?;
    stage.start("B", &["waits"])?;
    stage.go("B", &["read"])?;
    // A is dead for two ttl, and still has the lock.
    if !stage.comes("B", 2 * TTL, || redis.cli(&["GET", naive::KEY]) == "A")? {
        return Ok(Outcome::Lost("B waits for ever: A is dead, and its watchdog renews the lock".to_owned()));
    }
    stage.end("B")?;
    account::outcome(&redis, 1)
}
