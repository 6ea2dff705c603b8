//! The plan of a row: which faults, at whom, for how long. It follows from the seed alone, and is the same
//! for all rows; a row leaves out what its service can't stand or does not have.

use std::time::Duration;

use super::rows::ComparedRow;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strike {
    /// SIGSTOP of a holder in its section, for longer than the ttl.
    Stop,
    /// The same, until the next holder is in its section.
    StopUntilNext,
    /// `kill -9` of a holder in its section.
    Kill,
    /// A holder whose section outlasts the ttl is cut off from the service.
    Cut,
    /// SIGSTOP of a server.
    ServerStop,
    /// `kill -9` of a server, which is started again.
    ServerKill,
    /// The leader is cut off from everyone.
    ServerCut,
    /// As `ServerStop`, while a holder is in a section that lasts longer.
    ServerStopHeld,
    /// As `ServerKill`, while a holder is in a section that lasts longer.
    ServerKillHeld,
    /// The primary is killed before its replica has got the latest grant, and the replica takes over while
    /// that holder is in its section.
    FailOver,
}

/// Each of them once a round.
const ROUND: [Strike; 12] = [
    Strike::Stop,
    Strike::StopUntilNext,
    Strike::StopUntilNext,
    Strike::StopUntilNext,
    Strike::Kill,
    Strike::Cut,
    Strike::ServerStop,
    Strike::ServerKill,
    Strike::ServerCut,
    Strike::ServerStopHeld,
    Strike::ServerKillHeld,
    Strike::FailOver,
];

impl Strike {
    /// As in histories.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopUntilNext => "stop-until-next",
            Self::Kill => "kill",
            Self::Cut => "cut",
            Self::ServerStop => "server-stop",
            Self::ServerKill => "server-kill",
            Self::ServerCut => "server-cut",
            Self::ServerStopHeld => "server-stop-held",
            Self::ServerKillHeld => "server-kill-held",
            Self::FailOver => "server-fail-over",
        }
    }

    fn is_for(self, row: &ComparedRow) -> bool {
        match self {
            Self::ServerCut => row.on == "own-3",
            // The stand-in for DynamoDB keeps its tables in memory.
            Self::ServerKill | Self::ServerKillHeld => !["dynamodb", "fail-over"].contains(&row.on),
            Self::FailOver => row.on == "fail-over",
            _ => true,
        }
    }
}

/// A fault of the plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlannedStrike {
    pub(crate) strike: Strike,
    /// Selects among several victims.
    pub(crate) pick: usize,
    /// How much longer than the ttl.
    pub(crate) beyond: Duration,
    /// The pause after it.
    pub(crate) then: Duration,
    /// After the next holder has begun, for [`Strike::StopUntilNext`].
    pub(crate) late: Duration,
}

/// An endless sequence of faults.
pub(crate) struct StrikePlan {
    random: fastrand::Rng,
    round: Vec<Strike>,
}

impl StrikePlan {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), round: Vec::new() }
    }

    /// The next fault for a row.
    pub(crate) fn next_for(&mut self, row: &ComparedRow) -> PlannedStrike {
        loop {
            let planned = self.planned();
            if planned.strike.is_for(row) {
                return planned;
            }
        }
    }

    fn planned(&mut self) -> PlannedStrike {
        if self.round.is_empty() {
            self.round = ROUND.to_vec();
            self.random.shuffle(&mut self.round);
        }
        let strike = self.round.pop().unwrap_or(Strike::Stop);
        let mut between = |low, high| Duration::from_millis(self.random.u64(low..=high));
        let (beyond, then, late) = (between(500, 1000), between(200, 600), between(0, 25));
        PlannedStrike { strike, pick: self.random.usize(..), beyond, then, late }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows::{ROWS, rows};

    #[test]
    fn plan_follows_from_the_seed_and_each_row_has_its_part_of_it() {
        let row = rows(&["own-3".into()]).unwrap()[0];
        let plan = |seed| {
            let mut plan = StrikePlan::new(seed);
            (0..50).map(|_| plan.next_for(row)).collect::<Vec<_>>()
        };
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        let mut whole = StrikePlan::new(7);
        let whole: Vec<_> = (0..200).map(|_| whole.planned()).collect();
        for row in &ROWS {
            let mut plan = StrikePlan::new(7);
            let of_row = whole.iter().filter(|it| it.strike.is_for(row)).take(50);
            assert!(of_row.cloned().eq((0..50).map(|_| plan.next_for(row))), "{}", row.name);
        }
    }

    #[test]
    fn a_server_without_a_disk_is_not_killed_and_only_a_replicated_one_fails_over() {
        let has = |name: &str, strike: Strike| strike.is_for(rows(&[name.into()]).unwrap()[0]);
        assert!(!has("dynamodb-ours", Strike::ServerKill) && has("etcd-go", Strike::ServerKill));
        assert!(has("failover-ours", Strike::FailOver) && !has("redis-py", Strike::FailOver));
    }
}
