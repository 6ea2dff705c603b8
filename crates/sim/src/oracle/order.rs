//! P8: who came first is logged first, so it gets the lower ticket. One for each node, and anew for each of its runs.

use std::collections::BTreeMap;

use lockkeeper_core::{Command, Seq, SessionId};
use lockkeeper_replica::Event;
use lockkeeper_wire::request::Request;

use super::told::Verdict;

#[derive(Default)]
pub(crate) struct Order {
    /// At which turns of the input an acquire was given to this run of the node, first and last.
    handed: BTreeMap<(SessionId, Seq), (u64, u64)>,
    handings: u64,
    /// The latest first handing of all that this run has logged.
    logged: (u64, Option<(SessionId, Seq)>),
}

impl Order {
    /// The replica is given something.
    pub(crate) fn handed_over(&mut self, event: &Event) {
        let Event::Frame(_, requests) = event else { return };
        for request in requests {
            if let Request::Command { session, seq, command: Command::Acquire(_) } = request {
                self.handings += 1;
                let handing = self.handings;
                self.handed.entry((*session, *seq)).or_insert((handing, handing)).1 = handing;
            }
        }
    }

    /// The replica proposes something.
    pub(crate) fn proposed(&mut self, command: &Command) -> Verdict {
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
