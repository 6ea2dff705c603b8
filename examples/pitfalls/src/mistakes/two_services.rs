//! One lock in two lock services.

use std::time::Duration;

use lockkeeper_rig::redis::{CLI, SERVER};

use crate::account::{self, TTL};
use crate::node::Node;
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    let service = if role.actor() == "A" { "old" } else { "new" };
    let locks = role.locks(service).await?;
    let guard = role.acquire(&locks.mutex("account").ttl(TTL)).await?;
    role.say(format!("has the lock of the {service} service"))?;
    let balance = account::read(role, &mut redis).await?;
    account::write(role, &mut redis, balance).await?;
    role.release(guard).await
}

async fn right(role: &mut Role) -> Result {
    let old = role.locks("old").await?.fenced()?;
    let guard = role.acquire(&old.mutex("account").ttl(TTL)).await?;
    role.say("has the lock of the old service")?;
    let mut also = None;
    if role.actor() != "A" {
        let new = role.locks("new").await?;
        also = Some(role.acquire(&new.mutex("account").ttl(TTL)).await?);
        role.say("has the lock of the new service too")?;
    }
    account::section(role, &guard, Duration::ZERO).await?;
    if let Some(also) = also {
        role.release(also).await?;
    }
    role.release(guard).await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let redis = account::server();
    let node = Node::start()?;
    stage.serve("account", redis.url());
    stage.serve("old", account::locks_at(&redis));
    stage.serve("new", node.url());
    stage.start("A", &["read"])?;
    stage.note("B is the new version");
    stage.start("B", &["waits", "read"])?;
    stage.end("A")?;
    stage.end("B")?;
    account::outcome(&redis, 2)
}
