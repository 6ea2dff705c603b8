//! The status of each node of the `lockkeeper://` service, with warnings, for `doctor` and `cluster status`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper::url::Url;
use lockkeeper::{Locks, NodeDisk, NodePart, NodeReport, NodeRole, ServiceStatus};
use serde_json::json;

use crate::exit::{Failure, UNAVAILABLE};
use crate::output;
use crate::table::Table;
use crate::view;

/// A node with more unapplied entries than this gets a warning. A node applies committed entries within one
/// or two iterations of its event loop, so a larger number is a sign of slowness, not of normal load.
const BEHIND_MAX: u64 = 10_000;
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// A certificate that ends within this many days gets a warning.
const WARN_DAYS: u64 = 30;
/// The longest time for which a leader counts a follower that has died: an election time-out, with a reserve.
const LOST_WITHIN: Duration = Duration::from_secs(3);
const ASK_AGAIN: Duration = Duration::from_millis(250);

fn answers(nodes: &[NodeReport]) -> impl Iterator<Item = &ServiceStatus> {
    nodes.iter().filter_map(|node| node.status.as_ref().ok())
}

/// The status of the node that has applied most: it knows the members best.
fn freshest(nodes: &[NodeReport]) -> Option<&ServiceStatus> {
    answers(nodes).max_by_key(|status| status.applied)
}

fn clusters(nodes: &[NodeReport]) -> BTreeSet<&str> {
    answers(nodes).map(|status| status.cluster.as_str()).collect()
}

/// The members that did not answer, with their client addresses.
fn missing(nodes: &[NodeReport]) -> Vec<(u64, &str)> {
    let answering: BTreeSet<u64> = answers(nodes).map(|status| status.node).collect();
    let members = freshest(nodes).into_iter().flat_map(|status| &status.members);
    let missing = members.filter(|member| !answering.contains(&member.node));
    missing.map(|member| (member.node, member.client_address.as_str())).collect()
}

/// The status of each node. A leader counts a dead follower until an election time-out is over. So this
/// repeats the calls, for up to [`LOST_WITHIN`], while a member answers the leader and nobody else.
///
/// # Errors
/// No node answers.
pub(super) async fn ask(locks: &Locks) -> Result<Vec<NodeReport>, Failure> {
    let asked = Instant::now();
    loop {
        let nodes = locks.nodes().await?;
        let heard = heard_by_leader(&nodes);
        let is_clear = !missing(&nodes).iter().any(|(node, _)| heard.contains(node));
        if is_clear || asked.elapsed() > LOST_WITHIN {
            return Ok(nodes);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The members that answer the leader; none if its status is missing.
fn heard_by_leader(nodes: &[NodeReport]) -> BTreeSet<u64> {
    let leader = answers(nodes).find(|status| status.role == NodeRole::Leader);
    let members = leader.into_iter().flat_map(|status| &status.members);
    members.filter(|member| member.answers).map(|member| member.node).collect()
}

/// The error if too few voters answer, here or to the leader, for the service to work: no call needs to be
/// tried then.
fn lost_majority(nodes: &[NodeReport]) -> Option<Failure> {
    let voters: BTreeSet<u64> = freshest(nodes)?
        .members
        .iter()
        .filter(|member| member.part == NodePart::Voter)
        .map(|member| member.node)
        .collect();
    let mut answering = heard_by_leader(nodes);
    answering.extend(answers(nodes).map(|status| status.node));
    let count = voters.intersection(&answering).count();
    if 2 * count > voters.len() {
        return None;
    }
    let silent: Vec<String> = voters.difference(&answering).map(u64::to_string).collect();
    let (needed, all) = (voters.len() / 2 + 1, voters.len());
    let some_hang = nodes.iter().any(|node| node.status.as_ref().is_err_and(|why| hangs(why)));
    let remedy = if some_hang { "start, or see why it hangs:" } else { "start" };
    let text = format!(
        "no majority: {count} of the {all} nodes that vote answer, {needed} are needed; nothing can be acquired or kept alive; \
         {remedy} node {}",
        silent.join(" and ")
    );
    Some(Failure::new(UNAVAILABLE, text))
}

/// Prints the nodes' status and fails if there is no majority.
///
/// # Errors
/// There is none, or standard output can't be written.
pub(super) fn check_majority(nodes: &[NodeReport], as_json: bool) -> Result<(), Failure> {
    match lost_majority(nodes) {
        None => Ok(()),
        Some(lost) => {
            print_all(nodes, as_json)?;
            Err(lost)
        }
    }
}

/// Prints the nodes' status: as a table and lines on standard error, or as JSON.
fn print_all(nodes: &[NodeReport], as_json: bool) -> Result<(), Failure> {
    let warnings = warnings(nodes);
    if as_json {
        return output::json(&json!({ "nodes": view::reports(nodes), "warnings": warnings }));
    }
    print(nodes)?;
    warnings.iter().for_each(output::say);
    Ok(())
}

/// Whether each member answers, and each node that answers knows a leader, has room on its disk, and can
/// write its audit file.
pub(super) fn are_healthy(nodes: &[NodeReport]) -> bool {
    (nodes.is_empty() || freshest(nodes).is_some())
        && missing(nodes).is_empty()
        && answers(nodes).all(|status| status.leader.is_some())
        && are_well(nodes)
        // A node that answers without a status waits for its cluster.
        && !nodes.iter().any(|node| node.answers && node.status.is_err())
        && clusters(nodes).len() < 2
}

/// Prints the main fields of the nodes' status as a table.
///
/// # Errors
/// Standard output can't be written.
pub(super) fn print(nodes: &[NodeReport]) -> Result<(), Failure> {
    let mut table =
        Table::new(["ADDRESS", "NODE", "ROLE", "TERM", "APPLIED", "SESSIONS", "REQUESTS", "VERSION"]);
    for NodeReport { address, answers, status, unreached } in nodes {
        let Ok(status) = status else {
            let mut row = [const { String::new() }; 8];
            let role = if *answers { "does not serve" } else { "does not answer" };
            (row[0], row[2]) = (address.clone(), role.to_owned());
            table.bad_row(row);
            continue;
        };
        let role = match status.leader {
            _ if unreached.is_some() => "out of reach from here",
            _ if status.role == NodeRole::Leader => "leader",
            Some(_) => "follower",
            None => "no leader",
        };
        let row = [
            address.clone(),
            status.node.to_string(),
            role.to_owned(),
            status.term.to_string(),
            status.applied.to_string(),
            status.sessions.to_string(),
            status.requests.to_string(),
            status.version.clone(),
        ];
        if status.leader.is_some() && unreached.is_none() { table.row(row) } else { table.bad_row(row) }
    }
    table.print()
}

/// Problems and their remedies.
pub(super) fn warnings(nodes: &[NodeReport]) -> Vec<String> {
    let mut warnings = Vec::new();
    let (missing, heard) = (missing(nodes), heard_by_leader(nodes));
    for NodeReport { address, answers, status, unreached } in nodes {
        let is_plain = status.as_ref().is_ok_and(|status| status.certificate_ends.is_none());
        if is_plain && !is_loopback(address) {
            warnings.push(format!(
                "{address} is reached over a network without encryption: whoever is in between can read and change \
                 what is sent, tokens too, and without a file of permissions whoever reaches it can hold and break \
                 every lock; use TLS (docs/operating.md)"
            ));
        }
        let status = match status {
            Ok(status) => status,
            Err(why) => {
                warnings.push(match answers {
                    true => format!("{address} answers, and can't serve: {why}"),
                    false => silence(address, why, &missing, &heard),
                });
                continue;
            }
        };
        if let Some(why) = unreached {
            warnings.push(format!(
                "node {}, {address}, runs and can't be reached from here ({why}): other nodes relay what is for it, which is \
                 slower; open the way to it, or correct its `--advertise`",
                status.node
            ));
        }
        if status.leader.is_none() {
            warnings.push(format!(
                "{address} knows no leader: nothing can be acquired or kept alive there; look at its log"
            ));
        }
        let behind = status.committed.saturating_sub(status.applied);
        if behind > BEHIND_MAX {
            warnings.push(format!(
                "{address} has yet to apply {behind} entries of its log: it is overloaded or has just started"
            ));
        }
        warnings.extend(disk(address, status));
        if let Some(why) = &status.audit_error {
            warnings.push(format!(
                "{address} can't write its audit file ({why}): what operators do there is recorded in its log only; free \
                 space, or mend the disk"
            ));
        }
        if let Some(why) = &status.backup_error {
            warnings.push(format!("{address} fails to make the backups of its schedule: {why}"));
        }
        if let Some(why) = &status.files_error {
            warnings.push(format!(
                "{address} can't use files that have changed, and works with the old ones: {why}; correct them, and it reads \
                 them again by itself"
            ));
        }
        if let Some(ends) = status.certificate_ends {
            warnings.extend(end_of_certificate(&format!("the certificate of {address}"), ends));
        }
        if status.version != env!("CARGO_PKG_VERSION") {
            let ours = env!("CARGO_PKG_VERSION");
            warnings.push(format!("{address} has version {}, this program {ours}", status.version));
        }
    }
    let voters = freshest(nodes)
        .map_or(0, |status| status.members.iter().filter(|member| member.part == NodePart::Voter).count());
    if voters == 2 {
        warnings.push(
            "two nodes vote: the loss of either stops the service; add a third, or remove one".to_owned(),
        );
    }
    let permissions: BTreeSet<Option<&str>> = answers(nodes).map(|it| it.permissions.as_deref()).collect();
    if permissions.len() > 1 {
        warnings.push(
            "the nodes have different files of permissions, so what a client may do depends on the node that it reaches: \
             give all of them the same (`serve --permissions`)"
                .to_owned(),
        );
    }
    let clusters = clusters(nodes);
    if clusters.len() > 1 {
        warnings.push(format!(
            "these nodes belong to {} clusters, which exclude nobody from each other's locks: correct the address",
            clusters.len()
        ));
    }
    warnings
}

/// A warning if the node's disk has little room left.
fn disk(address: &str, status: &ServiceStatus) -> Option<String> {
    let free = status.disk_free_bytes.map_or_else(String::new, |free| format!(" ({} MiB free)", free >> 20));
    match status.disk_state {
        Some(NodeDisk::Full) => Some(format!(
            "the disk of {address} is full{free}: the next part of its log has no room, so it can't lead, and stops when the \
             present part is full; free space there"
        )),
        Some(NodeDisk::Low) => {
            let hour = Duration::from_secs(60 * 60);
            let soon = status.disk_full_in.filter(|left| *left < hour).map_or_else(String::new, |left| {
                format!(", and will be full in {} min if it goes on as in the last ten", left.as_secs() / 60)
            });
            Some(format!("the disk of {address} has little room left{free}{soon}: free space there"))
        }
        Some(NodeDisk::Enough) => None,
        None => Some(format!("the disk of {address} does not answer: look at its log, and at `dmesg` there")),
    }
}

/// Whether each node that answers has room on its disk, can write its audit file and its backups, and use
/// its files; and none has a certificate that is not accepted.
pub(super) fn are_well(nodes: &[NodeReport]) -> bool {
    let is_refused = |it: &NodeReport| it.status.as_ref().is_err_and(|why| is_of_certificate(why));
    !nodes.iter().any(is_refused)
        && answers(nodes).all(|it| {
            it.disk_state == Some(NodeDisk::Enough)
                && it.audit_error.is_none()
                && it.backup_error.is_none()
                && it.files_error.is_none()
        })
}

/// A warning if the certificate has ended, or ends soon. `what` names it.
pub(super) fn end_of_certificate(what: &str, ends: SystemTime) -> Option<String> {
    let Ok(left) = ends.duration_since(SystemTime::now()) else {
        return Some(format!("{what} has ended: renew it (`lockkeeper tls renew`)"));
    };
    let days = left.as_secs() / DAY_SECONDS;
    let left = if days < 2 { format!("{} h", left.as_secs() / 3600) } else { format!("{days} days") };
    (days < WARN_DAYS).then(|| format!("{what} ends in {left}: renew it (`lockkeeper tls renew`)"))
}

fn silence(address: &str, why: &str, missing: &[(u64, &str)], heard: &BTreeSet<u64>) -> String {
    match missing.iter().find(|(_, of_member)| *of_member == address) {
        Some((node, _)) if is_of_certificate(why) => format!(
            "node {node} runs at {address}, and its certificate is refused ({why}): renew it (`lockkeeper tls renew`), or \
             correct `tls-ca`"
        ),
        Some((node, _)) if heard.contains(node) => format!(
            "node {node} runs, since the leader hears it, but clients can't reach it at {address} ({why}), and the node \
             that was asked in its place can't either: correct its `--advertise`"
        ),
        Some((node, _)) if hangs(why) => format!(
            "node {node}, {address}, does not answer ({why}): look at its process and its host (`kill -CONT` if it was \
             stopped by SIGSTOP), or start it anew"
        ),
        Some((node, _)) => {
            format!("node {node}, {address}, does not answer ({why}): start it, or look at its log")
        }
        None if missing.is_empty() => format!(
            "{address} does not answer ({why}), and all members answer at other addresses: leave it out of the address of \
             the service"
        ),
        None => format!("{address} does not answer ({why})"),
    }
}

/// Whether the process of a node that does not answer is there.
fn hangs(why: &str) -> bool {
    why.contains("though connections to it are accepted")
}

/// Whether a node can't be asked since its certificate is not accepted.
fn is_of_certificate(why: &str) -> bool {
    why.contains("invalid peer certificate")
}

fn is_loopback(address: &str) -> bool {
    let Ok(url) = format!("lockkeeper://{address}").parse::<Url>() else { return false };
    url.hosts.iter().all(|host| {
        host.name == "localhost"
            || host.name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_recognised() {
        for address in ["localhost:5625", "127.0.0.1", "[::1]:7", "[::ffff:127.0.0.1]:7"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["192.0.2.1:5625", "locks.example:5625", "[2001:db8::1]:5625"] {
            assert!(!is_loopback(address), "{address}");
        }
    }
}
