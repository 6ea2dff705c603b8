//! The streams of sessions, and the calls of sessions whose clients keep no stream.
//!
//! Reading order: `stream.rs` (a client's stream), `session_calls.rs` (sessions without a stream).

mod session_calls;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockkeeper_places::Places;
use lockkeeper_replica::{CallId, Event, Requester, StreamId};
use lockkeeper_wire::v1::StreamEndReason;
use parking_lot::{Mutex, MutexGuard};
use tonic::Status;

use super::callers::{Caller, Callers};
use super::replica_handle::ReplicaHandle;
use super::transport::Connection;
use crate::access::Identity;
use crate::observe;
use crate::traces::TraceArrivals;
use session_calls::WaitingCall;
pub(super) use session_calls::{CallAnswer, POLL_MAX, call_ended};
use stream::SessionStream;
pub(super) use stream::StreamResponses;
pub(super) use stream::stream_end;

/// Maximum number of session streams at a node; at most half of them of one identity.
const STREAMS_MAX: usize = 1 << 16;
/// Maximum number of session calls in progress at a node; at most half of them of one identity. More than of
/// streams, since a stream carries many sessions, and every session without one may have a call that waits.
const CALLS_MAX: usize = 1 << 18;

/// The sessions that clients have at this node.
pub(super) struct ClientSessions {
    replica: Arc<ReplicaHandle>,
    callers: Arc<Callers>,
    /// `None`: acquires are not traced.
    traced: Option<Arc<TraceArrivals>>,
    /// Limits the session streams, by the identity of the client.
    places: Arc<Places<Identity>>,
    /// Limits the session calls, likewise.
    call_places: Arc<Places<Identity>>,
    registry: Mutex<StreamRegistry>,
}

#[derive(Default)]
pub(super) struct StreamRegistry {
    pub(super) streams: BTreeMap<StreamId, Arc<SessionStream>>,
    pub(super) calls: BTreeMap<CallId, WaitingCall>,
}

impl StreamRegistry {
    pub(super) fn caller(&self, of: Requester) -> Option<&Caller> {
        match of {
            Requester::Stream(stream) => self.streams.get(&stream).map(|it| it.caller()),
            Requester::Call(call) => self.calls.get(&call).map(WaitingCall::caller),
        }
    }
}

impl ClientSessions {
    pub(super) fn new(
        replica: Arc<ReplicaHandle>,
        callers: Arc<Callers>,
        traced: Option<Arc<TraceArrivals>>,
    ) -> Arc<Self> {
        let (places, call_places) = (Places::new(STREAMS_MAX), Places::new(CALLS_MAX));
        Arc::new(Self { replica, callers, traced, places, call_places, registry: Mutex::default() })
    }

    /// Opens a stream of requests of the caller's sessions, which another node may relay.
    ///
    /// # Errors
    /// A limit of streams is reached.
    pub(super) fn open_stream(
        &self,
        connection: &Arc<Connection>,
        caller: Caller,
        is_relayed: bool,
    ) -> Result<Arc<SessionStream>, Status> {
        let place = self.callers.place("streams of sessions", &self.places, &caller)?;
        let stream = SessionStream::new(
            StreamId(self.replica.next_id()),
            connection.clone(),
            caller,
            place,
            is_relayed,
        );
        let caller = &stream.caller().identity;
        let (identity, quota) = (caller.as_str().into(), self.callers.access.quota(caller));
        let mut registry = self.registry();
        registry.streams.insert(stream.id, stream.clone());
        observe::streams(registry.streams.len());
        drop(registry);
        self.replica.push_from(&stream.source, Event::StreamOpened { stream: stream.id, identity, quota });
        Ok(stream)
    }

    /// Sends the quotas of the current files to the replica. Without permissions they never change.
    pub(super) fn set_quotas(&self) {
        if self.callers.access.digest().is_none() {
            return;
        }
        let callers: BTreeSet<Identity> =
            self.registry().streams.values().map(|stream| stream.caller().identity.clone()).collect();
        let of = |caller: &Identity| (caller.as_str().into(), self.callers.access.quota(caller));
        let by_identity = callers.iter().map(of).collect();
        self.replica.push(Event::Quotas { total: self.callers.access.total_quota(), by_identity });
    }

    fn forget_stream(&self, id: StreamId) {
        let mut registry = self.registry();
        registry.streams.remove(&id);
        observe::streams(registry.streams.len());
    }

    /// Ends the streams and calls of callers that are no longer permitted by the current files.
    pub(super) fn end_denied(&self) {
        let registry = self.registry();
        let streams: Vec<_> = registry.streams.values().cloned().collect();
        let calls: Vec<_> = registry.calls.iter().map(|(id, call)| (*id, call.caller().clone())).collect();
        drop(registry);
        for stream in streams {
            if let Some(refusal) = self.callers.ended(stream.caller()) {
                stream.end(stream_end(StreamEndReason::Denied, refusal));
            }
        }
        for (id, caller) in calls {
            if let Some(refusal) = self.callers.ended(&caller) {
                self.registry().end_call(id, Err(Status::permission_denied(refusal)));
            }
        }
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, StreamRegistry> {
        self.registry.lock()
    }
}
