//! What every part of the world shares: the time, what is going to happen, chance, the network and the oracle.

use std::collections::BTreeMap;

use lockkeeper_replica::{Answer, AskId, Members, StreamId};
use lockkeeper_wire::peer::{Hello, Refusal};

use crate::bulk::{BulkId, Bulks};
use crate::clock::Nanos;
use crate::dice::Dice;
use crate::mutants::Place;
use crate::net::{Down, Net, Up};
use crate::oracle::Oracle;
use crate::peers::{LinkId, Peers};
use crate::scenario::{Fault, Scenario};
use crate::trace::Trace;

/// A node of the cluster, from 1 on.
pub(crate) type Id = u64;

/// Something that is going to happen.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// A packet arrives in a node's sockets.
    ToNode(StreamId, Up),
    /// A packet arrives at a client.
    ToClient(StreamId, Down),
    /// A node's loop runs.
    NodeTurn {
        node: Id,
        run: u64,
    },
    /// A node reads a socket.
    NodeReads {
        node: Id,
        run: u64,
        stream: StreamId,
    },
    /// A node's disk has done a write.
    NodeWrote {
        node: Id,
        run: u64,
    },
    /// A step of a snapshot is done.
    NodeStored {
        node: Id,
        run: u64,
    },
    /// A node starts.
    NodeStarts {
        node: Id,
    },
    /// A node without data writes the record that makes it a member.
    NodeFounds {
        node: Id,
        run: u64,
    },
    /// A node loses its disk, if the cluster can bear that now.
    NodeWiped {
        node: Id,
    },
    /// A node is told to stop; it dies soon after.
    NodeStops {
        node: Id,
    },
    /// A node is stopped, and started soon.
    NodeRestarts {
        node: Id,
    },
    /// A node dies, at a moment that was chosen before.
    NodeDies {
        node: Id,
        power: bool,
    },
    /// Nothing passes from one node to another until then.
    Cut {
        from: Id,
        to: Id,
        until: Nanos,
    },
    /// A node tries to reach another.
    PeerDials {
        from: Id,
        run: u64,
        to: Id,
    },
    /// What a node says first arrives; `any`: it has asked whoever is there.
    HelloArrives {
        from: Id,
        run: u64,
        to: Id,
        any: bool,
        hello: Box<Hello>,
    },
    /// And the answer.
    HelloAnswered {
        from: Id,
        run: u64,
        to: Id,
        to_run: u64,
        any: bool,
        answer: Box<Result<Hello, Refusal>>,
    },
    /// What is next on the way between two nodes arrives.
    PeerArrives(LinkId),
    /// A node hears that a link of its own, or one to it, is over.
    PeerCloses {
        node: Id,
        run: u64,
        link: LinkId,
    },
    /// A snapshot has reached the other node; and its sender hears whether it was taken.
    BulkArrives(BulkId),
    BulkSettles(BulkId, bool),
    /// A link between two nodes breaks.
    PeerBreaks(LinkId),
    /// A client's timers are due, or its pause is over.
    ClientWakes {
        client: usize,
        life: u64,
    },
    /// A client opens a stream.
    ClientConnects {
        client: usize,
        life: u64,
    },
    /// A job of a client goes on.
    JobStep {
        client: usize,
        life: u64,
        key: u64,
    },
    /// A client may begin another job.
    NextJob {
        client: usize,
        life: u64,
    },
    /// The client by hand does something, or only says that it lives.
    HandActs,
    HandLives,
    /// A crashed client begins anew.
    ClientStarts {
        client: usize,
    },
    /// The one who adds and removes nodes does something.
    OperatorActs,
    /// Something goes wrong.
    Faults,
    /// From now on nothing does, and everything must come to an end.
    FaultsEnd,
    /// The world looks whether everything did.
    Settled,
}

pub(crate) struct Core {
    pub(crate) now: Nanos,
    /// By time, then by a number that the dice give: what happens at one moment has no order of its own.
    queue: BTreeMap<(Nanos, u64, u64), Happening>,
    scheduled: u64,
    pub(crate) dice: Dice,
    pub(crate) trace: Trace,
    pub(crate) scenario: Scenario,
    pub(crate) mutant: Option<Place>,
    pub(crate) net: Net,
    pub(crate) peers: Peers,
    pub(crate) bulks: Bulks,
    pub(crate) oracle: Oracle,
    /// Whether faults still happen.
    pub(crate) is_stormy: bool,
    /// The nodes that take part, or are to.
    pub(crate) present: Vec<Id>,
    /// Who takes part, as whoever has applied most says.
    pub(crate) members: Members,
    /// The question whose answer the operator waits for, and the answer.
    pub(crate) awaited: Option<AskId>,
    pub(crate) answer: Option<Answer>,
}

impl Core {
    pub(crate) fn new(seed: u64, mutant: Option<Place>, keep_trace: bool) -> Self {
        let mut dice = Dice::new(seed);
        let scenario = Scenario::roll(&mut dice).with_crowd(&mut Dice::new(!seed));
        let mut trace = Trace::new(keep_trace);
        trace.note(0, format_args!("{scenario:?}"));
        Self {
            now: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            net: Net::new(scenario.clients),
            peers: Peers::default(),
            bulks: Bulks::default(),
            oracle: Oracle::new(&scenario),
            present: (1..=scenario.nodes).collect(),
            members: Members::default(),
            awaited: None,
            answer: None,
            dice,
            trace,
            scenario,
            mutant,
            is_stormy: true,
        }
    }

    pub(crate) fn at(&mut self, at: Nanos, happening: Happening) {
        self.scheduled += 1;
        let tie = self.dice.u64();
        self.queue.insert((at.max(self.now), tie, self.scheduled), happening);
    }

    pub(crate) fn after(&mut self, pause: Nanos, happening: Happening) {
        self.at(self.now.saturating_add(pause), happening);
    }

    pub(crate) fn next(&mut self) -> Option<Happening> {
        let ((at, ..), happening) = self.queue.pop_first()?;
        self.now = at;
        Some(happening)
    }

    /// The nodes that take part, but for one.
    pub(crate) fn others(&self, node: Id) -> Vec<Id> {
        self.present.iter().copied().filter(|&other| other != node).collect()
    }

    /// A node has applied that these take part.
    pub(crate) fn members_are(&mut self, members: &Members) {
        if members.at >= self.members.at {
            self.members = members.clone();
        }
        self.oracle.members_are(self.now, members, &self.members);
    }

    pub(crate) fn is(&self, place: Place) -> bool {
        self.mutant == Some(place)
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.is_stormy && self.scenario.faults.contains(&fault)
    }

    pub(crate) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// A promise is broken.
    pub(crate) fn broken(&mut self, promise: &str, what: &str) {
        self.trace.note(self.now, format_args!("BROKEN {promise}: {what}"));
        self.oracle.fail(self.now, promise, what);
    }
}

impl Happening {
    /// Whether a client may have changed its mind by it.
    pub(crate) fn is_of_client(&self) -> bool {
        matches!(
            self,
            Self::ToClient(..)
                | Self::ClientWakes { .. }
                | Self::ClientConnects { .. }
                | Self::JobStep { .. }
                | Self::NextJob { .. }
                | Self::ClientStarts { .. }
                | Self::FaultsEnd
                | Self::Faults
                | Self::Settled
        )
    }

    /// Whether it is worth a line: not what happens all the time, and shows by what comes of it.
    pub(crate) fn is_told(&self) -> bool {
        !matches!(
            self,
            Self::NodeTurn { .. }
                | Self::NodeReads { .. }
                | Self::NodeWrote { .. }
                | Self::NodeStored { .. }
                | Self::PeerDials { .. }
                | Self::HelloArrives { .. }
                | Self::HelloAnswered { .. }
                | Self::OperatorActs
                | Self::PeerArrives(_)
                | Self::PeerBreaks(_)
                | Self::ClientWakes { .. }
                | Self::HandActs
                | Self::Settled
        )
    }
}
