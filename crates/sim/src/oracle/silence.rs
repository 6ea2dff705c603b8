//! P9: which sessions a node may expire. Records when keep-alives and attaches arrived at a node and when
//! they were passed to its replica. Times are true time, and the oracle's own lease clock, which does not
//! advance while the node is stalled. Each run of each node, from its start to its crash, has its own
//! [`Silence`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_core::{Command, SessionId};
use lockkeeper_replica::{CallRequest, Event, StreamCloseCause, StreamId};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, client_item, server_item};

use super::CheckResult;
use super::table::{History, Timer};
use crate::clock::Nanos;
use crate::net::Up;
use crate::raw_client::WRONG_SECRET;

/// A timer fires at most this long after its deadline on the lease clock. On a slow disk the bound is longer,
/// since a single write may take three seconds.
const LATE: Duration = Duration::from_millis(1_200);
const LATE_ON_A_SLOW_DISK: Duration = Duration::from_secs(7);

#[derive(Default)]
pub(crate) struct Silence {
    last_turn: Option<Duration>,
    reading: Duration,
    /// The term in which the node leads, and the lease clock's reading when it became a ready leader.
    leads: Option<(u64, Duration)>,
    /// The highest session id in the table when the node began to lead: sessions up to it were opened before.
    found: Option<SessionId>,
    /// The timers that have begun since the node leads, and when.
    began: BTreeMap<Timer, Duration>,
    /// The sessions according to the packets that have arrived in the node's sockets (`arrived`), and
    /// according to the requests that were passed to its replica (`handed`).
    arrived: BTreeMap<u64, Arrived>,
    handed: BTreeMap<u64, Handed>,
    /// The sessions of which calls have arrived: the stream and the time of the last one, if that counts.
    /// With calls, `arrived` does not show which stream may send requests.
    called: BTreeMap<u64, (StreamId, Option<Nanos>)>,
    /// When the last drain barrier was begun, in true time and on the lease clock.
    barrier: Option<(Nanos, Duration)>,
    /// The sessions whose expiry the node has proposed since it leads, and its other timers that have fired.
    ending: BTreeSet<u64>,
    done: BTreeSet<Timer>,
    /// Streams that the node has closed: it reads no more input from them.
    ended: BTreeSet<StreamId>,
}

/// A session according to the packets that have arrived in the node's sockets.
#[derive(Clone, Copy)]
struct Arrived {
    attach: u64,
    stream: StreamId,
    /// The oracle can't determine which stream has the session: two have attached it with the same number,
    /// and only the one that the node reads first is valid; or a call may have taken it over.
    is_ambiguous: bool,
    sign: Option<Nanos>,
    is_closed: bool,
}

/// A session according to the requests that were passed to the node's replica.
#[derive(Clone, Copy)]
struct Handed {
    attach: u64,
    stream: Option<StreamId>,
    sign: Duration,
    /// When the session's client closed the stream, on the lease clock.
    closed: Option<Duration>,
}

impl Silence {
    /// To be called when a turn begins. The lease clock advances by at most `step` for each turn.
    pub(crate) fn turn(&mut self, local: Duration, step: Duration) {
        let last = self.last_turn.replace(local).unwrap_or(local);
        self.reading += local.saturating_sub(last).min(step);
    }

    /// The term in which the node leads.
    pub(crate) fn leads(&self) -> Option<u64> {
        self.leads.map(|(term, _)| term)
    }

    /// The lease clock's reading when the node became a ready leader.
    fn zero(&self) -> Duration {
        self.leads.map_or(self.reading, |(_, zero)| zero)
    }

    /// To be called when the node becomes a ready leader. `last` is the last session in its table. All timers
    /// restart.
    pub(crate) fn ready(&mut self, term: u64, last: Option<SessionId>) {
        self.leads = Some((term, self.reading));
        self.found = last;
        self.began.clear();
        self.ending.clear();
        self.done.clear();
    }

    /// To be called when the node proposes the expiry of a session.
    pub(crate) fn ends(&mut self, session: SessionId) {
        self.ending.insert(session.0);
    }

    /// P5: a session whose expiry is proposed may end at any moment, so it must not be acknowledged any more.
    pub(crate) fn may_answer_call(&self, session: u64) -> CheckResult {
        if self.ending.contains(&session) {
            return Err(("P5", format!("a call of s{session} is answered, though its end is proposed")));
        }
        Ok(())
    }

    /// As [`Self::may_answer_call`], for an item on a stream.
    pub(crate) fn may_tell(&self, item: &v1::ServerItem) -> CheckResult {
        let is_sign =
            matches!(item.what, Some(server_item::What::KeptAlive(_) | server_item::What::Attached(_)));
        if is_sign && self.ending.contains(&item.session) {
            let what = format!("s{} is acknowledged, though its end is proposed", item.session);
            return Err(("P5", what));
        }
        Ok(())
    }

    /// To be called when the node no longer leads. Requests that were passed to its replica so far do not
    /// count for a later leadership.
    pub(crate) fn stepped_down(&mut self) {
        self.leads = None;
        self.handed.clear();
    }

    /// To be called when the node applies the entry that begins a timer.
    pub(crate) fn begins(&mut self, timer: Timer) {
        self.began.entry(timer).or_insert(self.reading);
    }

    /// Checks that a leader ends a timer only after its full duration on the lease clock. A new leader
    /// restarts all timers (P9, B1, D1, W1).
    pub(crate) fn may_end(&self, command: &Command, history: &History) -> CheckResult {
        let Some(timer) = Timer::of(command) else { return Ok(()) };
        let Some(needs) = history.lasts(timer) else { return Ok(()) };
        let zero = self.zero();
        let since = self.began.get(&timer).map_or(zero, |it| zero.max(*it));
        let passed = self.reading.saturating_sub(since);
        if passed + Duration::from_millis(1) < needs * 99 / 100 {
            return Err((
                timer.promise(),
                format!("{command:?} is proposed after {passed:?}, it needs {needs:?}"),
            ));
        }
        Ok(())
    }

    /// To be called when the node proposes a command.
    pub(crate) fn proposed(&mut self, command: &Command) {
        self.done.extend(Timer::of(command));
    }

    /// Checks that every pending timer fires in time. This finds leaders that forget a timer.
    pub(crate) fn is_late(&self, applied: u64, history: &History, has_slow_disk: bool) -> CheckResult {
        let late = if has_slow_disk { LATE_ON_A_SLOW_DISK } else { LATE };
        let Some((_, zero)) = self.leads else { return Ok(()) };
        for (timer, needs, index) in history.pending() {
            let since = self.began.get(&timer).map_or(zero, |it| zero.max(*it));
            let passed = self.reading.saturating_sub(since);
            if index <= applied && !self.done.contains(&timer) && passed > needs + late {
                return Err((
                    timer.promise(),
                    format!("{timer:?} should have ended after {needs:?}, it is {passed:?}"),
                ));
            }
        }
        Ok(())
    }

    /// To be called when the node has closed a stream: later input on the stream does not count.
    pub(crate) fn ended(&mut self, stream: StreamId) {
        self.ended.insert(stream);
        // The attach number stays recorded, so the same number on another stream does not count as a new
        // attach.
        for it in self.arrived.values_mut().filter(|it| it.stream == stream) {
            it.sign = None;
        }
        for (_, sign) in self.called.values_mut().filter(|(of, _)| *of == stream) {
            *sign = None;
        }
        for it in self.handed.values_mut().filter(|it| it.stream == Some(stream)) {
            it.stream = None;
        }
    }

    pub(crate) fn barrier(&mut self, now: Nanos) {
        self.barrier = Some((now, self.reading));
    }

    /// To be called when a packet has become readable in a socket.
    pub(crate) fn arrived(&mut self, now: Nanos, stream: StreamId, packet: &Up) {
        if self.ended.contains(&stream) {
            return;
        }
        match packet {
            Up::Open => {}
            Up::Call(call) => {
                if let Some(item) = call.item.as_ref().filter(|_| call.secret != WRONG_SECRET) {
                    self.called.insert(item.session, (stream, Some(now)));
                }
            }
            Up::Closed => {
                let of_it = self.arrived.values_mut().filter(|it| it.stream == stream);
                of_it.for_each(|it| it.is_closed = true);
            }
            Up::Frame(items) => {
                for item in items {
                    match &item.what {
                        Some(client_item::What::Attach(attach)) => {
                            self.claimed(item.session, attach.attach, stream, Some(now));
                        }
                        Some(client_item::What::KeepAlive(_)) => {
                            if let Some(it) = self.arrived.get_mut(&item.session)
                                && it.stream == stream
                            {
                                it.sign = Some(now);
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    fn claimed(&mut self, session: u64, attach: u64, stream: StreamId, sign: Option<Nanos>) {
        let fresh = Arrived { attach, stream, is_ambiguous: false, sign, is_closed: false };
        match self.arrived.get_mut(&session) {
            Some(known) if attach == known.attach && stream == known.stream => {
                known.sign = sign.or(known.sign);
            }
            Some(known) if attach == known.attach => known.is_ambiguous = true,
            Some(known) if attach < known.attach => {}
            _ => drop(self.arrived.insert(session, fresh)),
        }
    }

    /// To be called when an event is passed to the replica.
    pub(crate) fn handed_over(&mut self, event: &Event) {
        let reading = self.reading;
        match event {
            Event::StreamClosed { stream, cause: StreamCloseCause::Client } => {
                for it in self.handed.values_mut().filter(|it| it.stream == Some(*stream)) {
                    it.stream = None;
                    it.closed = Some(reading);
                }
            }
            Event::Called(_, called) => match &called.request {
                CallRequest::KeepAlive { session, secret, .. }
                | CallRequest::Command { session, secret, .. }
                    if secret.0 != WRONG_SECRET =>
                {
                    self.renewed_by_call(session.0);
                }
                _ => {}
            },
            Event::Frame(stream, requests) => {
                for request in requests {
                    match request {
                        Request::Attach { session, attach, .. } => self.claims(session.0, *attach, *stream),
                        Request::KeepAlive { session, .. } => {
                            if let Some(it) = self.handed.get_mut(&session.0)
                                && it.stream == Some(*stream)
                            {
                                it.sign = reading;
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// To be called when a call is passed to the replica, and when it is answered: both renew the lease.
    pub(crate) fn renewed_by_call(&mut self, session: u64) {
        let fresh = Handed { attach: 0, stream: None, sign: self.reading, closed: None };
        let it = self.handed.entry(session).or_insert(fresh);
        (it.stream, it.sign, it.closed) = (None, fresh.sign, None);
    }

    /// To be called when a call that opens a known session is passed to the replica: it takes the session
    /// over from its stream. Whether the replica carries it out shows only in the answer, which is lost if
    /// the caller has gone. So it counts as no sign of life, and what the stream says afterwards neither.
    pub(crate) fn opened_by_call(&mut self, session: u64) {
        if let Some(it) = self.handed.get_mut(&session) {
            it.stream = None;
        }
        if let Some(it) = self.arrived.get_mut(&session) {
            it.is_ambiguous = true;
        }
    }

    fn claims(&mut self, session: u64, attach: u64, stream: StreamId) {
        if self.ended.contains(&stream) {
            return;
        }
        let sign = self.reading;
        let known = self.handed.get(&session);
        let again = known.is_some_and(|it| it.attach == attach && it.stream == Some(stream));
        if known.is_none_or(|it| attach > it.attach) || again {
            let it = Handed { attach, stream: Some(stream), sign, closed: None };
            self.handed.insert(session, it);
        }
    }

    /// Records an opened session, which is also attached to its stream. The request has no session id yet, so
    /// it is recorded when the node replies.
    pub(crate) fn sent(&mut self, stream: StreamId, item: &v1::ServerItem) {
        if let Some(server_item::What::Opened(opened)) = &item.what {
            self.claimed(item.session, opened.attach, stream, None);
            self.claims(item.session, opened.attach, stream);
        }
    }

    /// The sessions that are attached to a stream, according to the packets that have arrived.
    pub(crate) fn carried_by(&self, stream: StreamId) -> Vec<u64> {
        self.arrived.iter().filter(|(_, it)| it.stream == stream).map(|(&session, _)| session).collect()
    }

    /// P9: a session expires only after its ttl without a keep-alive, or after `linger` if its client has
    /// closed the stream; only time in which the node ran counts. A keep-alive that had arrived before the
    /// last drain barrier counts, whether it was read or not. A new leader gives the full ttl.
    pub(crate) fn may_expire(&self, now: Nanos, session: SessionId, history: &History) -> CheckResult {
        let Some(info) = history.table().session(session) else { return Ok(()) };
        let ttl = Duration::from_millis(info.ttl_ms);
        let linger = Duration::from_millis(info.linger_ms);
        let most = |duration: Duration| duration * 99 / 100;
        let lingers = !linger.is_zero();

        let handed = self.handed.get(&session.0);
        let zero = self.zero();
        let floor = zero + most(ttl);
        let silent_from = handed.map_or(zero, |it| it.sign.max(zero));
        let mut due = silent_from + most(ttl);
        if let Some(closed) = handed.and_then(|it| it.closed).filter(|_| lingers) {
            let opened_before = self.found.is_some_and(|last| session <= last);
            let cut = closed + most(linger);
            due = due.min(if opened_before { cut.max(floor) } else { cut });
        }
        if self.reading + Duration::from_millis(1) < due {
            return Err((
                "P9",
                format!(
                    "{session} expires {:?} after its last sign of life, ttl {ttl:?}, linger {linger:?}, \
                     not counting time in which the node did not run; zero point {:?} ago",
                    self.reading.saturating_sub(silent_from),
                    self.reading.saturating_sub(zero)
                ),
            ));
        }
        let asked = self.barrier.map(|(_, reading)| reading);
        let barrier = self.barrier.filter(|(_, reading)| *reading + Duration::from_millis(1) >= due);
        let Some((barrier, _)) = barrier else {
            return Err((
                "P9",
                format!(
                    "{session} expires, and what had arrived by its deadline was not asked for; on the lease clock it is \
                     {:?}, the deadline was {due:?}, what had arrived was asked for at {asked:?}, the zero point was {zero:?}",
                    self.reading
                ),
            ));
        };
        let (sign, cut) = match (self.called.get(&session.0), self.arrived.get(&session.0)) {
            (Some((_, Some(sign))), _) => (*sign, false),
            (None, Some(Arrived { is_ambiguous: false, sign: Some(sign), is_closed, .. })) => {
                (*sign, lingers && *is_closed)
            }
            _ => return Ok(()),
        };
        if sign <= barrier && !cut && now < sign + most(ttl).as_nanos() as Nanos {
            return Err((
                "P9",
                format!(
                    "{session} expires {:?} after a sign of life of it had arrived, ttl {ttl:?}; it arrived before \
                     the last barrier, {:?} ago",
                    Duration::from_nanos(now - sign),
                    Duration::from_nanos(now - barrier)
                ),
            ));
        }
        Ok(())
    }
}
