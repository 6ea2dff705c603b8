//! Faults of the whole service: P9, P10. Played at the end, one after the other, each with all drivers.

use futures_util::future::try_join_all;
use nix::sys::signal::Signal;

use super::{Need, Pairs, Scenario};
use crate::Result;
use crate::conformance::hold::{Asked, GrantedHold, Want};
use crate::conformance::stage::{Actor, Cast, SHORT};
use crate::conformance::{Outcome, Promise, ScenarioError};
use crate::node::Node;

pub(super) const LEADER: Scenario = Scenario {
    name: "the leader moved, then killed",
    promise: Promise::P9,
    pairs: Pairs::AtEnd,
    needs: &[Need::Cluster],
    play: |cast| Box::pin(leader(cast)),
};

async fn leader(cast: &Cast<'_>) -> Outcome {
    let kept = Kept::begin(cast).await?;
    let failed = |error: lockkeeper::BackendError| ScenarioError::Failed(error.to_string());
    let leader = cast.stage.locks.transfer_leadership(None).await.map_err(failed)?;
    kept.is_kept("the leader was moved").await?;
    let leader = usize::try_from(leader).unwrap_or_default().saturating_sub(1);
    disturb(cast, |nodes| {
        nodes[leader].kill();
        nodes[leader].begin()
    })?;
    kept.end("the leader was killed").await
}

pub(super) const ALL_KILLED: Scenario = Scenario {
    name: "all nodes killed",
    promise: Promise::P10,
    pairs: Pairs::AtEnd,
    needs: &[Need::Cluster],
    play: |cast| Box::pin(all_killed(cast)),
};

async fn all_killed(cast: &Cast<'_>) -> Outcome {
    let kept = Kept::begin(cast).await?;
    disturb(cast, |nodes| {
        nodes.iter_mut().for_each(Node::kill);
        nodes.iter_mut().try_for_each(Node::begin)
    })?;
    kept.end("all nodes were killed and started again").await
}

pub(super) const ALL_STOPPED: Scenario = Scenario {
    name: "the service stopped past a ttl",
    promise: Promise::P9,
    pairs: Pairs::AtEnd,
    needs: &[Need::Cluster],
    play: |cast| Box::pin(all_stopped(cast)),
};

/// A client whose deadline passes reports the loss, and one with a longer ttl keeps its hold.
async fn all_stopped(cast: &Cast<'_>) -> Outcome {
    let kept = Kept::begin(cast).await?;
    let stopped = try_join_all(cast.everyone().into_iter().map(Short::begin)).await?;
    let signal = |signal| disturb(cast, |nodes| nodes.iter().try_for_each(|node| node.signal(signal)));
    signal(Signal::SIGSTOP)?;
    let lost = async |short: &Short| short.held.is_lost("the service stood still past its ttl").await;
    let lost = try_join_all(stopped.iter().map(lost)).await;
    signal(Signal::SIGCONT)?;
    lost?;
    for Short { _subject, held, waits } in stopped {
        held.release_lost().await?;
        waits.granted().await?.release().await?;
    }
    kept.end("the service stood still").await
}

fn disturb(cast: &Cast<'_>, how: impl FnOnce(&mut Vec<Node>) -> Result) -> Outcome {
    let mut nodes = cast.stage.nodes()?.borrow_mut();
    how(&mut nodes).map_err(|error| ScenarioError::Failed(error.to_string()))
}

/// A hold of a client whose ttl is short, and a waiter.
struct Short {
    _subject: Actor,
    held: GrantedHold,
    waits: Asked,
}

impl Short {
    async fn begin(cast: Cast<'_>) -> Outcome<Self> {
        let subject = cast.fresh(SHORT).await?;
        let lock = cast.lock("short");
        let held = subject.acquire(&lock).await?;
        let waits = cast.partner().await?.ask(&lock)?;
        cast.waiters(&lock, 1).await?;
        Ok(Self { _subject: subject, held, waits })
    }
}

/// For each driver, a hold and a waiter that survive.
struct Kept<'a>(Vec<(Cast<'a>, Want, GrantedHold, Asked)>);

impl<'a> Kept<'a> {
    async fn begin(cast: &Cast<'a>) -> Outcome<Self> {
        let each = async |cast: Cast<'a>| {
            let lock = cast.lock("kept");
            let held = cast.subject().await?.acquire(&lock).await?;
            let waits = cast.partner().await?.ask(&lock)?;
            cast.waiters(&lock, 1).await?;
            Outcome::Ok((cast, lock, held, waits))
        };
        try_join_all(cast.everyone().into_iter().map(each)).await.map(Self)
    }

    async fn is_kept(&self, when: &str) -> Outcome {
        try_join_all(self.0.iter().map(|(_, _, held, _)| held.is_held(when))).await.map(drop)
    }

    async fn end(self, when: &str) -> Outcome {
        for (cast, lock, ..) in &self.0 {
            // Answered once the service is back.
            cast.waiters(lock, 1).await?;
            cast.holders(lock, 1).await?;
        }
        self.is_kept(when).await?;
        for (cast, lock, held, waits) in self.0 {
            held.release().await?;
            waits.granted().await?.release().await?;
            cast.is_free(&lock).await?;
        }
        Ok(())
    }
}
