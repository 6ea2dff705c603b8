//! The crowd of the raw protocol client. It sends one request that blocks all others, then the others; a
//! crowd of cached holds has no such request, and is recalled by those of other clients. Then it waits or
//! disconnects for a while; finally it lets all of them be granted, cancels them, or closes its session.

use std::collections::BTreeMap;

use lockkeeper_core::{Acquire, Command, IfBusy, LockName, Mode, Seq, SessionId};
use lockkeeper_wire::v1::{self, server_item::What};

use crate::clock::{MS, Nanos};
use crate::core::Core;
use crate::crowd::{BASE, Crowd};
use crate::raw_client::{RawClient, item};

#[derive(Clone, Copy)]
enum CrowdStage {
    Begins,
    /// The number of requests still to send.
    Sends(u64),
    /// All requests are sent; the client lets them wait until this time.
    Waits(Nanos),
    /// Each request is finished as soon as it is granted.
    Drains,
    Closes,
}

/// A request that has not ended, to the client's knowledge.
struct Live {
    acquire: Command,
    is_granted: bool,
}

pub(crate) struct CrowdClient {
    crowd: Crowd,
    stage: CrowdStage,
    live: BTreeMap<u64, Live>,
    /// Requests to be finished: to release or cancel them, or to confirm that they have ended (R3).
    over: Vec<u64>,
    away_until: Nanos,
}

impl CrowdClient {
    pub(crate) fn new(crowd: Crowd) -> Self {
        Self { crowd, stage: CrowdStage::Begins, live: BTreeMap::new(), over: Vec::new(), away_until: 0 }
    }

    pub(crate) fn is_away(&self, now: Nanos) -> bool {
        now < self.away_until
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty() && self.over.is_empty()
    }

    /// The requests that wait, to the client's knowledge. Their acquires are sent again on each new stream.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u64, Command)> {
        let waiting = self.live.iter().filter(|(_, live)| !live.is_granted);
        waiting.map(|(&seq, live)| (seq, live.acquire.clone()))
    }

    /// Adds the crowd's next commands to a frame.
    pub(crate) fn acts(
        &mut self,
        hand: &mut RawClient,
        core: &mut Core,
        session: SessionId,
        frame: &mut Vec<v1::ClientItem>,
    ) {
        match self.stage {
            CrowdStage::Closes => frame.push(item(session, Command::CloseSession { session })),
            CrowdStage::Sends(_) | CrowdStage::Waits(_) if !core.is_stormy => self.drains(false),
            CrowdStage::Begins if core.is_stormy && self.crowd.spare_tokens() > 0 => {
                self.stage = CrowdStage::Sends(self.crowd.size);
            }
            CrowdStage::Begins if core.is_stormy => {
                let is_wide = self.crowd.is_wide();
                frame.extend(self.ask(hand, session, BASE, Mode::Exclusive, is_wide, None));
                self.stage = CrowdStage::Sends(self.crowd.size);
            }
            CrowdStage::Begins => {}
            CrowdStage::Sends(left) => {
                let count = core.dice.within(left.div_ceil(4), left);
                for number in left - count..left {
                    let name = self.crowd.name(number);
                    let is_shared = self.crowd.spare_tokens() == 0 && core.dice.chance(self.crowd.shared);
                    let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
                    let is_wide = self.crowd.is_wide() && core.dice.chance(2);
                    let limited = core.dice.chance(self.crowd.limited);
                    let at_most_ms = limited.then(|| core.dice.within(50, hand.ttl() / (2 * MS)));
                    frame.extend(self.ask(hand, session, &name, mode, is_wide, at_most_ms));
                }
                self.stage = CrowdStage::Sends(left - count);
                if left == count {
                    self.stage = CrowdStage::Waits(core.now + core.dice.spread(10 * MS, 2 * hand.ttl()));
                    if core.dice.chance(self.crowd.closes) {
                        self.stage = CrowdStage::Closes;
                    } else if core.dice.chance(self.crowd.away) {
                        // Sometimes longer than the ttl: then the session expires with all its requests.
                        let ttl = hand.ttl();
                        self.away_until = core.now + core.dice.within(ttl / 2, ttl * 11 / 10);
                    }
                }
            }
            CrowdStage::Waits(until) if core.now >= until => self.drains(core.dice.chance(40)),
            CrowdStage::Waits(_) | CrowdStage::Drains => {}
        }
        self.finishes(hand, session, frame);
        if matches!(self.stage, CrowdStage::Drains) && self.live.is_empty() {
            self.stage = CrowdStage::Begins;
        }
    }

    /// Schedules a finish for the first request and for granted ones, so that the others are granted, or for
    /// all requests at once.
    fn drains(&mut self, at_once: bool) {
        self.stage = CrowdStage::Drains;
        let first = self.live.first_key_value().map(|(&seq, _)| seq);
        let over = self.live.iter().filter(|&(&seq, it)| at_once || it.is_granted || Some(seq) == first);
        self.over.extend(over.map(|(&seq, _)| seq));
    }

    fn ask(
        &mut self,
        hand: &mut RawClient,
        session: SessionId,
        name: &str,
        mode: Mode,
        subtree: bool,
        at_most_ms: Option<u64>,
    ) -> Option<v1::ClientItem> {
        let (seq, done_through) = (Seq(hand.next_seq()), hand.done_through());
        let acquire = Command::Acquire(Acquire {
            session,
            seq,
            done_through,
            names: vec![LockName::parse(name).ok()?],
            mode,
            subtree,
            if_busy: IfBusy::Wait { at_most_ms, waiters_max: None },
            keep_closed_ms: 0,
            value: Box::default(),
            meta: Box::default(),
            spare_tokens: self.crowd.spare_tokens(),
            holding: Box::default(),
        });
        self.live.insert(seq.0, Live { acquire: acquire.clone(), is_granted: false });
        Some(hand.say(session, acquire))
    }

    /// Handles a reply to a request of the crowd.
    pub(crate) fn hears(&mut self, seq: u64, what: &What) {
        match what {
            What::Granted(_) => {
                let Some(live) = self.live.get_mut(&seq) else { return };
                let is_news = !std::mem::replace(&mut live.is_granted, true);
                if is_news && matches!(self.stage, CrowdStage::Drains) {
                    self.over.push(seq);
                }
            }
            What::Recalled(_) => self.over.push(seq),
            What::Attached(v1::Attached { recalled, .. })
            | What::KeptAlive(v1::KeptAlive { recalled, .. }) => {
                self.over.extend(recalled);
            }
            What::Busy(_) | What::Finished(_) | What::Ended(_) | What::Revoked(_) | What::Refused(_)
                if self.live.contains_key(&seq) =>
            {
                self.over.push(seq);
            }
            _ => {}
        }
    }

    /// Adds the finishes of all requests in `over` to a frame.
    pub(crate) fn finishes(
        &mut self,
        hand: &mut RawClient,
        session: SessionId,
        frame: &mut Vec<v1::ClientItem>,
    ) {
        for target in std::mem::take(&mut self.over) {
            if self.live.remove(&target).is_some() {
                let (seq, target) = (Seq(hand.next_seq()), Seq(target));
                let done_through = hand.done_through();
                frame.push(hand.say(session, Command::Finish { session, seq, target, done_through }));
            }
        }
    }
}
