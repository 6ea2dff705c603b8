//! Operator commands for the cluster.

use lockkeeper_backend::{BackendError, BoxFuture, ClusterInfo, MembersChange, NodeInfo, NodePart};
use lockkeeper_wire::v1::{self, change_members_request};

use super::driver::GrpcClient;
use super::unary::{Asker, Repeat};

pub(super) fn info(asker: &Asker) -> BoxFuture<'static, Result<ClusterInfo, BackendError>> {
    let answer = asker.ask(Repeat::Again, |mut client: GrpcClient| async move {
        client.members(v1::MembersRequest {}).await
    });
    Box::pin(async move {
        let v1::MembersResponse { nodes, leader, term, last, changing, removed } = answer.await?;
        let nodes = nodes.into_iter().map(node).collect();
        Ok(ClusterInfo { nodes, leader, term, last, changing, removed })
    })
}

pub(super) fn node(reported: v1::ClusterNode) -> NodeInfo {
    let part = match reported.part() {
        v1::NodePart::Learner => NodePart::Learner,
        v1::NodePart::Leaving => NodePart::Leaving,
        v1::NodePart::Voter | v1::NodePart::Unspecified => NodePart::Voter,
    };
    let v1::ClusterNode {
        node,
        peer_address,
        client_address,
        answers,
        matched,
        receives_snapshot,
        data_lost,
        ..
    } = reported;
    NodeInfo { node, peer_address, client_address, part, answers, matched, receives_snapshot, data_lost }
}

pub(super) fn change(asker: &Asker, change: MembersChange) -> BoxFuture<'static, Result<(), BackendError>> {
    use change_members_request::What;
    let what = match change {
        MembersChange::Add { node, peer_address } => What::Add(v1::NewNode { node, peer_address }),
        MembersChange::Remove { node } => What::Remove(node),
    };
    let asked = v1::ChangeMembersRequest { what: Some(what) };
    // Safe to repeat: a change that has been made is not made again (O1).
    let answer = asker.ask(Repeat::Again, move |mut client: GrpcClient| {
        let asked = asked.clone();
        async move { client.change_members(asked).await }
    });
    Box::pin(async move { answer.await.map(|v1::ChangeMembersResponse {}| ()) })
}

pub(super) fn transfer(asker: &Asker, to: Option<u64>) -> BoxFuture<'static, Result<u64, BackendError>> {
    let asked = v1::TransferRequest { node: to.unwrap_or(0), reason: String::new() };
    // Without a target, each repeat would transfer the leadership once more.
    let asking = if to.is_some() { Repeat::Again } else { Repeat::Once };
    let answer = asker.ask(asking, move |mut client: GrpcClient| {
        let asked = asked.clone();
        async move { client.transfer(asked).await }
    });
    Box::pin(async move { answer.await.map(|answer| answer.leader) })
}
