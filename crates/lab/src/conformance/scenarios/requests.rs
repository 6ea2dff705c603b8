//! Requests: lost calls and answers, cancelled ones, unknown outcomes, bad input. P7, P11, P12.

use std::time::Duration;

use serde_json::json;

use super::{Need, Pairs, Scenario};
use crate::conformance::protocol::{DriverCommand, ErrorKind, Was};
use crate::conformance::stage::{Actor, Cast, LONG, SHORT};
use crate::conformance::{Outcome, Promise, ScenarioError, broken};

pub(super) const LOST_ANSWERS: Scenario = Scenario {
    name: "lost calls and answers",
    promise: Promise::P7,
    pairs: Pairs::Next,
    needs: &[Need::Cluster],
    play: |cast| Box::pin(lost_answers(cast)),
};

async fn lost_answers(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.fresh(LONG).await?, cast.partner().await?);
    let lock = cast.lock("lost");
    for lose in [Actor::lose_call, Actor::lose_answer] {
        for _ in 0..5 {
            lose(&subject);
            let held = subject.acquire(&lock).await?;
            cast.holders(&lock, 1).await?;
            let waits = partner.ask(&lock)?;
            lose(&subject);
            let release = held.begin_release()?;
            match held.end_release(release).await? {
                Ok(Was::Held) | Err(ErrorKind::Unreachable) => {}
                other => return broken(format!("{} answers {other:?} to a release", subject.name)),
            }
            waits.granted().await?.release().await?;
        }
    }
    // A waiter keeps its place, and a holder its hold, if their connections are closed.
    let held = partner.acquire(&lock).await?;
    let waits = subject.ask(&lock)?;
    cast.waiters(&lock, 1).await?;
    subject.close_connections();
    held.release().await?;
    let held = waits.granted().await?;
    subject.close_connections();
    held.is_held("its connections were closed").await?;
    held.release().await?;
    cast.is_free(&lock).await
}

pub(super) const CANCELLED: Scenario = Scenario {
    name: "cancelled at random moments",
    promise: Promise::P7,
    pairs: Pairs::Next,
    needs: &[],
    play: |cast| Box::pin(cancelled(cast)),
};

/// 100 acquires are abandoned while they are sent, wait, or are granted; nothing may be left of them.
async fn cancelled(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.subject().await?, cast.partner().await?);
    let lock = cast.lock("cancelled");
    // Knuth's generator: a plain sequence that covers the interval.
    let mut random = 1_u64;
    for round in 0..100 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let held = partner.acquire(&lock).await?;
        let asked = subject.ask(&lock)?;
        let release = (round % 2 == 0).then(|| held.begin_release()).transpose()?;
        tokio::time::sleep(Duration::from_micros((random >> 33) % 3_000)).await;
        asked.cancel().await?;
        match asked.answer().await? {
            Ok(granted) => granted.release().await?,
            Err(error) if error.kind == ErrorKind::Cancelled => {}
            Err(error) => return broken(format!("{} answers {error:?} to a cancel", subject.name)),
        }
        match release {
            Some(release) => drop(held.end_release(release).await?),
            None => held.release().await?,
        }
    }
    cast.is_free(&lock).await
}

pub(super) const UNKNOWN: Scenario = Scenario {
    name: "an unknown outcome",
    promise: Promise::P12,
    pairs: Pairs::Next,
    needs: &[Need::Cluster],
    play: |cast| Box::pin(unknown(cast)),
};

/// While the service can't be reached, no acquire may say that the lock is not free.
async fn unknown(cast: &Cast<'_>) -> Outcome {
    let subject = cast.fresh(SHORT).await?;
    let lock = cast.lock("unknown");
    subject.acquire(&lock).await?.release().await?;
    subject.silence();
    let unknown = [ErrorKind::Unreachable, ErrorKind::Lost];
    let (tries, waits) = (subject.ask(&lock.clone().wait(0))?, subject.ask(&lock.clone().wait(1_000))?);
    tries.refused(&unknown).await?;
    waits.refused(&unknown).await?;
    subject.end_silence();
    cast.is_free(&lock).await?;
    subject.acquire_again(&lock).await?.release().await
}

pub(super) const UNSEEN: Scenario = Scenario {
    name: "granted while it was cut off",
    promise: Promise::P12,
    pairs: Pairs::Next,
    needs: &[Need::Cluster],
    play: |cast| Box::pin(unseen(cast)),
};

/// A waiter is cut off, and then granted. When its limit ends, it may not say that the lock was not free.
async fn unseen(cast: &Cast<'_>) -> Outcome {
    let (subject, partner) = (cast.fresh(SHORT * 2).await?, cast.partner().await?);
    let lock = cast.lock("unseen");
    let held = partner.acquire(&lock).await?;
    let waits = subject.ask(&lock.clone().wait(2_000))?;
    let slow =
        || Err(ScenarioError::LeftOut("the machine is slow: a limit of 2 s ended too early".to_owned()));
    if let Err(error) = cast.waiters(&lock, 1).await {
        return if waits.waits() { Err(error) } else { slow() };
    }
    subject.silence();
    held.release().await?;
    cast.waiters(&lock, 0).await?;
    if !cast.has_holder(&lock).await {
        return slow();
    }
    waits.refused(&[ErrorKind::Unreachable, ErrorKind::Lost]).await?;
    subject.end_silence();
    cast.is_free(&lock).await?;
    subject.acquire_again(&lock).await?.release().await
}

pub(super) const BAD_INPUT: Scenario = Scenario {
    name: "bad input",
    promise: Promise::P11,
    pairs: Pairs::Next,
    needs: &[Need::Own],
    play: |cast| Box::pin(bad_input(cast)),
};

async fn bad_input(cast: &Cast<'_>) -> Outcome {
    let (subject, url) = cast.unconnected().await?;
    let lock = cast.lock("input");
    let refused = async |command: DriverCommand| match subject.call(command.clone()).await? {
        Err(error) if error.kind == ErrorKind::Refused => Ok(()),
        other => broken(format!("{} answers {other:?} to {command:?}", subject.name)),
    };
    subject.ask(&lock)?.refused(&[ErrorKind::Refused]).await?;
    for (url, ttl) in [("nothing", SHORT), (url.as_str(), Duration::from_millis(10))] {
        match subject.connect(url, ttl).await? {
            Err(error) if error.kind == ErrorKind::Refused => {}
            other => return broken(format!("{} answers {other:?} to {url} with ttl {ttl:?}", subject.name)),
        }
    }
    if let Err(error) = subject.connect(&url, SHORT).await? {
        return broken(format!("{} can't connect after a refused one: {error:?}", subject.name));
    }
    refused(DriverCommand::Connect { url: url.clone(), ttl_ms: 2_000, label: None }).await?;
    refused(DriverCommand::Check { hold: "nothing".to_owned() }).await?;
    refused(DriverCommand::Release { hold: "nothing".to_owned() }).await?;
    for (refusals, line) in [json!("no object").to_string(), "no JSON".to_owned()].iter().enumerate() {
        subject.write(line)?;
        subject.refusals(refusals + 1).await?;
    }
    let names = ["", "a//b", "a\nb"].map(str::to_owned).into_iter().chain(["a".repeat(513)]);
    for name in names {
        subject.ask(&lock.clone().named(name))?.refused(&[ErrorKind::Refused]).await?;
    }
    subject.ask(&lock.clone().permits(0))?.refused(&[ErrorKind::Refused]).await?;
    // Nothing of it is left, and it works.
    subject.acquire(&lock).await?.release().await?;
    cast.is_free(&lock).await
}
