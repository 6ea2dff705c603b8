//! Streams of sessions from clients that can't reach the leader: behind NAT, a port-forward or a load
//! balancer, the address that the leader advertises leads nowhere, or to another node.
//!
//! A client asks for a relay by naming the address that it could not reach. This node passes the bytes of the
//! stream on to the leader, and those of the leader back; it reads no frame, so sessions, attaches and seqs
//! are those of a direct stream (P5, P7). The leader checks each request by the client's own identity.
//!
//! Invariant: the leader starts `linger` for no end of a relayed stream, since the end may be this node's:
//! what a client that has gone held over a relay ends with its ttl.

use std::sync::Arc;

use http::{Request, Response};
use lockkeeper_places::{Places, TakenPlace};
use lockkeeper_wire::RELAY_METADATA;
use tonic::Status;
use tonic::body::Body;

use super::link::{self, ForwardedStream};
use super::{passed_on, until_other};
use crate::access::Identity;
use crate::front::callers::Caller;
use crate::front::calls::Calls;
use crate::front::paths::FORWARDED;
use crate::front::transport::{Starting, holding};
use crate::inbox::ReplicaStatus;
use crate::observe;

/// Maximum number of relayed streams at a node; at most half of them of one identity. Each costs a connection
/// to the leader, and about 1.5 MiB while one of its ends does not read.
const RELAYS_MAX: usize = 1 << 9;
/// The flow-control window of the connection to the leader, in bytes.
const RELAY_WINDOW: u32 = 128 << 10;

/// The relayed streams of a node.
pub(in crate::front) struct Relays(Arc<Places<Identity>>);

impl Default for Relays {
    fn default() -> Self {
        Self(Places::new(RELAYS_MAX))
    }
}

impl Relays {
    pub(in crate::front) fn count(&self) -> usize {
        self.0.taken()
    }
}

/// The leader to which the request's stream has to be relayed, with the leader's address. `None`: the client
/// does not ask for a relay, or not to the leader that this node follows (it first tries that one itself), or
/// another node has relayed the stream already.
pub(super) fn leader_for(calls: &Calls, request: &Request<Body>) -> Option<(u64, String)> {
    let unreached = request.headers().get(RELAY_METADATA)?;
    let ReplicaStatus::Following { leader } = *calls.replica.state().borrow() else { return None };
    let address = calls.replica.clients().get(&leader).cloned()?;
    let is_asked = unreached.as_bytes() == address.as_bytes() && !request.headers().contains_key(FORWARDED);
    is_asked.then_some((leader, address))
}

/// Relays the stream that the request opens.
///
/// # Errors
/// This node shuts down, relays as many streams as it may, or can't reach the leader either.
pub(super) async fn relay(
    calls: Arc<Calls>,
    (leader, address): (u64, String),
    caller: Caller,
    mut request: Request<Body>,
) -> Result<Response<Body>, Status> {
    calls.replica.check_serving()?;
    let relayed =
        Relayed { _place: calls.callers.place("relays", &calls.relays.0, &caller)?, calls: calls.clone() };
    relayed.show();
    // No frame of this stream reaches the replica of this node, so no drain barrier waits for it.
    drop(request.extensions_mut().remove::<Arc<Starting>>());
    let (parts, body) = request.into_parts();
    let request = passed_on(&calls, &caller, &parts, &address, body)?;
    let answer = async {
        let mut link = link::dial(leader, &address, calls.tls.as_deref(), Some(RELAY_WINDOW)).await?;
        link.send(request).await.map_err(|_| std::io::Error::other("it did not answer"))
    };
    let mut state = calls.replica.state();
    let answer = tokio::select! {
        answer = answer => answer,
        () = until_other(&mut state, leader) => Err(std::io::Error::other("it leads no more")),
    };
    let answer = answer.map_err(|why| {
        Status::unavailable(format!(
            "this node follows node {leader}, and can't reach it at {address} either ({why}): if node {leader} runs, \
             correct its `--advertise`"
        ))
    })?;
    let cut = Box::pin(async move {
        until_other(&mut state, leader).await;
        Status::unavailable(format!("node {leader}, to which this node relayed the stream, leads no more"))
    });
    let stream = ForwardedStream::new(calls, caller).until(cut);
    Ok(holding(relayed, link::passed(answer, Some(stream))))
}

/// A stream in the count of those that this node relays.
struct Relayed {
    calls: Arc<Calls>,
    _place: TakenPlace<Identity>,
}

impl Relayed {
    fn show(&self) {
        observe::relays(self.calls.relays.count());
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        // This stream is still counted.
        observe::relays(self.calls.relays.count().saturating_sub(1));
    }
}
