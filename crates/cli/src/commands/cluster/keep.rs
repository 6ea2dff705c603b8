//! `cluster keep`: changes the members by itself, as an operator would with `add`, `replace` and `remove`.
//!
//! Each look at the cluster makes at most one change. It is made by the leader, which refuses what would cost
//! the cluster its majority; so a second keeper, or an operator at the same time, does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lockkeeper::{BackendErrorKind, ClusterInfo, Locks, MembersChange, NodeInfo, NodePart};

use super::{connect, next_id, of_others, removed_in_time, replaced_in_time, votes_in_time};
use crate::args::ClusterKeep;
use crate::exit::{Failure, INTERNAL, OK};
use crate::guardian::Signals;
use crate::output;

/// The pause between two looks at the cluster.
const EVERY: Duration = Duration::from_secs(2);
/// With so many voters or fewer none is removed for its silence: the others would tolerate no more failures
/// than before.
const VOTERS_MIN: usize = 3;

pub(super) async fn keep(args: ClusterKeep) -> Result<u8, Failure> {
    let mut signals =
        Signals::install().map_err(|error| Failure::system(INTERNAL, "cannot listen to signals", &error))?;
    // An address that can't be used at all ends the program at once.
    let mut locks = Some(connect(&args.service).await?);
    let mut keeper = Keeper::new(args);
    let keeping = async {
        let mut said = String::new();
        loop {
            match keeper.look(&mut locks).await {
                Ok(()) => said.clear(),
                Err(failure) => {
                    // Nodes may have new addresses, so the next look connects again.
                    locks = None;
                    if failure.message != said {
                        output::say(&failure.message);
                        said = failure.message;
                    }
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = keeping => Ok(OK),
        _ = signals.until_end() => Ok(OK),
    }
}

struct Keeper {
    args: ClusterKeep,
    /// Since when no look has found the node to answer the leader.
    silent: BTreeMap<u64, Instant>,
    /// The addresses for which a failed addition was reported: it is reported once for each.
    said: BTreeSet<String>,
}

impl Keeper {
    fn new(args: ClusterKeep) -> Self {
        Self { args, silent: BTreeMap::new(), said: BTreeSet::new() }
    }

    /// Looks at the cluster, and makes the change that is due.
    async fn look(&mut self, locks: &mut Option<Locks>) -> Result<(), Failure> {
        let locks = match locks {
            Some(locks) => locks,
            None => locks.insert(connect(&self.args.service).await?),
        };
        let info = locks.cluster().await?;
        self.hear(&info.nodes, Instant::now());
        // A node that catches up votes by itself when it has: the next change can wait for that.
        if info.changing || info.nodes.iter().any(|it| it.part != NodePart::Voter && it.answers) {
            return Ok(());
        }
        if let Some(lost) = info.nodes.iter().find(|it| it.data_lost && !it.answers) {
            return self.replace(locks, &info, lost).await;
        }
        if self.add(locks, &info).await? {
            return Ok(());
        }
        match self.gone(&info.nodes, Instant::now()) {
            Some(node) => self.remove(locks, &info, node).await,
            None => Ok(()),
        }
    }

    /// Notes who answers the leader.
    fn hear(&mut self, nodes: &[NodeInfo], now: Instant) {
        let silent: Vec<u64> = nodes.iter().filter(|it| !it.answers).map(|it| it.node).collect();
        self.silent.retain(|node, _| silent.contains(node));
        for node in silent {
            self.silent.entry(node).or_insert(now);
        }
        self.said.retain(|address| !nodes.iter().any(|it| it.peer_address == *address));
    }

    /// The node that has been silent for longest, and for so long that it is to be removed.
    fn gone(&self, nodes: &[NodeInfo], now: Instant) -> Option<u64> {
        let after = self.args.remove_after?;
        let voters = nodes.iter().filter(|it| it.part == NodePart::Voter).count();
        let longest = self.silent.iter().min_by_key(|(_, since)| **since);
        let (node, _) = longest.filter(|(_, since)| voters > VOTERS_MIN && now - **since >= after)?;
        Some(*node)
    }

    async fn replace(&self, locks: &Locks, info: &ClusterInfo, lost: &NodeInfo) -> Result<(), Failure> {
        let (service, wait) = (&self.args.service, self.args.wait);
        let (node, address) = (next_id(info), &lost.peer_address);
        let locks = of_others(locks.clone(), info, lost.node, service).await?;
        let votes = replaced_in_time(&locks, lost.node, node, address, wait).await?;
        output::line(format!(
            "node {}, whose data are lost, is replaced by node {node} at {address}{}",
            lost.node,
            outcome(votes)
        ))
    }

    /// Adds the first empty node that waits. Returns whether there is one.
    async fn add(&mut self, locks: &Locks, info: &ClusterInfo) -> Result<bool, Failure> {
        let is_member = |address: &String| info.nodes.iter().any(|it| it.peer_address == *address);
        let node = next_id(info);
        for address in self.args.nodes.iter().filter(|address| !is_member(address)) {
            let change = MembersChange::Add { node, peer_address: address.clone() };
            match locks.change_members(change).await {
                Ok(()) => {
                    let votes = votes_in_time(locks, node, self.args.wait).await?;
                    output::line(format!("node {node} at {address} is added{}", outcome(votes)))?;
                    return Ok(true);
                }
                // Usually no node runs at this address.
                Err(error) if error.kind == BackendErrorKind::Refused => {
                    if self.said.insert(address.clone()) {
                        output::say(format_args!("not added: {error}"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    async fn remove(&mut self, locks: &Locks, info: &ClusterInfo, node: u64) -> Result<(), Failure> {
        let service = &self.args.service;
        let locks = of_others(locks.clone(), info, node, service).await?;
        let is_done = removed_in_time(&locks, node, self.args.wait).await?;
        self.silent.remove(&node);
        let how = if is_done { "is removed; its data can be deleted" } else { "is being removed" };
        output::line(format!("node {node}, silent for too long, {how}"))
    }
}

fn outcome(votes: bool) -> &'static str {
    if votes { ", and votes" } else { "; it votes once it has caught up" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, ClusterCommand, Command};

    fn keeper(words: &str) -> Keeper {
        let words = format!("lockkeeper cluster keep --nodes a:1 {words}");
        match args::parse(words.split_whitespace().map(Into::into)).unwrap().command {
            Command::Cluster(ClusterCommand::Keep(args)) => Keeper::new(args),
            other => panic!("{other:?}"),
        }
    }

    /// So many voters, of which these don't answer.
    fn nodes(voters: u64, silent: &[u64]) -> Vec<NodeInfo> {
        let node = |node| NodeInfo {
            node,
            peer_address: String::new(),
            client_address: String::new(),
            part: NodePart::Voter,
            answers: !silent.contains(&node),
            matched: 0,
            receives_snapshot: false,
            data_lost: false,
        };
        (1..=voters).map(node).collect()
    }

    #[test]
    fn node_that_was_silent_for_longest_is_removed_while_more_than_three_vote() {
        let (start, after) = (Instant::now(), Duration::from_secs(60));
        let mut keeper = keeper("--remove-after 1m");
        keeper.hear(&nodes(5, &[4]), start);
        keeper.hear(&nodes(5, &[2, 4]), start + after / 2);
        assert_eq!(keeper.gone(&nodes(5, &[2, 4]), start + after / 2), None, "not for so long");
        assert_eq!(keeper.gone(&nodes(5, &[2, 4]), start + after), Some(4));
        assert_eq!(keeper.gone(&nodes(3, &[2]), start + after * 2), None, "three stay");
        // It has answered meanwhile.
        keeper.hear(&nodes(5, &[2]), start + after);
        assert_eq!(keeper.gone(&nodes(5, &[2]), start + after), None);
        assert_eq!(keeper.gone(&nodes(5, &[2]), start + after * 2), Some(2));
    }

    #[test]
    fn no_node_is_removed_unless_that_is_asked_for() {
        let mut keeper = keeper("");
        let start = Instant::now();
        keeper.hear(&nodes(5, &[4]), start);
        assert_eq!(keeper.gone(&nodes(5, &[4]), start + Duration::from_secs(1 << 30)), None);
    }
}
