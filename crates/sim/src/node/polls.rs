//! P7: a keep-alive that waits for requests of its session is answered once one of them is granted.

use std::collections::BTreeMap;

use lockkeeper_core::{Reply, Seq, SessionId, Table};
use lockkeeper_replica::{CallId, CallRequest};

/// The calls at a node that wait for requests.
#[derive(Default)]
pub(super) struct Polls {
    open: BTreeMap<CallId, Poll>,
}

struct Poll {
    session: SessionId,
    waiting: Vec<Seq>,
    /// It was confirmed and waits.
    waits: bool,
}

impl Polls {
    pub(super) fn called(&mut self, call: CallId, request: &CallRequest) {
        if let CallRequest::KeepAlive { session, poll, .. } = request
            && poll.waits
        {
            let poll = Poll { session: *session, waiting: poll.waiting.clone(), waits: false };
            self.open.insert(call, poll);
        }
    }

    /// The node has answered that the call waits. Requests that do not wait now were unknown then.
    pub(super) fn begin(&mut self, call: CallId, table: &Table) {
        if let Some(poll) = self.open.get_mut(&call) {
            poll.waiting.retain(|&seq| table.is_waiting(poll.session, seq));
            poll.waits = true;
        }
    }

    pub(super) fn end(&mut self, call: CallId) {
        self.open.remove(&call);
    }

    /// A call that waits though one of its requests is granted.
    pub(super) fn missed(&self, table: &Table) -> Option<(u64, String)> {
        self.open.iter().filter(|(_, poll)| poll.waits).find_map(|(call, poll)| {
            let granted = |seq: &&Seq| matches!(table.request(poll.session, **seq), Some(Reply::Granted(_)));
            let seq = poll.waiting.iter().find(granted)?;
            let session = poll.session;
            Some((
                session.0,
                format!("{call:?} waits for request {seq} of session {session}, which is granted"),
            ))
        })
    }
}
