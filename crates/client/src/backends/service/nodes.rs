//! The status of every node of a cluster, for operators. Needs no leader: each node answers for itself.

use std::collections::BTreeSet;

use lockkeeper_backend::{BackendError, BoxFuture, NodeReport};
use tokio::task::JoinSet;

use super::addresses::{Address, LEARNT_MAX};
use super::credentials::Credentials;
use super::describe;
use super::search::reach;
use super::unary::Asker;

/// Calls the nodes of the URL, then further members that they report.
pub(super) fn ask_all(asker: &Asker) -> BoxFuture<'static, Result<Vec<NodeReport>, BackendError>> {
    let (of_url, credentials) = (asker.addresses().of_url(), asker.credentials());
    let reports = asker.run(async move {
        let mut reports = statuses(of_url.clone(), credentials.clone()).await;
        let others = not_asked(&reports, &of_url);
        reports.extend(statuses(others, credentials).await);
        reports
    });
    Box::pin(reports)
}

/// The addresses of members that have not answered under another address.
fn not_asked(reports: &[NodeReport], asked: &[Address]) -> Vec<Address> {
    let answers = || reports.iter().filter_map(|report| report.status.as_ref().ok());
    let answered: BTreeSet<u64> = answers().map(|status| status.node).collect();
    let mut others: Vec<Address> = Vec::new();
    for member in answers().flat_map(|status| &status.members) {
        let Some(address) = Address::parse(&member.client_address) else { continue };
        if !answered.contains(&member.node) && !asked.contains(&address) && !others.contains(&address) {
            others.push(address);
        }
    }
    others.truncate(LEARNT_MAX);
    others
}

/// Calls these nodes at once. The reports are in the order of the addresses.
async fn statuses(addresses: Vec<Address>, credentials: Credentials) -> Vec<NodeReport> {
    let mut calls = JoinSet::new();
    for (at, address) in addresses.into_iter().enumerate() {
        let credentials = credentials.clone();
        calls.spawn(async move {
            let (answers, status) = match reach(&address, &credentials).await {
                Ok(node) => (true, Ok(describe::status(node.status))),
                Err(failure) => (!failure.is_silent(), Err(failure.why.to_string())),
            };
            (at, NodeReport { address: address.to_string(), answers, status })
        });
    }
    let mut reports = calls.join_all().await;
    reports.sort_unstable_by_key(|(at, _)| *at);
    reports.into_iter().map(|(_, report)| report).collect()
}
