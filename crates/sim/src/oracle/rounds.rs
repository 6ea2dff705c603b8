//! P6: a node that acknowledges a keep-alive, attach or call, or answers a read, was still the leader when it
//! received the request: no node had been elected in a later term by then.

use std::collections::BTreeMap;

use lockkeeper_replica::{AskId, CallId, Event, StreamId};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, server_item::What};

use super::CheckResult;
use super::log::AgreedLog;
use crate::clock::Nanos;
use crate::core::Id;

/// A request, identified by the fields that its acknowledgement repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Sign {
    KeepAlive(StreamId, u64, u64),
    Attach(StreamId, u64, u64),
    Call(CallId),
    Ask(AskId),
}

/// When each request was first passed to the replica of a node.
#[derive(Default)]
pub(crate) struct QuorumReadChecker {
    given: BTreeMap<Sign, Nanos>,
}

impl QuorumReadChecker {
    pub(crate) fn handed_over(&mut self, now: Nanos, event: &Event) {
        match event {
            Event::Asked(ask, _) => self.given(now, Sign::Ask(*ask)),
            Event::Called(call, _) => self.given(now, Sign::Call(*call)),
            Event::Frame(stream, requests) => {
                for request in requests {
                    match request {
                        Request::KeepAlive { session, id } => {
                            self.given(now, Sign::KeepAlive(*stream, session.0, *id));
                        }
                        Request::Attach { session, attach, .. } => {
                            self.given(now, Sign::Attach(*stream, session.0, *attach));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn given(&mut self, now: Nanos, sign: Sign) {
        self.given.entry(sign).or_insert(now);
    }

    /// Checks an item that a node sends to a client; `term` is the term in which the node leads, if it does.
    pub(crate) fn sent(
        &mut self,
        node: Id,
        term: Option<u64>,
        stream: StreamId,
        item: &v1::ServerItem,
        log: &AgreedLog,
    ) -> CheckResult {
        let sign = match &item.what {
            Some(What::KeptAlive(it)) => Sign::KeepAlive(stream, item.session, it.id),
            Some(What::Attached(it)) => Sign::Attach(stream, item.session, it.attach),
            _ => return Ok(()),
        };
        self.answered(node, term, sign, log)
    }

    /// Checks a node's answer to a read; `term` is the term in which the node leads, if it does.
    pub(crate) fn read(&mut self, node: Id, term: Option<u64>, ask: AskId, log: &AgreedLog) -> CheckResult {
        self.answered(node, term, Sign::Ask(ask), log)
    }

    /// Checks a node's first answer to a call that it does not refuse.
    pub(crate) fn called(
        &mut self,
        node: Id,
        term: Option<u64>,
        call: CallId,
        log: &AgreedLog,
    ) -> CheckResult {
        self.answered(node, term, Sign::Call(call), log)
    }

    fn answered(&mut self, node: Id, term: Option<u64>, sign: Sign, log: &AgreedLog) -> CheckResult {
        let Some(given) = self.given.remove(&sign) else { return Ok(()) };
        let Some(term) = term else {
            return Err(("P6", format!("node {node} answers {sign:?}, and does not lead")));
        };
        match log.elected_after(term) {
            Some((later, other, at)) if at < given => Err((
                "P6",
                format!(
                    "node {node} answers {sign:?} as the leader of term {term}; node {other} had been elected in \
                     term {later} {} ns before it was asked",
                    given - at
                ),
            )),
            _ => Ok(()),
        }
    }
}
