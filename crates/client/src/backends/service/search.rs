//! Finds a node that answers, in the order of the addresses, without waiting long for any one: a node that is
//! stopped by SIGSTOP (the kernel still accepts its connections) or unreachable must not use up the caller's
//! whole time limit.
//!
//! The search only sends status calls, which change nothing, so several nodes may be called in parallel. The
//! caller's own call is sent by `unary`, to one node at a time, and only to one that has answered before
//! (P12).

use std::time::Duration;

use lockkeeper_wire::v1::{StatusRequest, StatusResponse};
use tokio::task::JoinSet;

use super::addresses::{Address, Addresses};
use super::credentials::Credentials;
use super::driver::{CONNECT_LIMIT, GrpcClient, connect};
use super::failures::{self, NODE_LIMIT, NodeFailure, Why};

/// Without an answer for this long, the next node is called in parallel. Longer than a round trip around the
/// world, so that a healthy cluster receives one call.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// A search in rounds over all nodes. Dropping it cancels the calls in flight.
pub(super) struct Search {
    pub(super) addresses: Addresses,
    credentials: Credentials,
    /// The error of each node in this round, for users.
    pub(super) failures: Vec<NodeFailure>,
    under_way: JoinSet<(Address, Result<AnsweringNode, NodeFailure>)>,
    /// The nodes called by `under_way`.
    asked: Vec<Address>,
    /// The number of nodes that may still be called in this round.
    left: usize,
}

impl Search {
    /// Starts a search with its first round.
    pub(super) fn among(addresses: Addresses, credentials: Credentials) -> Self {
        let left = addresses.count();
        Self {
            addresses,
            credentials,
            failures: Vec::new(),
            under_way: JoinSet::new(),
            asked: Vec::new(),
            left,
        }
    }

    /// Starts a new round, in which all nodes may be called again.
    pub(super) fn begin_round(&mut self) {
        self.failures.clear();
        self.left = self.addresses.count();
    }

    /// The next node that answers; `None` at the end of the round.
    pub(super) async fn next(&mut self) -> Option<(Address, GrpcClient)> {
        // From the second call on: the node found before did not serve the caller.
        self.ask_another();
        loop {
            let ended = tokio::select! {
                biased;
                ended = self.under_way.join_next() => ended?,
                () = tokio::time::sleep(NEXT_AFTER), if self.left > 0 => {
                    self.ask_another();
                    continue;
                }
            };
            // A task is cancelled only when the search is dropped.
            let Ok((address, reached)) = ended else { continue };
            self.asked.retain(|asked| *asked != address);
            match reached {
                Ok(node) => return Some((address, node.client)),
                Err(failure) => {
                    self.failures.push(failure);
                    self.addresses.failed();
                    self.ask_another();
                }
            }
        }
    }

    /// Calls the next node that is not being called, if the round has one left.
    fn ask_another(&mut self) {
        if self.left == 0 {
            return;
        }
        for _ in 0..=self.addresses.count() {
            let address = self.addresses.take();
            if !self.asked.contains(&address) {
                self.left -= 1;
                self.asked.push(address.clone());
                let credentials = self.credentials.clone();
                self.under_way.spawn(async move {
                    let reached = reach(&address, &credentials).await;
                    (address, reached)
                });
                return;
            }
        }
    }
}

/// A node that has answered.
pub(super) struct AnsweringNode {
    pub(super) client: GrpcClient,
    pub(super) status: StatusResponse,
}

/// Connects to a node and requests its status.
pub(super) async fn reach(
    address: &Address,
    credentials: &Credentials,
) -> Result<AnsweringNode, NodeFailure> {
    let client = match connect(address, CONNECT_LIMIT, credentials).await {
        Ok(client) => client,
        Err(NodeFailure { node, why }) => {
            return Err(NodeFailure { node, why: failures::explained_silence(address, why).await });
        }
    };
    let mut asked = client.clone();
    let answer = asked.status(StatusRequest { node: 0 });
    let why = match tokio::time::timeout(NODE_LIMIT, answer).await {
        Ok(Ok(answer)) => return Ok(AnsweringNode { client, status: answer.into_inner() }),
        Ok(Err(status)) => failures::explained(address, Why::of(&status), credentials.tls.is_some()).await,
        Err(_) => failures::explained_silence(address, Why::no_answer(NODE_LIMIT)).await,
    };
    Err(NodeFailure { node: address.to_string(), why })
}
