//! Attempts to acquire: rounds over all nodes, of which a majority must grant.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_backend::leased::{Attempt, Renewed, Tried};
use lockkeeper_backend::{CallError, Granted};
use tokio::time::{Instant, sleep, timeout_at};

use super::claim::Claim;
use super::store::{Quorum, run_in_background};
use super::tally::{NodeReply, Tally, Verdict};

/// Maximum number of rounds of an acquire that does not wait, while rivals split the nodes so that none has a
/// majority.
const SPLIT_ROUNDS: u32 = 3;
/// The random pause between these rounds, in milliseconds.
const SPLIT_PAUSE_MS: std::ops::Range<u64> = 10..60;
/// The answer to an attempt of a request that is over.
const OVER: CallError = CallError::IN_DOUBT;

impl Quorum {
    pub(super) async fn attempt(self: &Arc<Self>, attempt: Attempt) -> Result<Tried, CallError> {
        let claim = self.claims.get_or_insert(&attempt.entry, self.nodes.len(), (self.now)());
        let mut dropped = EndOnDrop { quorum: self, claim: claim.ok_or(OVER)?, is_done: false };
        let tried = self.attempt_claim(&dropped.claim, attempt).await;
        dropped.is_done = true;
        tried
    }

    async fn attempt_claim(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        attempt: Attempt,
    ) -> Result<Tried, CallError> {
        let _one_at_a_time = claim.attempt.lock().await;
        let started = Instant::now();
        let mut rounds = 0;
        loop {
            rounds += 1;
            let Some((verdict, tally)) = self.round(claim, &attempt).await else {
                return self.check(claim).await;
            };
            match verdict {
                Verdict::Won => return Ok(Tried::Granted(Granted::default())),
                Verdict::Taken if attempt.wait => {
                    return Ok(Tried::Waits { ahead: tally.ahead(), again: claim.next_pause() });
                }
                Verdict::Taken
                    if tally.is_split()
                        && rounds < SPLIT_ROUNDS
                        && started.elapsed() < claim.attempt_limit() =>
                {
                    sleep(Duration::from_millis(fastrand::u64(SPLIT_PAUSE_MS))).await;
                }
                Verdict::Taken => {
                    self.end(claim);
                    return Ok(Tried::Busy(tally.busy()));
                }
                Verdict::Refused => {
                    // Entries of earlier attempts stay: the session keeps or ends them.
                    if attempt.first {
                        self.end(claim);
                    }
                    return Ok(Tried::Refused(tally.refusal(&self.names())));
                }
                Verdict::Late | Verdict::Open | Verdict::Unreachable => {
                    return Err(CallError::new(tally.in_doubt()));
                }
            }
        }
    }

    /// A repeated attempt of a claim that holds or is over: checks the hold by a renewal, which creates
    /// nothing.
    async fn check(self: &Arc<Self>, claim: &Claim) -> Result<Tried, CallError> {
        match self.renew(std::slice::from_ref(&claim.entry)).await?[..] {
            [Renewed::Kept] => Ok(Tried::Granted(Granted::default())),
            _ => Err(OVER),
        }
    }

    /// Makes one attempt on every node, and applies the outcome. `None`: the claim holds already or is over.
    async fn round(self: &Arc<Self>, claim: &Arc<Claim>, attempt: &Attempt) -> Option<(Verdict, Tally)> {
        let round = claim.begin_round((self.now)())?;
        let call =
            |index| NodeAttempt { quorum: self.clone(), claim: claim.clone(), index, round, reply: None };
        let calls = (0..self.nodes.len()).map(|index| call(index).run(attempt.clone()));
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut tally = Tally::new(self.nodes.len(), self.majority);
        // A grant and `Taken` are returned as soon as they are certain. An error lists every node's reply, so
        // it waits for all.
        while !matches!(tally.verdict(), Verdict::Won | Verdict::Taken)
            && let Some((index, reply)) = calls.next().await
        {
            tally.add(index, reply);
        }
        run_in_background(calls);
        let mut verdict = tally.verdict();
        let removals = match verdict {
            Verdict::Won => claim.win(round, (self.now)()).unwrap_or_else(|late| {
                verdict = Verdict::Late;
                late
            }),
            _ => claim.lose(round),
        };
        self.remove_in_background(claim, removals);
        if verdict == Verdict::Won {
            self.set_trouble(None);
        } else if verdict == Verdict::Unreachable && !claim.is_ending() {
            let says = tally.describe(&self.names());
            tracing::debug!(name = %claim.entry.name, "no majority of {} nodes answers: {says}", self.nodes.len());
            let (majority, nodes) = (self.majority, self.nodes.len());
            self.set_trouble(Some(format!("{majority} of {nodes} nodes must grant it ({says})")));
        }
        Some((verdict, tally))
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }
}

/// Ends the claim of an attempt that is dropped, because its runtime ends.
struct EndOnDrop<'a> {
    quorum: &'a Arc<Quorum>,
    claim: Arc<Claim>,
    is_done: bool,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.quorum.end(&self.claim);
        }
    }
}

/// An attempt on one node. When it is dropped, its reply is recorded. If there is none yet, the attempt
/// counts as sent and not answered.
struct NodeAttempt {
    quorum: Arc<Quorum>,
    claim: Arc<Claim>,
    index: usize,
    round: u64,
    reply: Option<NodeReply>,
}

impl NodeAttempt {
    async fn run(mut self, attempt: Attempt) -> (usize, NodeReply) {
        let reply = self.ask(attempt).await;
        (self.index, self.reply.insert(reply).clone())
    }

    async fn ask(&self, attempt: Attempt) -> NodeReply {
        let not_asked = |why: &str| NodeReply::Failed { sent: false, why: format!("not asked: {why}") };
        let node = &self.quorum.nodes[self.index];
        if node.unanswered.available_permits() == 0 {
            return not_asked("it has not answered to earlier calls");
        }
        let limit = self.claim.attempt_limit();
        let deadline = Instant::now() + limit;
        let (entry, first) =
            match timeout_at(deadline, self.claim.begin_attempt(self.index, self.round)).await {
                Ok(Some(began)) => began,
                Ok(None) => return not_asked("the outcome was certain"),
                Err(_) => return not_asked("it has not yet taken back an earlier try"),
            };
        let store = node.store.clone();
        let mut call = Box::pin(async move { store.attempt(Attempt { entry, first, ..attempt }).await });
        match timeout_at(deadline, &mut call).await {
            Ok(Ok(Tried::Granted(_))) => NodeReply::Granted,
            Ok(Ok(Tried::Busy(busy))) => NodeReply::Busy(busy),
            Ok(Ok(Tried::Waits { ahead, .. })) => NodeReply::Waits { ahead },
            Ok(Ok(Tried::Refused(error))) => NodeReply::Refused(error),
            Ok(Err(error)) => NodeReply::Failed { sent: error.sent, why: node.why(&error) },
            Err(_) => {
                // The call continues in the background, to the store's own, longer limit, at which the store
                // checks its connection.
                tokio::spawn(call);
                NodeReply::Failed { sent: true, why: format!("no answer within {limit:?}") }
            }
        }
    }
}

impl Drop for NodeAttempt {
    fn drop(&mut self) {
        let none = NodeReply::Failed { sent: true, why: String::new() };
        let reply = self.reply.as_ref().unwrap_or(&none);
        if self.claim.record_reply(self.index, self.round, reply) {
            self.quorum.remove_in_background(&self.claim, vec![self.index]);
        }
    }
}
