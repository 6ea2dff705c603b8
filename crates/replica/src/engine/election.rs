//! When a follower starts an election.

use raft::StateRole;

use super::{ELECTION_TICKS, Engine, HEARTBEAT_TICKS};

/// Ticks of the election time-out that a follower counts as passed when its connection to the leader breaks.
/// In the remaining ticks, a running leader sends two heartbeats over a new connection
/// (docs/decisions/0054).
const DISCONNECTED_TICKS: usize = ELECTION_TICKS - 2 * HEARTBEAT_TICKS;

impl Engine {
    /// Reports that the connection to this peer broke. If it leads, its followers elect another leader unless
    /// they hear it very soon: a killed process is noticed by its connections long before its silence. A
    /// leader that lives keeps its lead, since those who hear it refuse the pre-vote.
    pub(crate) fn disconnected(&mut self, peer: u64) {
        self.lost(peer);
        let raft = &mut self.raw.raft;
        if raft.state == StateRole::Follower && raft.leader_id == peer {
            raft.election_elapsed = raft.election_elapsed.max(DISCONNECTED_TICKS);
            self.lost_leader = peer;
            self.set_timeout();
        }
    }

    /// Sets an election time-out that depends only on seed, node, term and the number of tries: simulations
    /// must be reproducible, and raft-rs draws its own time-outs at random. (The number of tries is needed
    /// since a failed pre-vote leaves the term unchanged.)
    ///
    /// Followers whose connections to one leader broke have lost it at the same moment. They take turns, two
    /// ticks apart, so that the votes are not split.
    pub(super) fn set_timeout(&mut self) {
        let raft = &mut self.raw.raft;
        if raft.leader_id != self.lost_leader || raft.election_elapsed < DISCONNECTED_TICKS {
            self.lost_leader = 0;
        }
        if self.lost_leader != 0 {
            let voters = raft.prs().conf().voters().ids();
            let before = voters.iter().filter(|&id| id < raft.id && id != self.lost_leader).count();
            let timeout = ELECTION_TICKS + 1 + 2 * before;
            return raft.set_randomized_election_timeout(timeout.min(2 * ELECTION_TICKS - 1));
        }
        let mixed = self.seed
            ^ raft.id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (raft.term << 8 | self.campaigns & 0xff).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let spread = (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33;
        raft.set_randomized_election_timeout(ELECTION_TICKS + spread as usize % ELECTION_TICKS);
    }
}
