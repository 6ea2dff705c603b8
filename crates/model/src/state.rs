//! The state of the model. All times are countdowns in quarters of a ttl (ticks), so that equal situations at
//! different times are one state.
//!
//! Three variations are omitted, because the model always takes the worst case:
//!
//! - The client's clock is as slow as the assumed drift allows. A faster clock makes the client stop earlier,
//!   which is safer.
//! - A renewal arrives at once, or after so long a delay that its acknowledgement can't extend the client's
//!   lease. A shorter delay has the same effect at the leader as a renewal that is sent later and arrives at
//!   once, but gives the client an earlier lease deadline, which is safer.
//! - An acknowledgement arrives at once, or never. A delayed one gives the client only a lease deadline that
//!   it could have had before.

/// The session's ttl, in ticks.
pub(crate) const TTL: u8 = 4;
/// The session's `linger`, in ticks.
pub(crate) const LINGER: u8 = 2;
/// The drift between two clocks within a ttl, in ticks.
pub(crate) const DRIFT: u8 = 1;
/// Maximum number of leaders, of streams (numbered from 1, as their attaches are), and of renewals in flight.
pub(crate) const LEADERS: usize = 3;
pub(crate) const STREAMS: usize = 3;
pub(crate) const CALLS: usize = 2;

/// The complete state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(crate) client: ModelClient,
    pub(crate) calls: [KeepAliveCall; CALLS],
    pub(crate) streams: [ModelStream; STREAMS],
    pub(crate) leaders: [Leader; LEADERS],
    /// The newest leader that a majority has elected. The first leader is 0, and each has a higher term than
    /// those before.
    pub(crate) elected: u8,
    /// The first entry of the newest leader's own term is not applied yet.
    pub(crate) first_pending: bool,
    /// The session's end is in the newest leader's log, from an earlier leader, and will be committed with
    /// the first entry of the newest leader's own term.
    pub(crate) inherited: bool,
    /// The session's end is in some leader's log, and it is not decided yet whether it will be committed.
    pub(crate) floating: bool,
    /// The session's end is applied: its locks can be granted to others.
    pub(crate) ended: bool,
    /// `broken`: the break is applied, and the hold is revoked. `opened`: the lock of the revoked hold was
    /// opened.
    pub(crate) broken: bool,
    pub(crate) opened: bool,
    /// P6 is broken: a leader acknowledged a renewal that had arrived after a later leader was elected.
    pub(crate) late_ack: bool,
    /// P9 is broken: the end of the session was proposed although less than a ttl had passed since a renewal
    /// arrived, or since the leader became active.
    pub(crate) hasty_end: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ModelClient {
    /// Ticks until the client's lease deadline.
    pub(crate) belief: u8,
    /// The client has received an acknowledgement that names the revoked hold.
    pub(crate) informed: bool,
    /// `stream`: the current stream, 0 for none. `streams`: the number of streams so far.
    pub(crate) stream: u8,
    pub(crate) streams: u8,
}

/// A renewal: a keep-alive or an attach. The first on a stream is its attach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct KeepAliveCall {
    /// The stream that carries the renewal; 0 if this element of `calls` is unused.
    pub(crate) stream: u8,
    /// Ticks until the client's lease deadline, if the renewal is acknowledged now.
    pub(crate) worth: u8,
    pub(crate) stage: CallStage,
    /// The renewal arrived at a leader after a later one was elected.
    pub(crate) late: bool,
    /// The renewal had arrived, but was not read, when the leader's check began.
    pub(crate) old: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) enum CallStage {
    /// Delayed on its way to the leader. The client no longer waits for the acknowledgement.
    #[default]
    Network,
    /// Arrived, and not read yet.
    Socket,
    /// Read; waits for a quorum read that begins later.
    Waiting,
    /// Part of the leader's quorum read in progress.
    Round,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ModelStream {
    /// The leader at the other end of the stream.
    pub(crate) to: u8,
    pub(crate) end: CloseProgress,
    /// The stream's close had arrived, but was not read, when the leader's check began.
    pub(crate) old: bool,
}

/// The position of a stream's close on its way from the client to the leader.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum CloseProgress {
    Open,
    Network,
    Socket,
    /// Read, or ended by the leader's side; or the stream never existed.
    #[default]
    Over,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Leader {
    pub(crate) role: Role,
    /// Ticks until the session's deadline on this leader's lease clock.
    pub(crate) deadline: u8,
    /// The rest of the ttl since this leader became active: the lower bound for `linger`, and the time that
    /// P9 guarantees.
    pub(crate) zero: u8,
    /// `attach`: the highest attach that was read. `attached`: the stream of that attach is open.
    pub(crate) attach: u8,
    pub(crate) attached: bool,
    pub(crate) round: QuorumRead,
    pub(crate) check: Option<Check>,
    pub(crate) closing: Closing,
    /// The session's end is proposed.
    pub(crate) ending: bool,
    /// `revoked`: the break is applied. `revoked_until`: ticks until the leader opens the lock.
    pub(crate) revoked: bool,
    pub(crate) revoked_until: u8,
    /// The rest of a ttl since the last renewal arrived, read or not; counts only time during which the
    /// leader ran.
    pub(crate) alive: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Role {
    #[default]
    Follower,
    /// Elected; the first entry of its own term is not applied yet.
    Coming,
    /// Active as the leader; or deposed without having learned of it.
    Ready,
    /// The leader has applied the session's end.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum QuorumRead {
    #[default]
    None,
    Asked,
    /// A majority has confirmed, and the leader has not processed the confirmation yet.
    Confirmed,
}

/// The second step of an expiry, or of `linger`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Check {
    /// The session was at its deadline when the check began.
    pub(crate) candidate: bool,
    pub(crate) confirmed: bool,
    /// The rest of a ttl since the last renewal before the check began.
    pub(crate) alive: u8,
}

/// The progress of a close that was read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Closing {
    #[default]
    No,
    Pending,
    InCheck,
}

impl State {
    /// The first leader has just opened the session and attached its client's stream; the client has no lease
    /// deadline yet.
    pub(crate) fn first() -> Self {
        let mut leaders: [Leader; LEADERS] = Default::default();
        leaders[0] =
            Leader { role: Role::Ready, deadline: TTL, attach: 1, attached: true, ..Leader::default() };
        let mut streams = [ModelStream::default(); STREAMS];
        streams[0].end = CloseProgress::Open;
        Self {
            client: ModelClient { stream: 1, streams: 1, ..ModelClient::default() },
            calls: Default::default(),
            streams,
            leaders,
            elected: 0,
            first_pending: false,
            inherited: false,
            floating: false,
            ended: false,
            broken: false,
            opened: false,
            late_ack: false,
            hasty_end: false,
        }
    }

    pub(crate) fn stream(&self, number: u8) -> &ModelStream {
        &self.streams[usize::from(number) - 1]
    }

    pub(crate) fn stream_mut(&mut self, number: u8) -> &mut ModelStream {
        &mut self.streams[usize::from(number) - 1]
    }

    pub(crate) fn leader(&self, leader: u8) -> &Leader {
        &self.leaders[usize::from(leader)]
    }

    pub(crate) fn leader_mut(&mut self, leader: u8) -> &mut Leader {
        &mut self.leaders[usize::from(leader)]
    }

    /// Returns true if the session has ended and no leader is active or about to become active: each has
    /// applied the end, or has stepped down.
    pub(crate) fn is_over(&self) -> bool {
        let acts = |leader: &Leader| matches!(leader.role, Role::Coming | Role::Ready);
        self.ended && !self.leaders.iter().any(acts)
    }

    /// The renewals on streams to this leader, at this stage.
    pub(crate) fn calls_at(&self, leader: u8, stage: CallStage) -> impl Iterator<Item = &KeepAliveCall> {
        let there = move |call: &&KeepAliveCall| {
            call.stream > 0 && call.stage == stage && self.stream(call.stream).to == leader
        };
        self.calls.iter().filter(there)
    }

    /// Removes every renewal for which `what` returns true.
    pub(crate) fn forget(&mut self, what: impl Fn(&KeepAliveCall) -> bool) {
        for call in &mut self.calls {
            if call.stream > 0 && what(call) {
                *call = KeepAliveCall::default();
            }
        }
    }

    /// Ends the leader's side of a stream, and drops its unanswered renewals.
    pub(crate) fn end_stream(&mut self, stream: u8) {
        self.stream_mut(stream).end = CloseProgress::Over;
        self.forget(|call| call.stream == stream);
    }

    /// Normalizes the state: clears fields that can't matter any more, so that equivalent states are equal.
    pub(crate) fn settle(&mut self, leaders: u8) {
        // A deposed leader's proposal can be committed only by a later leader that is elected before the
        // newest leader's first entry is applied. If no such election is possible, a deposed leader can only
        // acknowledge, and its other fields are cleared.
        if !self.first_pending || self.elected + 1 == leaders {
            let elected = usize::from(self.elected);
            for leader in self.leaders[..elected].iter_mut().filter(|leader| leader.role == Role::Ready) {
                leader.deadline = 0;
                leader.zero = 0;
                leader.alive = 0;
                leader.revoked_until = 0;
                leader.closing = Closing::No;
                leader.check = None;
            }
        }
        // Renewals that are read but can no longer extend the client's lease deadline are dropped.
        self.forget(|call| call.worth == 0 && matches!(call.stage, CallStage::Waiting | CallStage::Round));
        for call in self.calls.iter_mut().filter(|call| call.stage != CallStage::Socket) {
            call.old = false;
        }
        self.calls.sort_unstable();
        for number in 1..=STREAMS {
            let used = self.calls.iter().any(|call| usize::from(call.stream) == number);
            let stream = &mut self.streams[number - 1];
            if stream.end == CloseProgress::Over && !used && usize::from(self.client.stream) != number {
                *stream = ModelStream::default();
            }
            if stream.end != CloseProgress::Socket {
                stream.old = false;
            }
        }
    }
}
