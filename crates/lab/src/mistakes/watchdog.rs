//! A renewal that goes on without its holder.

use std::process::{Command, Stdio};

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, naive};

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
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    naive::lock(actor, &mut redis, Some(TTL)).await?;
    // As a sidecar would, until somebody ends it. (It gives up after a minute, for the sake of this machine.)
    let renew = format!(
        "for i in $(seq 200); do redis-cli -u {} PEXPIRE {} {} && sleep 0.3; done",
        actor.url("account")?,
        naive::KEY,
        TTL.as_millis()
    );
    let mut watchdog =
        Command::new("sh").args(["-c", &renew]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    actor.at("renews", "starts its watchdog, a process that renews the lock every 0.3 s").await?;
    let balance = account::read(actor, &mut redis).await?;
    account::write(actor, &mut redis, balance).await?;
    watchdog.kill()?;
    naive::unlock(actor, &mut redis).await
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    account::withdraw_fenced(actor, &locks).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::served(scene);
    scene.start("A", &["renews", "read"])?;
    scene.kill("A")?;
    scene.start("B", &["waits"])?;
    scene.go("B", &["read"])?;
    // A is dead for two ttl, and still has the lock.
    if !scene.comes("B", 2 * TTL, || redis.cli(&["GET", naive::KEY]) == "A")? {
        return Ok(Verdict::Lost("B waits for ever: A is dead, and its watchdog renews the lock".to_owned()));
    }
    scene.end("B")?;
    account::outcome(&redis, 1)
}
