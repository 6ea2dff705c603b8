//! The plan of a run: which faults, at whom, for how long. It follows from the seed alone.

use std::time::Duration;

/// Whom a fault hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    /// The node that leads when the fault begins; a service of others.
    Leader,
    /// One of the other nodes.
    Follower,
    /// A worker.
    Worker,
    /// The gate in front of a service over HTTP.
    Gate,
}

impl Victim {
    fn word(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Worker => "worker",
            Self::Gate => "gate",
        }
    }
}

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// `kill -9`; started again when the fault ends.
    Kill(Victim),
    /// SIGSTOP, then SIGCONT.
    Stop(Victim),
    /// Nothing reaches or leaves it.
    Cut(Victim),
    /// Packets from the leader to a follower vanish, or those in the other direction.
    OneWay,
    /// The leader and some workers are on one side, all others on the other.
    Halves,
    /// A share of all packets vanishes.
    Loss,
    /// The leader's link is slow, and full.
    SlowLink,
    /// The wall clock of the leader is an hour off.
    Clock,
    /// The wall clock of the leader runs ten times as fast, or backward.
    Drift,
    /// Each sync of the leader's disk takes 200 ms longer.
    SlowDisk,
    /// The syncs of a node's disk fail.
    FailingDisk,
    /// A node's disk is full.
    FullDisk,
    /// The disk of a node loses its power, and with it what was not synced. Only if it is asked for by name:
    /// nodes need slower disks for it.
    Power,
    /// A node is removed, and a new one joins in its place.
    Member,
    /// The leader hands over.
    Transfer,
    /// All nodes are restarted by SIGTERM, one after the other.
    Rolling,
    /// The same, and each is another release afterwards. Only if there is another one.
    Upgrade,
    /// The authority of all certificates is exchanged. Only if it is asked for by name: nodes and clients use
    /// TLS then.
    Certificates,
    /// All nodes are killed at once.
    All,
}

/// All kinds.
pub(crate) const KINDS: [FaultKind; 28] = [
    FaultKind::Kill(Victim::Leader),
    FaultKind::Kill(Victim::Follower),
    FaultKind::Kill(Victim::Worker),
    FaultKind::Kill(Victim::Gate),
    FaultKind::Stop(Victim::Leader),
    FaultKind::Stop(Victim::Follower),
    FaultKind::Stop(Victim::Worker),
    FaultKind::Stop(Victim::Gate),
    FaultKind::Cut(Victim::Leader),
    FaultKind::Cut(Victim::Follower),
    FaultKind::Cut(Victim::Worker),
    FaultKind::Cut(Victim::Gate),
    FaultKind::OneWay,
    FaultKind::Halves,
    FaultKind::Loss,
    FaultKind::SlowLink,
    FaultKind::Clock,
    FaultKind::Drift,
    FaultKind::SlowDisk,
    FaultKind::FailingDisk,
    FaultKind::FullDisk,
    FaultKind::Power,
    FaultKind::Member,
    FaultKind::Transfer,
    FaultKind::Rolling,
    FaultKind::Upgrade,
    FaultKind::Certificates,
    FaultKind::All,
];

impl FaultKind {
    /// As in options, histories and reports.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Kill(victim) => format!("kill-{}", victim.word()),
            Self::Stop(victim) => format!("stop-{}", victim.word()),
            Self::Cut(victim) => format!("cut-{}", victim.word()),
            Self::OneWay => "one-way".into(),
            Self::Halves => "halves".into(),
            Self::Loss => "loss".into(),
            Self::SlowLink => "slow-link".into(),
            Self::Clock => "clock".into(),
            Self::Drift => "drift".into(),
            Self::SlowDisk => "slow-disk".into(),
            Self::FailingDisk => "failing-disk".into(),
            Self::FullDisk => "full-disk".into(),
            Self::Power => "power".into(),
            Self::Member => "member".into(),
            Self::Transfer => "transfer".into(),
            Self::Rolling => "rolling".into(),
            Self::Upgrade => "upgrade".into(),
            Self::Certificates => "certificates".into(),
            Self::All => "all".into(),
        }
    }
}

/// A fault of the plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// Selects among several victims or directions.
    pub(crate) pick: usize,
    pub(crate) lasts: Duration,
    /// The pause after it.
    pub(crate) then: Duration,
}

/// An endless sequence of faults.
pub(crate) struct Plan {
    random: fastrand::Rng,
    kinds: Vec<FaultKind>,
}

impl Plan {
    /// The plan of a seed, with these kinds of faults.
    pub(crate) fn new(seed: u64, kinds: Vec<FaultKind>) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), kinds }
    }
}

impl Iterator for Plan {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let kind = *self.random.choice(&self.kinds)?;
        let mut between = |low, high| Duration::from_millis(self.random.u64(low..=high));
        let (lasts, then) = (between(200, 4000), between(200, 3000));
        Some(Fault { kind, pick: self.random.usize(..), lasts, then })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_follows_from_the_seed() {
        let plan = |seed| Plan::new(seed, KINDS.to_vec()).take(200).collect::<Vec<_>>();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn names_are_unique_and_each_kind_is_planned() {
        let mut names: Vec<_> = KINDS.iter().map(|kind| kind.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
        let mut planned: Vec<_> = Plan::new(1, KINDS.to_vec()).take(1000).map(|it| it.kind.name()).collect();
        planned.sort();
        planned.dedup();
        assert_eq!(planned, names);
    }
}
