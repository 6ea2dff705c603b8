//! P8: acquires are logged in the order of their arrival, so that earlier ones get lower tickets. Each run of
//! each node has its own [`ProposalOrder`].

use std::collections::BTreeMap;

use lockkeeper_core::{Command, Seq, SessionId};
use lockkeeper_replica::{CallRequest, Event};
use lockkeeper_wire::request::Request;

use super::CheckResult;

#[derive(Default)]
pub(crate) struct ProposalOrder {
    /// For each acquire, when it was first and last passed to the replica in this run. Times are counts of
    /// such events.
    handed: BTreeMap<(SessionId, Seq), (u64, u64)>,
    handings: u64,
    /// Of the acquires proposed so far: the one whose first time is the latest, and that time.
    logged: (u64, Option<(SessionId, Seq)>),
}

impl ProposalOrder {
    /// To be called when an event is passed to the replica.
    pub(crate) fn handed_over(&mut self, event: &Event) {
        match event {
            Event::Frame(_, requests) => {
                for request in requests {
                    if let Request::Command { session, seq, command: Command::Acquire(_) } = request {
                        self.handed(*session, *seq);
                    }
                }
            }
            Event::Called(_, called) => {
                if let CallRequest::Command { session, seq, command: Command::Acquire(_), .. } =
                    &called.request
                {
                    self.handed(*session, *seq);
                }
            }
            _ => {}
        }
    }

    fn handed(&mut self, session: SessionId, seq: Seq) {
        self.handings += 1;
        let handing = self.handings;
        self.handed.entry((session, seq)).or_insert((handing, handing)).1 = handing;
    }

    /// Checks a command that the replica proposes.
    pub(crate) fn proposed(&mut self, command: &Command) -> CheckResult {
        let Command::Acquire(it) = command else { return Ok(()) };
        let Some(&(first, last)) = self.handed.get(&(it.session, it.seq)) else { return Ok(()) };
        if last < self.logged.0 {
            return Err((
                "P8",
                format!("{}/{} came before {:?}, and is logged behind it", it.session, it.seq, self.logged.1),
            ));
        }
        if first > self.logged.0 {
            self.logged = (first, Some((it.session, it.seq)));
        }
        Ok(())
    }
}
