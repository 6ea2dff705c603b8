//! Exclusion and order: P1, P8. That tokens rise (P2) is judged over all scenarios.

use futures_util::future::try_join_all;

use super::{Need, Pairs, Scenario};
use crate::conformance::protocol::{ErrorKind, LockMode};
use crate::conformance::stage::{Actor, Cast};
use crate::conformance::{Outcome, Promise, broken};

/// Not acquired within the time that was given: on a busy machine, the service may not have answered by then.
const NOT_IN_TIME: [ErrorKind; 2] = [ErrorKind::TimedOut, ErrorKind::Unreachable];

pub(super) const PAIR: Scenario = Scenario {
    name: "one after the other",
    promise: Promise::P1,
    pairs: Pairs::All,
    needs: &[],
    play: |cast| Box::pin(pair(cast)),
};

async fn pair(cast: &Cast<'_>) -> Outcome {
    let (one, other) = (cast.subject().await?, cast.partner().await?);
    let lock = cast.lock("pair");
    let held = one.acquire(&lock).await?;
    other.ask(&lock.clone().wait(0))?.refused(&[ErrorKind::Busy]).await?;
    other.ask(&lock.clone().wait(300))?.refused(&NOT_IN_TIME).await?;
    cast.waiters(&lock, 0).await?;
    let waits = other.ask(&lock)?;
    cast.waiters(&lock, 1).await?;
    held.is_held("another one waits").await?;
    held.release().await?;
    let held = waits.granted().await?;
    one.ask(&lock.clone().wait(0))?.refused(&[ErrorKind::Busy]).await?;
    held.release().await?;
    cast.is_free(&lock).await
}

pub(super) const CONTENDED: Scenario = Scenario {
    name: "contended",
    promise: Promise::P1,
    pairs: Pairs::Next,
    needs: &[],
    play: |cast| Box::pin(contended(cast)),
};

/// Both processes of two drivers at one lock.
async fn contended(cast: &Cast<'_>) -> Outcome {
    let lock = cast.lock("all");
    let pairs = async |actor: &Actor| {
        for _ in 0..20 {
            let held = actor.acquire(&lock).await?;
            held.is_held("nothing has happened").await?;
            held.release().await?;
        }
        Outcome::Ok(())
    };
    let actors = [cast.subject().await?, cast.partner().await?];
    try_join_all(actors.into_iter().chain(actors).map(pairs)).await?;
    cast.is_free(&lock).await
}

pub(super) const SHARED: Scenario = Scenario {
    name: "readers and a writer",
    promise: Promise::P1,
    pairs: Pairs::Next,
    needs: &[Need::Mode(LockMode::Shared)],
    play: |cast| Box::pin(shared(cast)),
};

async fn shared(cast: &Cast<'_>) -> Outcome {
    let (one, other) = (cast.subject().await?, cast.partner().await?);
    let lock = cast.lock("rw");
    let reader = lock.clone().shared();
    let readers = [one.acquire(&reader).await?, other.acquire(&reader).await?];
    other.ask(&lock.clone().wait(0))?.refused(&[ErrorKind::Busy]).await?;
    let writer = one.ask(&lock)?;
    cast.waiters(&lock, 1).await?;
    for reader in readers {
        if !writer.waits() {
            return broken(format!("{} writes beside a reader", one.name));
        }
        reader.release().await?;
    }
    let writer = writer.granted().await?;
    other.ask(&reader.wait(0))?.refused(&[ErrorKind::Busy]).await?;
    writer.release().await
}

pub(super) const PERMITS: Scenario = Scenario {
    name: "permits",
    promise: Promise::P1,
    pairs: Pairs::Next,
    needs: &[Need::Mode(LockMode::Permit)],
    play: |cast| Box::pin(permits(cast)),
};

async fn permits(cast: &Cast<'_>) -> Outcome {
    let (one, other) = (cast.subject().await?, cast.partner().await?);
    let permit = cast.lock("pool").permits(2);
    let first = one.acquire(&permit).await?;
    let second = other.acquire(&permit).await?;
    one.ask(&permit.clone().wait(0))?.refused(&[ErrorKind::Busy]).await?;
    let waits = one.ask(&permit)?;
    cast.waiters(&permit, 1).await?;
    second.release().await?;
    let third = waits.granted().await?;
    other.ask(&permit.clone().wait(0))?.refused(&[ErrorKind::Busy]).await?;
    first.release().await?;
    third.release().await
}

pub(super) const SEVERAL: Scenario = Scenario {
    name: "several at once",
    promise: Promise::P1,
    pairs: Pairs::Next,
    needs: &[Need::Feature("all")],
    play: |cast| Box::pin(several(cast)),
};

async fn several(cast: &Cast<'_>) -> Outcome {
    let (one, other) = (cast.subject().await?, cast.partner().await?);
    let [x, y, z] = ["x", "y", "z"].map(|name| cast.lock(name));
    let held = one.acquire(&x.clone().also(y.name())).await?;
    for lock in [&x, &y] {
        other.ask(&lock.clone().wait(0))?.refused(&[ErrorKind::Busy]).await?;
    }
    // All or nothing: while it waits for y, it does not hold z.
    let waits = other.ask(&y.also(z.name()))?;
    cast.waiters(&z, 1).await?;
    held.release().await?;
    let held = waits.granted().await?;
    one.ask(&z.wait(0))?.refused(&[ErrorKind::Busy]).await?;
    one.acquire(&x).await?.release().await?;
    held.release().await
}

pub(super) const SUBTREE: Scenario = Scenario {
    name: "subtrees",
    promise: Promise::P1,
    pairs: Pairs::Next,
    needs: &[Need::Feature("subtree")],
    play: |cast| Box::pin(subtree(cast)),
};

async fn subtree(cast: &Cast<'_>) -> Outcome {
    let (one, other) = (cast.subject().await?, cast.partner().await?);
    let tree = one.acquire(&cast.lock("tree").subtree()).await?;
    other.ask(&cast.lock("tree/a/b").wait(0))?.refused(&[ErrorKind::Busy]).await?;
    other.acquire(&cast.lock("trees")).await?.release().await?;
    let waits = other.ask(&cast.lock("tree/a"))?;
    cast.waiters(&cast.lock("tree/a"), 1).await?;
    tree.release().await?;
    let leaf = waits.granted().await?;
    one.ask(&cast.lock("tree").subtree().wait(0))?.refused(&[ErrorKind::Busy]).await?;
    leaf.release().await
}

pub(super) const ELECTION: Scenario = Scenario {
    name: "an election",
    promise: Promise::P1,
    pairs: Pairs::Next,
    needs: &[Need::Feature("election")],
    play: |cast| Box::pin(election(cast)),
};

async fn election(cast: &Cast<'_>) -> Outcome {
    let (one, other) = (cast.subject().await?, cast.partner().await?);
    let election = cast.lock("leader").election();
    let leads = one.acquire(&election).await?;
    other.ask(&election.clone().wait(300))?.refused(&NOT_IN_TIME).await?;
    let waits = other.ask(&election)?;
    cast.waiters(&election, 1).await?;
    leads.release().await?;
    waits.granted().await?.release().await
}

pub(super) const ORDER: Scenario = Scenario {
    name: "the order of waiters",
    promise: Promise::P8,
    pairs: Pairs::Next,
    needs: &[Need::Fair],
    play: |cast| Box::pin(order(cast)),
};

async fn order(cast: &Cast<'_>) -> Outcome {
    let (one, other) = (cast.subject().await?, cast.partner().await?);
    let lock = cast.lock("queue");
    let mut held = one.acquire(&lock).await?;
    let mut queue = Vec::new();
    for (count, actor) in [other, one, other, one].into_iter().enumerate() {
        queue.push(actor.ask(&lock)?);
        cast.waiters(&lock, count + 1).await?;
    }
    for waits in queue {
        held.release().await?;
        // If another one were granted first, this one would not be.
        held = waits.granted().await?;
    }
    held.release().await
}
