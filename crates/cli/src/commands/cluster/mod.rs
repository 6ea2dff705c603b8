//! `cluster`: the members of the `lockkeeper://` service, and changes of membership.

use std::time::{Duration, Instant};

use lockkeeper::{ClusterInfo, Locks, MembersChange, NodeInfo, NodePart};
use lockkeeper_http::view::MembersView;
use serde::Serialize;
use serde_json::json;

mod keep;

use super::nodes;
use crate::args::{
    ClusterAdd, ClusterCommand, ClusterRemove, ClusterReplace, ClusterStatus, ClusterTransfer, ServiceArgs,
};
use crate::exit::{Failure, OK, UNHEALTHY, USAGE};
use crate::output;
use crate::settings;
use crate::table::Table;
use crate::view;

/// The interval at which a membership change is polled.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// How long a node that is to be replaced must not answer the leader. Directly after its election, a leader
/// has had no answer from any node.
const SILENCE: Duration = Duration::from_secs(2);

pub(super) async fn cluster(task: ClusterCommand) -> Result<u8, Failure> {
    match task {
        ClusterCommand::Status(args) => status(args).await,
        ClusterCommand::Add(args) => add(args).await,
        ClusterCommand::Remove(args) => remove(args).await,
        ClusterCommand::Replace(args) => replace(args).await,
        ClusterCommand::Keep(args) => keep::keep(args).await,
        ClusterCommand::Transfer(args) => transfer(args).await,
    }
}

async fn connect(service: &ServiceArgs) -> Result<Locks, Failure> {
    let url = settings::service_url(service.locks.as_deref())?;
    settings::connect(&url, "cluster").await
}

async fn status(args: ClusterStatus) -> Result<u8, Failure> {
    let locks = connect(&args.service).await?;
    // The members can only be read with a majority. Without one, shows the members that each node knows.
    let nodes = nodes::ask(&locks).await?;
    nodes::check_majority(&nodes, args.json)?;
    let info = locks.cluster().await?;
    let is_healthy = info.nodes.iter().all(|node| node.answers) && nodes::are_well(&nodes);
    let code = if is_healthy { OK } else { UNHEALTHY };
    if args.json {
        output::json(&ClusterStatusView {
            members: view::members(&info),
            warnings: nodes::warnings(&nodes),
        })?;
        return Ok(code);
    }
    let mut table = Table::new(["NODE", "ROLE", "STATE", "CLIENTS", "PEERS"]);
    for node in &info.nodes {
        let row = node_row(node, &info);
        if node.answers { table.row(row) } else { table.bad_row(row) }
    }
    table.print()?;
    if info.changing {
        output::line("a change of the nodes is under way")?;
    }
    for said in nodes::warnings(&nodes) {
        output::line(format!("warning: {said}"))?;
    }
    Ok(code)
}

/// The members, with the warnings of [`nodes::warnings`].
#[derive(Serialize)]
struct ClusterStatusView {
    #[serde(flatten)]
    members: MembersView,
    warnings: Vec<String>,
}

fn node_row(node: &NodeInfo, info: &ClusterInfo) -> [String; 5] {
    let part = if node.node == info.leader { "leader".to_owned() } else { node.part.to_string() };
    let behind = info.last.saturating_sub(node.matched);
    let how = match () {
        () if node.data_lost && !node.answers => format!("data lost: `cluster replace {}`", node.node),
        () if node.receives_snapshot => "gets a snapshot".to_owned(),
        () if !node.answers => "does not answer".to_owned(),
        () if behind == 0 => "up to date".to_owned(),
        () => format!("{behind} entries behind"),
    };
    let peers = if node.peer_address.is_empty() { "-" } else { &node.peer_address };
    [node.node.to_string(), part, how, node.client_address.clone(), peers.to_owned()]
}

async fn add(args: ClusterAdd) -> Result<u8, Failure> {
    let (node, peer_address) = args.node;
    let locks = connect(&args.service).await?;
    locks.change_members(MembersChange::Add { node, peer_address }).await?;
    let is_done = votes_in_time(&locks, node, args.wait).await?;
    if args.json {
        output::json(&json!({ "node": node, "votes": is_done }))?;
    } else if is_done {
        output::line(format!("node {node} has caught up, and votes"))?;
    } else {
        output::line(format!(
            "node {node} is added and catches up; it votes once it has (`lockkeeper cluster status`)"
        ))?;
    }
    Ok(OK)
}

async fn remove(args: ClusterRemove) -> Result<u8, Failure> {
    let node = args.node;
    let locks = connect(&args.service).await?;
    let before = locks.cluster().await?;
    let locks = of_others(locks, &before, node, &args.service).await?;
    let is_done = removed_in_time(&locks, node, args.wait).await?;
    if args.json {
        output::json(&json!({ "node": node, "removed": is_done }))?;
    } else if is_done {
        output::line(format!(
            "node {node} takes part no more; its id never comes back, and its data can be deleted"
        ))?;
    } else {
        output::line(format!("the removal of node {node} is under way (`lockkeeper cluster status`)"))?;
    }
    Ok(OK)
}

/// Connects to the remaining nodes: the removed node may end before it has forwarded the answer, and may be
/// the only one in the given address. Returns `locks` if none of them is reachable from here.
async fn of_others(
    locks: Locks,
    info: &ClusterInfo,
    node: u64,
    service: &ServiceArgs,
) -> Result<Locks, Failure> {
    let url = settings::locks_url(service.locks.as_deref(), service.local)?;
    let others = info.nodes.iter().filter(|it| it.node != node && !it.client_address.is_empty());
    let addresses: Vec<&str> = others.map(|it| it.client_address.as_str()).collect();
    let others = settings::connect(&settings::with_hosts(&url, &addresses.join(",")), "cluster").await;
    Ok(others.unwrap_or(locks))
}

/// Removes a node. Returns whether that is complete within `wait`.
async fn removed_in_time(locks: &Locks, node: u64, wait: Duration) -> Result<bool, Failure> {
    locks.change_members(MembersChange::Remove { node }).await?;
    until(locks, wait, |info| info.removed.contains(&node) && !info.changing).await
}

/// Waits until a node that was added votes. Returns whether it does within `wait`.
async fn votes_in_time(locks: &Locks, node: u64, wait: Duration) -> Result<bool, Failure> {
    let votes = |it: &NodeInfo| it.node == node && it.part == NodePart::Voter;
    until(locks, wait, |info| info.nodes.iter().any(votes)).await
}

/// Polls until the condition is true, at most for `wait`. Returns whether it became true.
async fn until(locks: &Locks, wait: Duration, is_so: impl Fn(&ClusterInfo) -> bool) -> Result<bool, Failure> {
    let end = Instant::now() + wait;
    loop {
        if is_so(&locks.cluster().await?) {
            return Ok(true);
        }
        if Instant::now() + POLL_EVERY > end {
            return Ok(false);
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

async fn replace(args: ClusterReplace) -> Result<u8, Failure> {
    let lost = args.node;
    let locks = connect(&args.service).await?;
    let before = locks.cluster().await?;
    let node = next_id(&before);
    let Some(known) = before.nodes.iter().find(|it| it.node == lost) else {
        let why = if before.removed.contains(&lost) { "was removed already" } else { "is no member" };
        let silent = before.nodes.iter().filter(|it| !it.answers);
        let silent: Vec<String> =
            silent.map(|it| format!("node {} at {} does not answer", it.node, it.peer_address)).collect();
        let others = if silent.is_empty() { String::new() } else { format!("; {}", silent.join(", ")) };
        let why = format!(
            "node {lost} {why}: add the node that waits instead, by its address: `lockkeeper cluster add \
             {node}=HOST:PORT`{others}"
        );
        return Err(Failure::new(USAGE, why));
    };
    let answers = |info: &ClusterInfo| info.nodes.iter().any(|it| it.node == lost && it.answers);
    if until(&locks, SILENCE, answers).await? {
        let why = format!(
            "node {lost} answers, so its data are not lost; `lockkeeper cluster remove {lost}` would remove it all the same"
        );
        return Err(Failure::new(USAGE, why));
    }
    let peer_address = known.peer_address.clone();
    if peer_address.is_empty() {
        // The data of a cluster that began with one node, or was restored, have no address of that node.
        let why = format!(
            "the cluster does not know the address of node {lost} for other nodes: `lockkeeper cluster remove {lost}`, then \
             `lockkeeper cluster add {node}=HOST:PORT`"
        );
        return Err(Failure::new(USAGE, why));
    }
    let locks = of_others(locks, &before, lost, &args.service).await?;
    let is_done = replaced_in_time(&locks, lost, node, &peer_address, args.wait).await?;
    if args.json {
        output::json(&json!({ "removed": lost, "node": node, "votes": is_done }))?;
    } else if is_done {
        output::line(format!(
            "node {lost} takes part no more; node {node} at {peer_address} has caught up, and votes"
        ))?;
    } else {
        output::line(format!(
            "node {lost} takes part no more; node {node} at {peer_address} is added and catches up; it votes once it has \
             (`lockkeeper cluster status`)"
        ))?;
    }
    Ok(OK)
}

/// The lowest id that no node has had.
fn next_id(info: &ClusterInfo) -> u64 {
    let ids = info.nodes.iter().map(|it| it.node).chain(info.removed.iter().copied());
    ids.max().unwrap_or_default() + 1
}

/// Removes a node whose data are lost, and adds the empty one at its address as `node`. Each step may take
/// `wait`. Returns whether the added node votes by then.
async fn replaced_in_time(
    locks: &Locks,
    lost: u64,
    node: u64,
    peer_address: &str,
    wait: Duration,
) -> Result<bool, Failure> {
    if !removed_in_time(locks, lost, wait).await? {
        let why = format!(
            "the removal of node {lost} is under way (`lockkeeper cluster status`); after it: `lockkeeper cluster add \
             {node}={peer_address}`"
        );
        return Err(Failure::new(UNHEALTHY, why));
    }
    added_in_time(locks, node, peer_address, wait).await?;
    votes_in_time(locks, node, wait).await
}

/// Adds a node, repeatedly for `wait`: it may not have started yet.
async fn added_in_time(locks: &Locks, node: u64, peer_address: &str, wait: Duration) -> Result<(), Failure> {
    let end = Instant::now() + wait;
    let mut is_said = false;
    loop {
        let add = MembersChange::Add { node, peer_address: peer_address.to_owned() };
        match locks.change_members(add).await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() + POLL_EVERY < end => {
                if !std::mem::replace(&mut is_said, true) {
                    output::say(format_args!("{error}; this is tried again for {}", output::human(wait)));
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
            Err(error) => {
                let failure = Failure::from(error);
                let message = format!(
                    "{}; the lost node is removed: once the empty one waits at {peer_address} (`serve --rejoin`), \
                     `lockkeeper cluster add {node}={peer_address}`",
                    failure.message
                );
                return Err(Failure { message, ..failure });
            }
        }
    }
}

async fn transfer(args: ClusterTransfer) -> Result<u8, Failure> {
    let leader = connect(&args.service).await?.transfer_leadership(args.to).await?;
    if args.json {
        output::json(&json!({ "leader": leader }))?;
    } else {
        output::line(format!("node {leader} leads"))?;
    }
    Ok(OK)
}
