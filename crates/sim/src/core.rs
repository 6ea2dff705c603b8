//! The state that nodes, clients and network share: virtual time, the event queue, the RNG, and the oracle.

use std::collections::BTreeMap;

use lockkeeper_replica::{Answer, AskId, Members, StreamId};
use lockkeeper_wire::peer::{Hello, Refusal};

use crate::bulk::{BulkId, Bulks};
use crate::clock::Nanos;
use crate::mutants::MutantLocation;
use crate::net::{Down, Net, Up};
use crate::oracle::Oracle;
use crate::peers::{LinkId, Peers};
use crate::rng::Rng;
use crate::scenario::{Fault, Scenario};
use crate::trace::Trace;

/// Node id; the first node has id 1.
pub(crate) type Id = u64;

/// A scheduled simulation event.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// A packet arrives in a node's sockets.
    ToNode(StreamId, Up),
    /// A packet arrives at a client's socket.
    ToClient(StreamId, Down),
    /// A node's event loop runs once.
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
    /// A node's disk completes a log write.
    NodeWrote {
        node: Id,
        run: u64,
    },
    /// A node's disk worker completes a step of storing a snapshot.
    NodeStored {
        node: Id,
        run: u64,
    },
    /// A node starts.
    NodeStarts {
        node: Id,
    },
    /// A node without data writes its bootstrap record and becomes a member.
    NodeFounds {
        node: Id,
        run: u64,
    },
    /// A node loses its disk, unless the cluster could not survive that now.
    NodeWiped {
        node: Id,
    },
    /// A node receives SIGTERM; its process ends soon after.
    NodeStops {
        node: Id,
    },
    /// A node's process ends without a power cut, and is started again soon after.
    NodeRestarts {
        node: Id,
    },
    /// A node's process crashes. The fault that scheduled this has chosen the time.
    NodeDies {
        node: Id,
        power: bool,
    },
    /// All traffic from one node to another is held back until `until`.
    Cut {
        from: Id,
        to: Id,
        until: Nanos,
    },
    /// A node tries to open a connection to another node.
    PeerDials {
        from: Id,
        run: u64,
        to: Id,
    },
    /// A handshake request arrives. `any`: its sender knows no other nodes, so the receiver was picked at
    /// random.
    HelloArrives {
        from: Id,
        run: u64,
        to: Id,
        any: bool,
        hello: Box<Hello>,
    },
    /// The reply to a handshake request arrives.
    HelloAnswered {
        from: Id,
        run: u64,
        to: Id,
        to_run: u64,
        any: bool,
        answer: Box<Result<Hello, Refusal>>,
    },
    /// The next frame on a link between two nodes arrives.
    PeerArrives(LinkId),
    /// A node detects that a link to or from it is closed.
    PeerCloses {
        node: Id,
        run: u64,
        link: LinkId,
    },
    /// A snapshot transfer arrives at its receiver (`BulkArrives`), or its result at its sender
    /// (`BulkSettles`).
    BulkArrives(BulkId),
    BulkSettles(BulkId, bool),
    /// A link between two nodes breaks.
    PeerBreaks(LinkId),
    /// A timer of a client is due, or its pause ends.
    ClientWakes {
        client: usize,
        life: u64,
    },
    /// A client opens a stream.
    ClientConnects {
        client: usize,
        life: u64,
    },
    /// A job of a client runs its next step.
    JobStep {
        client: usize,
        life: u64,
        key: u64,
    },
    /// A client may start another job.
    NextJob {
        client: usize,
        life: u64,
    },
    /// The raw protocol client sends its next commands (`HandActs`), or only a keep-alive (`HandLives`).
    HandActs,
    HandLives,
    /// A crashed client restarts.
    ClientStarts {
        client: usize,
    },
    /// The operator, which adds and removes nodes, acts.
    OperatorActs,
    /// Injects the next fault.
    Faults,
    /// Faults end. From here on all pending work must complete.
    FaultsEnd,
    /// Checks whether all pending work has completed; recurs until it has.
    Settled,
}

pub(crate) struct Core {
    pub(crate) now: Nanos,
    /// Ordered by time, then by a random tie-break (events of the same time have no natural order), then by a
    /// counter.
    queue: BTreeMap<(Nanos, u64, u64), Happening>,
    scheduled: u64,
    pub(crate) dice: Rng,
    pub(crate) trace: Trace,
    pub(crate) scenario: Scenario,
    pub(crate) mutant: Option<MutantLocation>,
    pub(crate) net: Net,
    pub(crate) peers: Peers,
    pub(crate) bulks: Bulks,
    pub(crate) oracle: Oracle,
    /// Whether faults are still injected.
    pub(crate) is_stormy: bool,
    /// Ids of the nodes that are members, or are meant to become members.
    pub(crate) present: Vec<Id>,
    /// The membership of the highest applied entry on any node.
    pub(crate) members: Members,
    /// The request whose answer the operator waits for, and the answer once it has arrived.
    pub(crate) awaited: Option<AskId>,
    pub(crate) answer: Option<Answer>,
}

impl Core {
    pub(crate) fn new(seed: u64, mutant: Option<MutantLocation>, keep_trace: bool) -> Self {
        let mut dice = Rng::new(seed);
        let scenario = Scenario::roll(&mut dice).with_additions(&mut Rng::new(!seed));
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

    /// All nodes in `present` except `node`.
    pub(crate) fn others(&self, node: Id) -> Vec<Id> {
        self.present.iter().copied().filter(|&other| other != node).collect()
    }

    /// To be called when a node has applied a membership change, or has recovered its membership at a start.
    pub(crate) fn members_are(&mut self, members: &Members) {
        if members.at >= self.members.at {
            self.members = members.clone();
        }
        self.oracle.members_are(self.now, members, &self.members);
    }

    pub(crate) fn is(&self, place: MutantLocation) -> bool {
        self.mutant == Some(place)
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.is_stormy && self.scenario.faults.contains(&fault)
    }

    pub(crate) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// Reports a broken promise; only the first one becomes the run's failure.
    pub(crate) fn broken(&mut self, promise: &str, what: &str) {
        self.trace.note(self.now, format_args!("BROKEN {promise}: {what}"));
        self.oracle.fail(self.now, promise, what);
    }
}

impl Happening {
    /// Whether the event may change the state of a client.
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

    /// Whether the event is traced. Frequent events are not; their effects are.
    pub(crate) fn is_traced(&self) -> bool {
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
