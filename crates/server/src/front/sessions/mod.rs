//! The streams of sessions, and the calls of sessions whose clients keep no stream.
//!
//! Reading order: `stream.rs` (a client's stream), `session_calls/mod.rs` (sessions without a stream).

mod session_calls;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_places::{Places, TakenPlace};
use lockkeeper_replica::{Event, StreamId};
use lockkeeper_wire::v1::{self, StreamEndReason};
use tonic::Status;

use super::callers::{Caller, Callers};
use super::replica_handle::ReplicaHandle;
use super::transport::Connection;
use crate::access::Identity;
use crate::inbox::Source;
use crate::observe;
use crate::traces::TraceArrivals;
pub(super) use session_calls::POLL_MAX;
#[cfg(test)]
pub(super) use session_calls::{IDLE_MAX, SHORT_CALL};
use session_calls::{SharedStream, SharedStreams};
use stream::SessionStream;
pub(super) use stream::StreamResponses;
pub(super) use stream::stream_end;

/// Maximum number of session streams at a node; at most half of them of one identity.
const STREAMS_MAX: usize = 1 << 16;

/// The sessions that clients have at this node.
pub(super) struct ClientSessions {
    replica: Arc<ReplicaHandle>,
    callers: Arc<Callers>,
    /// `None`: acquires are not traced.
    traced: Option<Arc<TraceArrivals>>,
    /// Limits the session streams, by the identity of the client.
    places: Arc<Places<Identity>>,
    registry: Mutex<StreamRegistry>,
}

#[derive(Default)]
pub(super) struct StreamRegistry {
    pub(super) streams: BTreeMap<StreamId, OpenStream>,
    /// The streams that session calls share; also in `streams`.
    shared_streams: SharedStreams,
}

/// A stream to the replica, with the requests of sessions.
#[derive(Clone)]
pub(super) enum OpenStream {
    /// The stream of a client.
    Client(Arc<SessionStream>),
    /// A stream that the calls of a session share.
    Shared(Arc<SharedStream>),
}

impl OpenStream {
    pub(super) fn caller(&self) -> Caller {
        match self {
            Self::Client(stream) => stream.caller().clone(),
            Self::Shared(stream) => stream.caller(),
        }
    }

    pub(super) fn deliver(&self, sessions: &ClientSessions, items: Vec<v1::ServerItem>) {
        match self {
            Self::Client(stream) => stream.deliver(items),
            Self::Shared(stream) => stream.deliver(sessions, items),
        }
    }

    /// Ends the streams or calls whose callers are no longer permitted. `refusal` returns the reason, or
    /// `None` if the caller is permitted.
    fn end_denied(&self, refusal: impl Fn(&Caller) -> Option<String>) {
        match self {
            Self::Client(stream) => {
                if let Some(text) = refusal(stream.caller()) {
                    stream.end(stream_end(StreamEndReason::Denied, text));
                }
            }
            Self::Shared(stream) => stream.end_denied(refusal),
        }
    }

    /// The shared stream, if no call can use it again.
    pub(super) fn unused(&self) -> Option<Arc<SharedStream>> {
        match self {
            Self::Shared(stream) if stream.is_unused() => Some(stream.clone()),
            _ => None,
        }
    }

    pub(super) fn end(&self, end: v1::StreamEnd) {
        match self {
            Self::Client(stream) => stream.end(end),
            Self::Shared(stream) => stream.end(&end),
        }
    }
}

impl ClientSessions {
    pub(super) fn new(
        replica: Arc<ReplicaHandle>,
        callers: Arc<Callers>,
        traced: Option<Arc<TraceArrivals>>,
    ) -> Arc<Self> {
        let (places, registry) = (Places::new(STREAMS_MAX), Mutex::default());
        Arc::new(Self { replica, callers, traced, places, registry })
    }

    /// Opens a stream of requests of the caller's sessions, and reads it.
    ///
    /// # Errors
    /// A limit of streams is reached.
    pub(super) fn open_stream(
        &self,
        connection: &Arc<Connection>,
        caller: Caller,
    ) -> Result<Arc<SessionStream>, Status> {
        let place = self.stream_place(&caller)?;
        let stream = SessionStream::new(StreamId(self.replica.next_id()), connection.clone(), caller, place);
        self.register_stream(stream.id, &stream.source, OpenStream::Client(stream.clone()));
        Ok(stream)
    }

    /// Adds a stream, and sends its opening to the replica.
    fn register_stream(&self, id: StreamId, source: &Source, stream: OpenStream) {
        let caller = stream.caller().identity;
        let (identity, quota) = (caller.as_str().into(), self.callers.access.quota(&caller));
        let mut registry = self.registry();
        registry.streams.insert(id, stream);
        observe::streams(registry.streams.len());
        drop(registry);
        self.replica.push_from(source, Event::StreamOpened { stream: id, identity, quota });
    }

    fn stream_place(&self, caller: &Caller) -> Result<TakenPlace<Identity>, Status> {
        self.callers.place("streams of sessions", &self.places, caller)
    }

    /// Sends the quotas of the current files to the replica. Without permissions they never change.
    pub(super) fn set_quotas(&self) {
        if self.callers.access.digest().is_none() {
            return;
        }
        let callers: BTreeSet<Identity> =
            self.registry().streams.values().map(|stream| stream.caller().identity).collect();
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
        let streams: Vec<_> = self.registry().streams.values().cloned().collect();
        for stream in streams {
            stream.end_denied(|caller| self.callers.ended(caller));
            if let Some(unused) = stream.unused() {
                self.close_unused(&unused);
            }
        }
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, StreamRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
