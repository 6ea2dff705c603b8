//! The status of every node of a cluster, for operators. Needs no leader: each node answers for itself.

use std::collections::BTreeSet;

use lockkeeper_backend::{BackendError, BoxFuture, NodeReport, NodeRole, ServiceStatus};
use lockkeeper_wire::v1::StatusRequest;
use tokio::task::JoinSet;

use super::addresses::{Address, LEARNT_MAX};
use super::credentials::Credentials;
use super::describe;
use super::driver::GrpcClient;
use super::failures::NODE_LIMIT;
use super::search::reach;
use super::unary::Asker;

/// A node's report, and the connection on which it answered.
type Called = (NodeReport, Option<GrpcClient>);

/// Calls the nodes of the URL, then further members that they report, then those that did not answer through
/// one that did: a node may be alive and out of reach from here.
pub(super) fn ask_all(asker: &Asker) -> BoxFuture<'static, Result<Vec<NodeReport>, BackendError>> {
    let (of_url, credentials) = (asker.addresses().of_url(), asker.credentials());
    let reports = asker.run(async move {
        let mut called = statuses(of_url.clone(), credentials.clone()).await;
        let others = not_asked(&called, &of_url);
        called.extend(statuses(others, credentials).await);
        ask_through(&mut called).await;
        called.into_iter().map(|(report, _)| report).collect()
    });
    Box::pin(reports)
}

fn answers(called: &[Called]) -> impl Iterator<Item = &ServiceStatus> {
    called.iter().filter_map(|(report, _)| report.status.as_ref().ok())
}

/// The members that have not answered at any address, by their client addresses; at most [`LEARNT_MAX`].
fn unanswered(called: &[Called]) -> Vec<(u64, Address)> {
    let answered: BTreeSet<u64> = answers(called).map(|status| status.node).collect();
    let mut others: Vec<(u64, Address)> = Vec::new();
    for member in answers(called).flat_map(|status| &status.members) {
        let Some(address) = Address::parse(&member.client_address) else { continue };
        let is_new = !others.iter().any(|(node, other)| *node == member.node || *other == address);
        if is_new && !answered.contains(&member.node) {
            others.push((member.node, address));
        }
    }
    others.truncate(LEARNT_MAX);
    others
}

/// The addresses of members that have not answered under another address.
fn not_asked(called: &[Called], asked: &[Address]) -> Vec<Address> {
    let others = unanswered(called).into_iter().map(|(_, address)| address);
    others.filter(|address| !asked.contains(address)).collect()
}

/// Asks the leader, or else another node that answers, for the status of the members that do not.
async fn ask_through(called: &mut [Called]) {
    let leads = |report: &NodeReport| report.status.as_ref().is_ok_and(|it| it.role == NodeRole::Leader);
    let Some(through) = called
        .iter()
        .filter_map(|(report, client)| client.as_ref().map(|client| (leads(report), client)))
        .max_by_key(|(leads, _)| *leads)
        .map(|(_, client)| client.clone())
    else {
        return;
    };
    let mut calls = JoinSet::new();
    for (node, address) in unanswered(called) {
        let mut client = through.clone();
        calls.spawn(async move {
            let answer = client.status(StatusRequest { node });
            let status = tokio::time::timeout(NODE_LIMIT, answer).await.ok()?.ok()?.into_inner();
            Some((address, describe::status(status)))
        });
    }
    for (address, status) in calls.join_all().await.into_iter().flatten() {
        let silent = called.iter_mut().map(|(report, _)| report).find(|it| it.address == address.as_str());
        if let Some(report) = silent
            && let Err(why) = &report.status
        {
            report.unreached = Some(why.clone());
            (report.answers, report.status) = (true, Ok(status));
        }
    }
}

/// Calls these nodes at once. The reports are in the order of the addresses.
async fn statuses(addresses: Vec<Address>, credentials: Credentials) -> Vec<Called> {
    let mut calls = JoinSet::new();
    for (at, address) in addresses.into_iter().enumerate() {
        let credentials = credentials.clone();
        calls.spawn(async move {
            let (answers, status, client) = match reach(&address, &credentials).await {
                Ok(node) => (true, Ok(describe::status(node.status)), Some(node.client)),
                Err(failure) => (!failure.is_silent(), Err(failure.why.to_string()), None),
            };
            let report = NodeReport { address: address.to_string(), answers, status, unreached: None };
            (at, (report, client))
        });
    }
    let mut called = calls.join_all().await;
    called.sort_unstable_by_key(|(at, _)| *at);
    called.into_iter().map(|(_, called)| called).collect()
}
