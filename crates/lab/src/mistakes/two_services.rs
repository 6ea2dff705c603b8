//! One lock in two lock services.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::node::Node;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "two-services",
    title: "Two lock services for one lock",
    mistake: "A team moves its locks from Redis to another service. While the new version is rolled out, half of the \
              hosts lock here and the other half there, and nobody excludes anybody. The tokens of two services cannot \
              be compared either.",
    remedy: "A version in between takes both locks, the old one first, and passes the old service's tokens. When no \
             host locks only the old one any more, the last version takes the new one alone; `lockkeeper fence reset` \
             sets the marks for its tokens, if these are lower.",
    needs: &[SERVER, CLI],
    source: include_str!("two_services.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let service = if actor.name() == "A" { "old" } else { "new" };
    let locks = actor.locks(service).await?;
    let guard = actor.acquire(&locks.mutex("account").ttl(TTL)).await?;
    actor.say(format!("has the lock of the {service} service"))?;
    let balance = account::read(actor, &mut redis).await?;
    account::write(actor, &mut redis, balance).await?;
    actor.release(guard).await
}

async fn right(actor: &mut Actor) -> Result {
    let old = actor.locks("old").await?.fenced()?;
    loop {
        let guard = actor.acquire(&old.mutex("account").ttl(TTL)).await?;
        actor.say("has the lock of the old service")?;
        let mut also = None;
        if actor.name() != "A" {
            let new = actor.locks("new").await?;
            also = Some(actor.acquire(&new.mutex("account").ttl(TTL)).await?);
            actor.say("has the lock of the new service too")?;
        }
        let is_done = account::section(actor, &guard, Duration::ZERO).await?;
        if let Some(also) = also {
            actor.release(also).await?;
        }
        actor.release(guard).await?;
        if is_done {
            return Ok(());
        }
        actor.say("acquires the locks again")?;
    }
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::server();
    let node = Node::start()?;
    scene.serve("account", redis.url());
    scene.serve("old", account::locks_at(&redis));
    scene.serve("new", node.url());
    scene.start("A", &["read"])?;
    scene.note("B is the new version");
    scene.start("B", &["waits", "read"])?;
    scene.end("A")?;
    scene.end("B")?;
    account::outcome(&redis, 2)
}
