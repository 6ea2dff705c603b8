//! What the world is made of. All times are countdowns in quarters of a ttl, so that one state stands for every moment
//! that looks the same.
//!
//! Three things are left out since the worst of them is always taken. The client's clock goes as slowly as the margin
//! allows: believing for longer is never safer. A sign of life that is delayed on its way is worth less than one that is
//! sent when that one arrives, and the leader sees no difference; so only those are delayed that outlive their stream.
//! An acknowledgement that is delayed tells the client of a belief that it could have had before; so it comes at once,
//! or never.

/// The session's ttl, in ticks.
pub(crate) const TTL: u8 = 4;
/// The session's `linger`.
pub(crate) const LINGER: u8 = 2;
/// By how much rates of clocks may differ within a ttl.
pub(crate) const DRIFT: u8 = 1;
/// Room for leaders, for streams (numbered from 1, as their attaches are), and for signs of life under way.
pub(crate) const LEADERS: usize = 3;
pub(crate) const STREAMS: usize = 3;
pub(crate) const CALLS: usize = 2;

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(crate) client: Client,
    pub(crate) calls: [Call; CALLS],
    pub(crate) streams: [Stream; STREAMS],
    pub(crate) leaders: [Leader; LEADERS],
    /// The latest leader that a majority elected: the first is 0, and each has a higher term than those before.
    pub(crate) elected: u8,
    /// Its first own entry is not applied yet.
    pub(crate) first_pending: bool,
    /// The session's end is in its log, from an earlier leader, and will be committed with its own first entry.
    pub(crate) inherited: bool,
    /// The session's end is in some log, and nothing has decided yet whether it stays.
    pub(crate) floating: bool,
    /// The session's end is applied: the next may hold its locks.
    pub(crate) ended: bool,
    /// The hold is under a break that is applied; it has been opened.
    pub(crate) broken: bool,
    pub(crate) opened: bool,
    /// P6: a sign of life was acknowledged that came to a leader when another was elected already.
    pub(crate) late_ack: bool,
    /// P9: the end of a session was proposed that had given a sign of life, or had not had its full ttl.
    pub(crate) hasty_end: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Client {
    /// For how long it still believes in its session.
    pub(crate) belief: u8,
    /// It has heard that its hold is revoked.
    pub(crate) told: bool,
    /// Its present stream; 0: none. And how many it has had.
    pub(crate) stream: u8,
    pub(crate) streams: u8,
}

/// A sign of life: the first on a stream is its attach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Call {
    /// 0: there is no such call.
    pub(crate) stream: u8,
    /// For how long the client would believe if it were acknowledged now.
    pub(crate) worth: u8,
    pub(crate) place: Place,
    /// It came when a later leader was elected already.
    pub(crate) late: bool,
    /// It had arrived when the leader's check began.
    pub(crate) old: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) enum Place {
    /// Delayed on its way to the leader. Its client has given it up.
    #[default]
    Network,
    /// Arrived, and not read yet.
    Socket,
    /// Read; waits for a round that begins later.
    Waiting,
    /// In the leader's round.
    Round,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Stream {
    /// To which leader.
    pub(crate) to: u8,
    pub(crate) end: End,
    /// Its close had arrived when the leader's check began.
    pub(crate) old: bool,
}

/// How far the word that a stream is closed has come, from the client's side to the leader.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum End {
    Open,
    Network,
    Socket,
    /// Read, or ended by the leader's side; or there never was such a stream.
    #[default]
    Over,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Leader {
    pub(crate) role: Role,
    /// Its lease of the session, in its lease clock.
    pub(crate) deadline: u8,
    /// The rest of the ttl from its zero point: the floor of `linger`, and what P9 promises.
    pub(crate) zero: u8,
    /// The highest attach read, and whether its stream is open.
    pub(crate) attach: u8,
    pub(crate) attached: bool,
    pub(crate) round: Round,
    pub(crate) check: Option<Check>,
    pub(crate) closing: Closing,
    /// The session's end is proposed.
    pub(crate) ending: bool,
    /// It has applied the break; when it opens the hold.
    pub(crate) revoked: bool,
    pub(crate) revoked_until: u8,
    /// The rest of a ttl, in time in which it ran, since the last sign of life arrived, read or not.
    pub(crate) alive: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Role {
    #[default]
    Follower,
    /// Elected, and its first own entry is not applied.
    Coming,
    /// It leads; or it was deposed and does not know it.
    Ready,
    /// It has applied the session's end.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Round {
    #[default]
    None,
    Asked,
    /// A majority has answered, and the leader has not heard it yet.
    Confirmed,
}

/// The second step of an expiry, and of `linger`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Check {
    /// The session was at its deadline.
    pub(crate) candidate: bool,
    pub(crate) confirmed: bool,
    /// The rest of a ttl since the last sign of life before the check began.
    pub(crate) alive: u8,
}

/// How far a close that was read has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Closing {
    #[default]
    No,
    Pending,
    InCheck,
}

impl State {
    /// The first leader has just opened the session, and its client's stream is attached; nothing is believed yet.
    pub(crate) fn first() -> Self {
        let mut leaders: [Leader; LEADERS] = Default::default();
        leaders[0] =
            Leader { role: Role::Ready, deadline: TTL, attach: 1, attached: true, ..Leader::default() };
        let mut streams = [Stream::default(); STREAMS];
        streams[0].end = End::Open;
        Self {
            client: Client { stream: 1, streams: 1, ..Client::default() },
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

    pub(crate) fn stream(&self, number: u8) -> &Stream {
        &self.streams[usize::from(number) - 1]
    }

    pub(crate) fn stream_mut(&mut self, number: u8) -> &mut Stream {
        &mut self.streams[usize::from(number) - 1]
    }

    pub(crate) fn leader(&self, leader: u8) -> &Leader {
        &self.leaders[usize::from(leader)]
    }

    pub(crate) fn leader_mut(&mut self, leader: u8) -> &mut Leader {
        &mut self.leaders[usize::from(leader)]
    }

    /// The session is gone, and every leader knows.
    pub(crate) fn is_over(&self) -> bool {
        let acts = |leader: &Leader| matches!(leader.role, Role::Coming | Role::Ready);
        self.ended && !self.leaders.iter().any(acts)
    }

    /// The calls on streams to a leader, in this place.
    pub(crate) fn calls_at(&self, leader: u8, place: Place) -> impl Iterator<Item = &Call> {
        let there = move |call: &&Call| {
            call.stream > 0 && call.place == place && self.stream(call.stream).to == leader
        };
        self.calls.iter().filter(there)
    }

    /// Takes out every call for which this holds.
    pub(crate) fn forget(&mut self, what: impl Fn(&Call) -> bool) {
        for call in &mut self.calls {
            if call.stream > 0 && what(call) {
                *call = Call::default();
            }
        }
    }

    /// The leader's side of a stream is gone, with all that was not answered on it.
    pub(crate) fn end_stream(&mut self, stream: u8) {
        self.stream_mut(stream).end = End::Over;
        self.forget(|call| call.stream == stream);
    }

    /// Forgets what can make no difference any more, so that what is the same looks the same.
    pub(crate) fn settle(&mut self, leaders: u8) {
        // A deposed leader can do no more than acknowledge; what it proposes may stay only until the next first entry.
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
        // Nobody would gain by these acknowledgements.
        self.forget(|call| call.worth == 0 && matches!(call.place, Place::Waiting | Place::Round));
        for call in self.calls.iter_mut().filter(|call| call.place != Place::Socket) {
            call.old = false;
        }
        self.calls.sort_unstable();
        for number in 1..=STREAMS {
            let used = self.calls.iter().any(|call| usize::from(call.stream) == number);
            let stream = &mut self.streams[number - 1];
            if stream.end == End::Over && !used && usize::from(self.client.stream) != number {
                *stream = Stream::default();
            }
            if stream.end != End::Socket {
                stream.old = false;
            }
        }
    }
}
