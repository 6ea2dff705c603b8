//! Proof that an incoming connection comes from the address of the member that it names.
//!
//! Responsible for: a node's id and incarnation do not suffice to send messages of the consensus, or
//! snapshots, in its name. This node sends every other node a ticket (a random secret), in the hello of a
//! connection that it opens to that node's address, and nowhere else; an incoming connection from that node
//! must present it. An attacker that reads the network, or has taken the address of a member that is down,
//! can still impersonate that member.

use std::collections::BTreeMap;

use lockkeeper_wire::peer::Hello;

use crate::data::id;
use crate::error::ServeError;

/// How many of the latest tickets received from a node are presented to it: a forged ticket must not displace
/// the true one at once.
const PRESENTED_MAX: usize = 4;
/// The length of a ticket, in bytes.
const TICKET_BYTES: usize = 16;

/// Tickets that this process gave to other nodes and got from them, by node.
#[derive(Default, Debug)]
pub(super) struct Tickets {
    given: BTreeMap<u64, Vec<u8>>,
    got: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Tickets {
    /// Fills in the ticket and the presented tickets of a hello that is sent to the address of node `to`.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub(super) fn fill(&mut self, to: u64, hello: &mut Hello) -> Result<(), ServeError> {
        let ticket = match self.given.get(&to) {
            Some(ticket) => ticket.clone(),
            None => {
                let ticket = id()?;
                self.given.insert(to, ticket.clone());
                ticket
            }
        };
        hello.ticket = ticket;
        hello.presented = self.got.get(&to).cloned().unwrap_or_default();
        Ok(())
    }

    /// Stores the ticket of a member that has connected; returns whether it is new.
    pub(super) fn take(&mut self, hello: &Hello) -> bool {
        if hello.ticket.len() != TICKET_BYTES {
            return false;
        }
        let got = self.got.entry(hello.node).or_default();
        if got.contains(&hello.ticket) {
            return false;
        }
        got.insert(0, hello.ticket.clone());
        got.truncate(PRESENTED_MAX);
        true
    }

    /// Whether a member that has connected presents the ticket that it was sent.
    pub(super) fn knows(&self, hello: &Hello) -> bool {
        self.given.get(&hello.node).is_some_and(|given| hello.presented.contains(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(of: &mut Tickets, node: u64, to: u64) -> Hello {
        let mut hello = Hello { node, ..Hello::default() };
        of.fill(to, &mut hello).expect("random numbers");
        hello
    }

    #[test]
    fn node_is_known_once_it_presents_the_ticket_sent_to_its_address() {
        let (mut one, mut two) = (Tickets::default(), Tickets::default());
        let first = hello(&mut one, 1, 2);
        assert!(!two.knows(&first), "it has not reached node 1 yet");
        assert!(two.take(&first) && !two.take(&first));
        let second = hello(&mut two, 2, 1);
        assert!(one.knows(&second), "it was at its address");
        assert!(one.take(&second));
        assert!(two.knows(&hello(&mut one, 1, 2)));
        assert!(!Tickets::default().knows(&second), "after a restart it must be reached again");
        assert!(!one.knows(&Hello { node: 3, ..second }), "a ticket is of one node");
    }

    #[test]
    fn forged_tickets_are_bounded_and_prove_nothing() {
        let (mut one, mut two) = (Tickets::default(), Tickets::default());
        two.take(&hello(&mut one, 1, 2));
        for number in 0..PRESENTED_MAX as u8 - 1 {
            two.take(&Hello { node: 1, ticket: vec![number; TICKET_BYTES], ..Hello::default() });
        }
        assert!(one.knows(&hello(&mut two, 2, 1)), "it is among the latest");
        for number in 100..200 {
            two.take(&Hello { node: 1, ticket: vec![number; TICKET_BYTES], ..Hello::default() });
            assert!(hello(&mut two, 2, 1).presented.len() <= PRESENTED_MAX);
        }
        assert!(!two.take(&Hello { node: 1, ticket: vec![7; TICKET_BYTES + 1], ..Hello::default() }));
        assert!(!one.knows(&Hello { node: 2, presented: vec![Vec::new()], ..Hello::default() }));
    }
}
