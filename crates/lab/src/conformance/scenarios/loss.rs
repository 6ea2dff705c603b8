//! Holds that last, and holds that are lost: P4, P5.

use std::time::Duration;

use futures_util::future::try_join;
use lockkeeper::{BreakOrder, LockName, Token};

use super::{Need, Pairs, Scenario};
use crate::conformance::protocol::ErrorKind;
use crate::conformance::stage::{Cast, SHORT};
use crate::conformance::{Outcome, Promise, ScenarioError, broken};

/// By how much later than the next grant a loss may be reported: a process may be slow to run, and to write.
const REPORT_DELAY: Duration = SHORT;

pub(super) const RENEWED: Scenario = Scenario {
    name: "renewed",
    promise: Promise::P4,
    pairs: Pairs::Next,
    needs: &[],
    play: |cast| Box::pin(renewed(cast)),
};

async fn renewed(cast: &Cast<'_>) -> Outcome {
    // Two thirds of the ttl may pass without a renewal on a busy machine.
    let ttl = SHORT * 3 / 2;
    let (subject, partner) = (cast.fresh(ttl).await?, cast.partner().await?);
    let lock = cast.lock("kept");
    let held = subject.acquire(&lock).await?;
    tokio::time::sleep(ttl * 5 / 2).await;
    held.is_held("nothing has happened for 2.5 ttls").await?;
    partner.ask(&lock.wait(0))?.refused(&[ErrorKind::Busy]).await?;
    held.release().await
}

pub(super) const RELEASED_TWICE: Scenario = Scenario {
    name: "released twice",
    promise: Promise::P4,
    pairs: Pairs::Next,
    needs: &[],
    play: |cast| Box::pin(released_twice(cast)),
};

async fn released_twice(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.subject().await?, cast.partner().await?);
    let lock = cast.lock("twice");
    let held = subject.acquire(&lock).await?;
    let waits = partner.ask(&lock)?;
    held.release().await?;
    held.release_again().await?;
    let next = waits.granted().await?;
    held.release_again().await?;
    next.is_held("an earlier holder has released again").await?;
    subject.ask(&lock.wait(0))?.refused(&[ErrorKind::Busy]).await?;
    next.release().await
}

pub(super) const BROKEN: Scenario = Scenario {
    name: "broken by an operator",
    promise: Promise::P4,
    pairs: Pairs::Next,
    needs: &[Need::Own],
    play: |cast| Box::pin(broken_by_operator(cast)),
};

async fn broken_by_operator(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.subject().await?, cast.partner().await?);
    let lock = cast.lock("broken");
    let held = subject.acquire(&lock).await?;
    let waits = partner.ask(&lock)?;
    let failed = |error: String| ScenarioError::Failed(format!("the hold can't be broken: {error}"));
    let Some(token) = held.token else { return broken(format!("{} has no token", subject.name)) };
    let order = BreakOrder {
        name: LockName::parse(lock.name()).map_err(|error| failed(error.to_string()))?,
        token: Token::new(token).ok_or_else(|| failed(format!("{token} is no token")))?,
        reason: "conformance".to_owned(),
        by: "conformance".to_owned(),
        now: false,
    };
    cast.stage.locks.break_hold(order).await.map_err(|error| failed(error.to_string()))?;
    held.is_lost("an operator has broken it").await?;
    held.release_lost().await?;
    waits.granted().await?.release().await
}

pub(super) const STOPPED: Scenario = Scenario {
    name: "stopped past its ttl",
    promise: Promise::P5,
    pairs: Pairs::Next,
    needs: &[],
    play: |cast| Box::pin(stopped(cast)),
};

async fn stopped(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.fresh(SHORT).await?, cast.partner().await?);
    let lock = cast.lock("stopped");
    let held = subject.acquire(&lock).await?;
    if held.valid_ms.is_none() && cast.stage.locks.capabilities().ttl {
        return broken(format!("{} has a hold without a deadline", subject.name));
    }
    let waits = partner.ask(&lock)?;
    cast.waiters(&lock, 1).await?;
    held.is_held("it runs").await?;
    subject.stop()?;
    let next = waits.granted().await?;
    // It is the first that the process does when it goes on.
    let check = held.begin_check()?;
    subject.cont()?;
    if held.end_check(check).await? {
        return broken(format!("{} goes on after a stop, and says that it still holds", subject.name));
    }
    held.is_lost("it was stopped past its ttl").await?;
    next.is_held("an earlier holder goes on").await?;
    held.release_lost().await?;
    next.is_held("an earlier holder has released").await?;
    next.release().await?;
    subject.acquire(&lock).await?.release().await
}

pub(super) const STALLED_PROGRAM: Scenario = Scenario {
    name: "blocked for 3 ttls",
    promise: Promise::P5,
    pairs: Pairs::Next,
    needs: &[],
    play: |cast| Box::pin(stalled_program(cast)),
};

/// The hold survives, or its loss is reported; the judge compares the times.
async fn stalled_program(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.fresh(SHORT).await?, cast.partner().await?);
    let lock = cast.lock("stalled");
    let held = subject.acquire(&lock).await?;
    let waits = partner.ask(&lock)?;
    let is_blocked = subject.stall(SHORT * 3).await?.is_some();
    if held.check().await? {
        held.release().await?;
    } else {
        held.is_lost("it was blocked").await?;
        held.release_lost().await?;
    }
    waits.granted().await?.release().await?;
    match is_blocked {
        true => Ok(()),
        false => Err(ScenarioError::LeftOut(format!("{} can't be blocked", subject.name))),
    }
}

pub(super) const CUT_OFF: Scenario = Scenario {
    name: "cut off from the service",
    promise: Promise::P5,
    pairs: Pairs::Next,
    needs: &[Need::Proxy],
    play: |cast| Box::pin(cut_off(cast)),
};

async fn cut_off(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.fresh(SHORT).await?, cast.partner().await?);
    let lock = cast.lock("cut");
    let held = subject.acquire(&lock).await?;
    let waits = partner.ask(&lock)?;
    cast.waiters(&lock, 1).await?;
    held.is_held("it is connected").await?;
    subject.silence();
    let next = waits.granted().await?;
    let granted = subject.record.now();
    if held.check().await? {
        return broken(format!("{} is cut off, and says that it holds what another one has", subject.name));
    }
    let late = held.is_lost("it was cut off past its ttl").await?.saturating_sub(granted);
    if late > REPORT_DELAY {
        return broken(format!("{} reports its loss {late:?} after the next grant", subject.name));
    }
    subject.end_silence();
    held.release_lost().await?;
    next.is_held("an earlier holder is back").await?;
    next.release().await?;
    subject.acquire_again(&lock).await?.release().await
}

pub(super) const KILLED: Scenario = Scenario {
    name: "killed",
    promise: Promise::P4,
    pairs: Pairs::Next,
    needs: &[],
    play: |cast| Box::pin(killed(cast)),
};

/// A holder is killed, and a waiter dies; and a process ends whose input has ended.
async fn killed(cast: &Cast<'_>) -> Outcome {
    // What the last one holds does not become free by itself while this waits for it.
    let kept = cast.stage.record.patience * 2;
    let started = try_join(cast.fresh(SHORT), try_join(cast.fresh(SHORT), cast.fresh(kept)));
    let (holder, (waiter, ends)) = started.await?;
    let partner = cast.partner().await?;
    let [lock, other] = ["killed", "ended"].map(|name| cast.lock(name));
    let _held = holder.acquire(&lock).await?;
    let _waits = waiter.ask(&lock)?;
    cast.waiters(&lock, 1).await?;
    let next = partner.ask(&lock)?;
    cast.waiters(&lock, 2).await?;
    let _ended = ends.acquire(&other).await?;
    holder.kill()?;
    waiter.die().await?;
    ends.end().await?;
    next.granted().await?.release().await?;
    cast.is_free(&lock).await?;
    cast.is_free(&other).await
}
