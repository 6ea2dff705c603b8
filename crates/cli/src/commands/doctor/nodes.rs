//! The status of each node of the `lockkeeper://` service, queried separately, with warnings.

use std::collections::BTreeSet;
use std::net::IpAddr;

use lockkeeper::ServiceStatus;
use lockkeeper::url::{Host, Url};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::settings;
use crate::table::Table;

/// A node with more unapplied entries than this gets a warning. A node applies committed entries within one or two
/// iterations of its event loop, so a larger number is a sign of slowness, not of normal load.
const BEHIND_MAX: u64 = 10_000;

/// The status of one node of the given address, or the error of the request.
pub(super) struct ProbedNode {
    address: String,
    status: Result<ServiceStatus, Failure>,
}

/// Requests the status of every node of a `lockkeeper://` address.
pub(super) async fn ask(url: &str) -> Vec<ProbedNode> {
    let Ok(parsed) = url.parse::<Url>() else { return Vec::new() };
    let mut nodes = Vec::with_capacity(parsed.hosts.len());
    for host in &parsed.hosts {
        let address = address(host);
        let status = status(&address).await;
        nodes.push(ProbedNode { address, status });
    }
    nodes
}

async fn status(address: &str) -> Result<ServiceStatus, Failure> {
    Ok(settings::connect(&format!("lockkeeper://{address}"), "doctor").await?.status().await?)
}

fn address(host: &Host) -> String {
    let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
    host.port.map_or(name.clone(), |port| format!("{name}:{port}"))
}

/// The nodes' status as JSON.
pub(super) fn json(nodes: &[ProbedNode]) -> Value {
    let one = |node: &ProbedNode| match &node.status {
        Err(failure) => json!({ "address": node.address, "answers": false, "error": failure.message }),
        Ok(status) => json!({
            "address": node.address,
            "answers": true,
            "version": status.version,
            "node": status.node,
            "cluster": status.cluster,
            "incarnation": status.incarnation,
            "leads": status.leads,
            "leader": status.leader,
            "term": status.term,
            "applied": status.applied,
            "committed": status.committed,
            "snapshot": status.snapshot,
            "last_token": status.last_token,
            "sessions": status.sessions,
            "requests": status.requests,
            "streams": status.streams,
            "rules": status.rules,
        }),
    };
    nodes.iter().map(one).collect()
}

/// Whether each node answers and knows a leader.
pub(super) fn are_healthy(nodes: &[ProbedNode]) -> bool {
    nodes.iter().all(|node| node.status.as_ref().is_ok_and(|status| status.leader.is_some()))
}

/// Prints the nodes' status as a table.
///
/// # Errors
/// Standard output can't be written.
pub(super) fn print(nodes: &[ProbedNode]) -> Result<(), Failure> {
    let mut table = Table::new([
        "ADDRESS",
        "NODE",
        "ROLE",
        "TERM",
        "VERSION",
        "RULES",
        "APPLIED",
        "COMMITTED",
        "SNAPSHOT",
        "LAST TOKEN",
        "SESSIONS",
        "REQUESTS",
        "STREAMS",
    ]);
    for ProbedNode { address, status } in nodes {
        let Ok(status) = status else {
            let mut row = [const { String::new() }; 13];
            (row[0], row[2]) = (address.clone(), "does not answer".to_owned());
            table.bad_row(row);
            continue;
        };
        let role = match status.leader {
            _ if status.leads => "leader",
            Some(_) => "follower",
            None => "no leader",
        };
        let row = [
            address.clone(),
            status.node.to_string(),
            role.to_owned(),
            status.term.to_string(),
            status.version.clone(),
            status.rules.to_string(),
            status.applied.to_string(),
            status.committed.to_string(),
            status.snapshot.to_string(),
            status.last_token.to_string(),
            status.sessions.to_string(),
            status.requests.to_string(),
            status.streams.to_string(),
        ];
        if status.leader.is_some() { table.row(row) } else { table.bad_row(row) }
    }
    table.print()
}

/// Problems and their remedies.
pub(super) fn warnings(nodes: &[ProbedNode]) -> Vec<String> {
    let mut said = Vec::new();
    let mut clusters = BTreeSet::new();
    for ProbedNode { address, status } in nodes {
        if !is_loopback(address) {
            said.push(format!(
                "{address} is reached over a network without encryption, and asks nobody who they are: whoever \
                 reaches it can hold and break every lock; keep strangers out by other means"
            ));
        }
        let status = match status {
            Ok(status) => status,
            Err(failure) => {
                said.push(failure.message.clone());
                continue;
            }
        };
        clusters.insert(status.cluster.as_str());
        if status.leader.is_none() {
            said.push(format!(
                "{address} knows no leader: nothing can be acquired or kept alive there; look at its log"
            ));
        }
        let behind = status.committed.saturating_sub(status.applied);
        if behind > BEHIND_MAX {
            said.push(format!(
                "{address} has yet to apply {behind} entries of its log: it is overloaded or has just started"
            ));
        }
        if status.version != env!("CARGO_PKG_VERSION") {
            let ours = env!("CARGO_PKG_VERSION");
            said.push(format!("{address} has version {}, this program {ours}", status.version));
        }
    }
    if clusters.len() > 1 {
        said.push(format!(
            "these nodes belong to {} clusters, which exclude nobody from each other's locks: correct the address",
            clusters.len()
        ));
    }
    said
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

    #[test]
    fn unreachable_node_yields_its_own_warning() {
        let nodes = [ProbedNode {
            address: "192.0.2.1:5625".into(),
            status: Err(Failure::new(69, "no lock service answers")),
        }];
        let said = warnings(&nodes);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("encryption") && said[1].contains("no lock service answers"), "{said:?}");
        assert_eq!(json(&nodes)[0]["answers"], false);
    }
}
