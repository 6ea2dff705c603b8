//! The scenario of a seed: cluster, clients, workload and faults. Each seed omits some kinds of faults, so
//! that frequent kinds do not hide the effects of others.

use std::time::Duration;

use lockkeeper::simulation::Spec;
use lockkeeper_core::LockName;
use lockkeeper_replica::TAIL_BYTES;

use crate::clock::{DRIFT_PPM_MAX, MS, Nanos, SECOND};
use crate::crowd::{BASE, Budgets, Crowd};
use crate::rng::Rng;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    NodeCrash,
    NodeStall,
    /// The event loop runs, but does not read the clients' sockets.
    ReadStall,
    FailedSync,
    SlowDisk,
    /// One node is cut off from all others, in both directions.
    Partition,
    /// Traffic from one node to another is held back; the other direction is open.
    OneWay,
    /// A connection between two nodes breaks.
    PeerBreak,
    /// The leader is paused for a while, or crashes.
    LeaderStall,
    LeaderCrash,
    /// The leader is asked to transfer its leadership.
    Transfer,
    /// All nodes are restarted, one after another.
    Rolling,
    StreamBreak,
    /// A node closes a stream.
    HangUp,
    /// All packets between a client and its node are delayed for a while.
    Delay,
    ClientPause,
    ClientCrash,
    ClockDrift,
    Operator,
    /// Frames sent on a stream are replayed later on another stream.
    Ghost,
    /// A node loses a vote that it has granted, because power fails during the write.
    LostVote,
    /// A leader is paused between sending a quorum read and receiving its acknowledgements.
    RoundInFlight,
    /// A leader crashes soon after an operator has broken a hold.
    BreakAndCrash,
    /// Keep-alives arrive around the time when their session expires.
    JustLate,
    /// A node loses its disk.
    DiskLost,
    /// A node loses its disk while another one lags, and the leader crashes.
    WipedVoter,
    /// Two of three nodes are removed and do not learn of it.
    TwoRemovals,
    /// A leadership transfer to a node that is cut off: nothing can be proposed until the leader gives the
    /// transfer up.
    StuckTransfer,
    /// A stream breaks, and one side detects it before the other.
    Outage,
}

/// Fault sequences that independent random faults would almost never produce. A sequence that is listed
/// several times is chosen more often.
const CHAINS: [Fault; 15] = [
    Fault::LostVote,
    Fault::LostVote,
    Fault::RoundInFlight,
    Fault::RoundInFlight,
    Fault::RoundInFlight,
    Fault::RoundInFlight,
    Fault::BreakAndCrash,
    Fault::BreakAndCrash,
    Fault::JustLate,
    Fault::StuckTransfer,
    Fault::Outage,
    Fault::Outage,
    Fault::WipedVoter,
    Fault::TwoRemovals,
    Fault::TwoRemovals,
];

const FAULTS: [Fault; 21] = [
    Fault::NodeCrash,
    Fault::NodeStall,
    Fault::ReadStall,
    Fault::FailedSync,
    Fault::SlowDisk,
    Fault::Partition,
    Fault::OneWay,
    Fault::PeerBreak,
    Fault::LeaderStall,
    Fault::LeaderCrash,
    Fault::Transfer,
    Fault::Rolling,
    Fault::DiskLost,
    Fault::StreamBreak,
    Fault::HangUp,
    Fault::Delay,
    Fault::ClientPause,
    Fault::ClientCrash,
    Fault::ClockDrift,
    Fault::Operator,
    Fault::Ghost,
];

impl Fault {
    /// Whether the fault needs more than one node.
    fn takes_others(self) -> bool {
        matches!(
            self,
            Self::Partition
                | Self::OneWay
                | Self::PeerBreak
                | Self::LeaderStall
                | Self::LeaderCrash
                | Self::Transfer
                | Self::Rolling
        )
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// How many of the bootstrap nodes, counted from the lowest id, run an older binary, which does not
    /// support the newest rules version.
    pub(crate) old: u64,
    /// Probability that an idle operator starts to add or remove a node at one `Happening::OperatorActs`, in
    /// percent.
    pub(crate) changes: u64,
    pub(crate) nodes: u64,
    pub(crate) clients: usize,
    /// The sessions of every client, one for each spec.
    pub(crate) specs: Vec<Spec>,
    pub(crate) ttl_max: Nanos,
    pub(crate) names: Vec<LockName>,
    /// The time at which faults end.
    pub(crate) safety: Nanos,
    pub(crate) faults: Vec<Fault>,
    /// Sets the pauses between two faults: each is random, between an eighth of this and twice this.
    pub(crate) fault_every: Nanos,
    /// A node takes a snapshot once its log has grown by this many bytes since the last one.
    pub(crate) snapshot_after: u64,
    /// Size of the applied entries that a leader keeps in memory for lagging followers, in bytes.
    pub(crate) tail_bytes: usize,
    pub(crate) drift: i64,
    pub(crate) latency: (Nanos, Nanos),
    /// Latency between nodes.
    pub(crate) peer_latency: (Nanos, Nanos),
    /// Duration of a log write on a disk that is not slow: least and most.
    pub(crate) disk: (Nanos, Nanos),
    /// Longest pause of a caller between two jobs.
    pub(crate) idle_max: Nanos,
    /// Duration of a step of a job that holds its lock: least and most.
    pub(crate) work: (Nanos, Nanos),
    /// Share of jobs in mode `shared`, in percent; `permits` and `subtree` likewise. `drops` is the share of
    /// jobs whose caller drops its future if the request still waits after a random time.
    pub(crate) shared: u64,
    pub(crate) permits: u64,
    pub(crate) subtree: u64,
    pub(crate) drops: u64,
    /// Share of exclusive jobs that may cache their holds, in percent.
    pub(crate) caches: u64,
    pub(crate) permit_limit: u32,
    pub(crate) concurrency: u64,
    /// Whether the raw protocol client takes part.
    pub(crate) has_hand: bool,
    /// Whether the raw protocol client also makes calls.
    pub(crate) has_calls: bool,
    /// The requests that the raw protocol client queues, if any.
    pub(crate) crowd: Option<Crowd>,
    pub(crate) budgets: Budgets,
}

impl Scenario {
    pub(crate) fn roll(dice: &mut Rng) -> Self {
        let ttl = dice.pick(&[1_000, 1_000, 1_000, 1_500, 1_500, 3_000, 9_000]) * MS;
        let nodes = dice.pick(&[1, 3, 3, 3, 5]);
        // Some scenarios inject one fault sequence repeatedly, and few other faults.
        let chain = (nodes > 1 && dice.chance(50)).then(|| dice.pick(&CHAINS));
        let lingers = dice.chance(if chain == Some(Fault::Outage) { 70 } else { 40 });
        let lock_delay = if dice.chance(25) { dice.spread(20 * MS, ttl) } else { 0 };
        let spec = |ttl: Nanos, linger: Nanos, lock_delay: Nanos| Spec {
            ttl: Some(Duration::from_millis(ttl / MS)),
            lock_delay: Duration::from_millis(lock_delay / MS),
            linger: Duration::from_millis(linger / MS),
            renew: true,
        };
        let linger = if lingers { dice.spread(50 * MS, ttl) } else { 0 };
        let mut specs = vec![spec(ttl, linger, lock_delay)];
        let second = ttl * dice.within(1, 3);
        if dice.chance(40) {
            specs.push(spec(second, 0, 0));
        }
        let ttl_max = if specs.len() > 1 { second } else { ttl };
        let mut faults: Vec<Fault> = FAULTS.into_iter().filter(|_| dice.chance(35)).collect();
        faults.retain(|fault| nodes > 1 || !fault.takes_others());
        if dice.chance(8) {
            faults.clear();
        }
        if let Some(chain) = chain {
            faults.retain(|_| dice.chance(15));
            faults.extend([chain; 4]);
        }
        let fault_every =
            if chain.is_some() { dice.spread(ttl / 2, 2 * ttl) } else { dice.spread(ttl / 8, 4 * ttl) };
        let names = ["a", "a/b", "a/b/c", "d"];
        let count = dice.within(1, names.len() as u64) as usize;
        let names = names.iter().take(count).filter_map(|name| name.parse().ok()).collect();
        // In some scenarios all nodes are on one fast network with fast disks. There a batch is often
        // committed within the time for which a leader delays its next batch (`HOLD` in `propose.rs` of
        // lockkeeper-replica), so the leader keeps delaying batches.
        let is_near = dice.chance(25);
        let some = dice.within(0, nodes);
        let (old, changes) = (dice.pick(&[0, 0, 0, nodes, some]), dice.pick(&[0, 0, 2, 10, 30]));
        Self {
            old,
            // A membership change would interfere with the fault sequence.
            changes: if chain.is_some() { 0 } else { changes },
            nodes,
            clients: dice.within(2, 5) as usize,
            specs,
            ttl_max,
            names,
            safety: ttl * dice.within(8, 20) + 5 * SECOND,
            faults,
            fault_every,
            snapshot_after: dice.pick(&[4_000, 16_000, 40_000, 400_000, u64::MAX]),
            tail_bytes: dice.pick(&[200, 2_000, TAIL_BYTES]),
            drift: dice.pick(&[0, DRIFT_PPM_MAX, DRIFT_PPM_MAX]),
            latency: (dice.spread(20_000, MS), dice.spread(MS, 30 * MS)),
            peer_latency: if is_near {
                (20_000, 400_000)
            } else {
                (dice.spread(20_000, MS), dice.spread(MS, 20 * MS))
            },
            disk: if is_near { (50_000, 300_000) } else { (80_000, MS) },
            work: match chain {
                Some(Fault::BreakAndCrash) => (ttl, 5 * ttl),
                Some(Fault::Outage) => (ttl / 8, 3 * ttl),
                _ => (MS, ttl),
            },
            idle_max: dice.spread(5 * MS, ttl),
            shared: dice.pick(&[0, 0, 20, 50]),
            permits: dice.pick(&[0, 0, 0, 30, 100]),
            subtree: dice.pick(&[0, 0, 25]),
            drops: dice.pick(&[0, 10, 40]),
            caches: 0,
            permit_limit: dice.within(1, 3) as u32,
            concurrency: dice.within(1, 3),
            has_hand: dice.chance(50) || chain == Some(Fault::JustLate),
            has_calls: false,
            crowd: None,
            budgets: Budgets::roll(dice, None),
        }
    }

    /// Adds a crowd (hundreds of requests queued by one client) to some seeds, calls to some others, and
    /// caching clients to half of them. `dice` is another RNG than that of [`Self::roll`], so that the
    /// choices made there do not depend on these.
    pub(crate) fn with_additions(mut self, dice: &mut Rng) -> Self {
        self.crowd = Crowd::roll(dice);
        self.budgets = Budgets::roll(dice, self.crowd.as_ref());
        self.has_calls = self.has_hand && self.crowd.is_none() && dice.chance(50);
        if self.crowd.is_some() {
            self.has_hand = true;
            self.names.extend(BASE.parse());
            if self.crowd.as_ref().is_some_and(|crowd| crowd.spare_tokens() > 0) {
                self.subtree = 50;
            }
            let moves = [Fault::Transfer, Fault::LeaderCrash, Fault::LeaderStall, Fault::Rolling];
            self.faults.extend(moves.into_iter().filter(|_| self.nodes > 1));
            self.faults.extend([Fault::NodeCrash, Fault::StreamBreak]);
        }
        self.caches = dice.pick(&[0, 0, 50, 100]);
        self
    }
}
