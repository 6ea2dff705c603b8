//! Log lines about leadership changes: the leader, its term, and periods without a leader.
//!
//! Responsible for: one line per change, not one per turn; a period without a leader is logged once, and its
//! end once. Reads no clock and writes no log itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lockkeeper_wire::store::Configuration;

/// A period without a leader is logged after this many election time-outs: an election after a leader's death
/// takes two or three.
const PATIENCE: u32 = 4;

/// A message about leadership, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeadershipLine {
    is_warning: bool,
    term: u64,
    leader: Option<u64>,
    text: String,
}

impl LeadershipLine {
    pub(crate) fn log(self) {
        let Self { is_warning, term, leader, text } = self;
        if is_warning {
            tracing::warn!(term, leader, "{text}");
        } else {
            tracing::info!(term, leader, "{text}");
        }
    }
}

/// Tracks the leader that this node knows.
#[derive(Debug)]
pub(crate) struct Leadership {
    node: u64,
    patience: Duration,
    /// The last leader that was logged, and its term.
    logged: Option<(u64, u64)>,
    /// The start of the present period without a leader, and whether that period was logged already.
    without: Option<(Instant, bool)>,
}

impl Leadership {
    /// `node` is this node's id; `election_timeout` scales the delay before a missing leader is logged.
    pub(crate) fn new(node: u64, election_timeout: Duration) -> Self {
        Self { node, patience: election_timeout * PATIENCE, logged: None, without: None }
    }

    /// Returns the lines to log. `leader` is the node that leads in `term`, perhaps this one; `None` if this
    /// node knows no leader. `reached` is called only if a line lists the voters' connections.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        leader: Option<u64>,
        term: u64,
        reached: impl FnOnce() -> Reached,
    ) -> Vec<LeadershipLine> {
        let (mut lines, node) = (Vec::new(), self.node);
        let line = |is_warning, text| LeadershipLine { is_warning, term, leader, text };
        if self.logged.is_some_and(|(logged, _)| logged == node) && leader != Some(node) {
            lines.push(line(false, format!("node {node} leads no more, term {term}")));
            self.logged = None;
        }
        let Some(leader) = leader else {
            let (since, is_logged) = self.without.get_or_insert((now, false));
            let so_far = now.saturating_duration_since(*since);
            if !*is_logged && so_far >= self.patience {
                *is_logged = true;
                let text = format!("no leader known for {:.1} s; {}", so_far.as_secs_f64(), reached());
                lines.push(line(true, text));
            }
            return lines;
        };
        let spell = self.without.take().filter(|(_, is_logged)| *is_logged);
        if self.logged != Some((leader, term)) || spell.is_some() {
            self.logged = Some((leader, term));
            let after = spell.map_or_else(String::new, |(since, _)| {
                let took = now.saturating_duration_since(since).as_secs_f64();
                format!(": there is a leader again after {took:.1} s without")
            });
            let text = if leader == node {
                format!("node {node} leads, term {term}{after}")
            } else {
                format!("node {node} follows node {leader}, term {term}{after}")
            };
            lines.push(line(false, text));
        }
        lines
    }
}

/// The other voters, split by whether this node is connected to them: explains a missing majority.
#[derive(Debug)]
pub(crate) struct Reached {
    connected: Vec<u64>,
    missing: Vec<u64>,
}

impl Reached {
    /// Splits the voters other than `node`. `connected` are the nodes with connections in both directions.
    pub(crate) fn new(node: u64, voters: &Configuration, connected: &BTreeSet<u64>) -> Self {
        let voters: BTreeSet<u64> = voters.voters.iter().chain(&voters.voters_outgoing).copied().collect();
        let others = voters.into_iter().filter(|voter| *voter != node);
        let (connected, missing) = others.partition(|voter| connected.contains(voter));
        Self { connected, missing }
    }
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |nodes: &[u64]| match nodes {
            [] => "none".to_owned(),
            nodes => nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", "),
        };
        let (connected, missing) = (list(&self.connected), list(&self.missing));
        write!(
            f,
            "connected to: {connected}; not connected to: {missing}; a majority of the voters must be connected"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = crate::ELECTION_TIMEOUT;

    /// Node 2 of three, connected to node 3 only.
    struct Fixture {
        leadership: Leadership,
        start: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self { leadership: Leadership::new(2, TIMEOUT), start: Instant::now() }
        }

        /// The lines logged `timeouts` election time-outs after the start; warnings begin with "! ".
        fn at(&mut self, timeouts: u32, leader: Option<u64>, term: u64) -> Vec<String> {
            let now = self.start + TIMEOUT * timeouts;
            let voters = Configuration { voters: vec![1, 2, 3], ..Configuration::default() };
            let reached = || Reached::new(2, &voters, &BTreeSet::from([3, 9]));
            let lines = self.leadership.update(now, leader, term, reached);
            lines
                .into_iter()
                .map(|line| format!("{}{}", if line.is_warning { "! " } else { "" }, line.text))
                .collect()
        }
    }

    #[test]
    fn each_leadership_change_is_logged_once() {
        let mut node = Fixture::new();
        assert_eq!(node.at(0, None, 1), [""; 0]);
        assert_eq!(node.at(1, Some(1), 1), ["node 2 follows node 1, term 1"]);
        assert_eq!(node.at(2, Some(1), 1), [""; 0]);
        assert_eq!(node.at(3, None, 1), [""; 0], "an election is no trouble yet");
        assert_eq!(node.at(4, Some(2), 2), ["node 2 leads, term 2"]);
        assert_eq!(node.at(5, Some(2), 2), [""; 0]);
        assert_eq!(node.at(6, Some(3), 3), ["node 2 leads no more, term 3", "node 2 follows node 3, term 3"]);
        assert_eq!(node.at(7, Some(3), 4), ["node 2 follows node 3, term 4"]);
    }

    #[test]
    fn period_without_leader_is_logged_once_with_connected_voters_and_so_is_its_end() {
        let mut node = Fixture::new();
        node.at(0, Some(2), 5);
        assert_eq!(node.at(10, None, 5), ["node 2 leads no more, term 5"]);
        assert_eq!(node.at(10 + PATIENCE - 1, None, 5), [""; 0]);
        let told = node.at(10 + PATIENCE, None, 6);
        let seconds = (TIMEOUT * PATIENCE).as_secs_f64();
        let words =
            format!("! no leader known for {seconds:.1} s; connected to: node 3; not connected to: node 1; ");
        assert!(told.len() == 1 && told[0].starts_with(&words), "{told:?}");
        assert_eq!(node.at(30, None, 9), [""; 0]);
        let seconds = (TIMEOUT * 21).as_secs_f64();
        let again = format!("node 2 leads, term 10: there is a leader again after {seconds:.1} s without");
        assert_eq!(node.at(31, Some(2), 10), [again]);
        // A second period without a leader is logged again.
        node.at(40, None, 10);
        assert!(node.at(40 + PATIENCE, None, 10)[0].starts_with("! no leader known"));
        let back = node.at(41 + PATIENCE, Some(1), 10);
        assert!(back[0].starts_with("node 2 follows node 1, term 10: there is a leader again"), "{back:?}");
    }
}
