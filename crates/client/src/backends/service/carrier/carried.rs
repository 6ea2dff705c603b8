//! One session on the stream: its attach, its unacknowledged keep-alives and its unresolved commands.

mod heard;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lockkeeper_backend::{AcquireRequest, Answer, BootInstant, Call, CallError, HoldChange, Spec};
use lockkeeper_core::Seq;
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1::{self, client_item};

use super::{CarrierOutput, Outbox, earlier, items};

/// The shortest and the longest time limit for the answer to a command; between them it is a third of the
/// ttl. Long enough for a change of leader, so that a release rarely ends without a known result.
const COMMAND_LIMIT_MIN: Duration = Duration::from_secs(1);
const COMMAND_LIMIT_MAX: Duration = Duration::from_secs(10);
/// Without an answer for this long (a twelfth of the ttl, if that is shorter), a command is followed by a
/// keep-alive.
const ANSWER_USUAL: Duration = Duration::from_millis(500);
/// The longest time limit for the answer to an attach, which doubles with each after the second.
const ATTACH_LIMIT_MAX: Duration = Duration::from_secs(10);
/// Assumed for sessions without a ttl.
const TTL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct CarriedSession<H> {
    spec: Spec,
    label: String,
    secret: Secret,
    /// The service's id, once the session is open.
    id: Option<u64>,
    /// The number of the latest attach.
    attach: u64,
    attach_state: AttachState,
    /// Attaches in a row that were not answered in time.
    silent_attaches: u32,
    /// Unacknowledged open and keep-alive calls, by ascending number.
    signs: VecDeque<Sign<H>>,
    next_sign: u64,
    /// The highest number of an attach or keep-alive sent on the present stream.
    sent_through: u64,
    /// Attach and keep-alives of the present stream that are not acknowledged: number and time of sending.
    /// The acknowledgement of a number covers all up to it.
    unheard: VecDeque<(u64, BootInstant)>,
    /// Commands without an answer.
    asked: BTreeMap<Seq, PendingCommand<H>>,
    /// Acquires that wait in the queue: they are resolved when they are granted or end, without a time limit.
    queued: BTreeMap<Seq, PendingCommand<H>>,
    close: Option<Closing<H>>,
}

/// The state of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AttachState {
    /// Not opened yet, and not needed yet.
    Unwanted,
    /// To be attached on the next stream.
    Waiting,
    /// The open or attach was sent on the present stream. Its acknowledgement answers the open and keep-alive
    /// calls up to this number.
    Attaching(u64),
    Attached,
    /// Gone, closed or refused. Final (S2).
    Over,
}

#[derive(Debug)]
struct Sign<H> {
    number: u64,
    since: BootInstant,
    opens: bool,
    handle: H,
}

#[derive(Debug)]
struct PendingCommand<H> {
    since: BootInstant,
    what: Numbered,
    /// Whether the command may have reached the service (P12).
    sent: bool,
    /// When the command was sent on the present stream; `None` once a keep-alive has followed it because its
    /// answer is late.
    unanswered: Option<BootInstant>,
    /// The callers' handles: a retry of a command in flight joins it.
    handles: Vec<H>,
}

#[derive(Debug)]
enum Numbered {
    Acquire { done_through: Seq, request: std::sync::Arc<AcquireRequest>, wait_until: Option<BootInstant> },
    Finish { target: Seq, done_through: Seq },
    Change { target: Seq, done_through: Seq, change: HoldChange },
}

#[derive(Debug)]
struct Closing<H> {
    since: BootInstant,
    sent: bool,
    handle: H,
}

impl<H> CarriedSession<H> {
    pub(super) fn new(spec: Spec, label: &str, secret: Secret) -> Self {
        Self {
            spec,
            label: label.to_owned(),
            secret,
            id: None,
            attach: 0,
            attach_state: AttachState::Unwanted,
            silent_attaches: 0,
            signs: VecDeque::new(),
            next_sign: 1,
            sent_through: 0,
            unheard: VecDeque::new(),
            asked: BTreeMap::new(),
            queued: BTreeMap::new(),
            close: None,
        }
    }

    pub(super) fn id(&self) -> Option<u64> {
        self.id
    }

    /// The handles of all its calls.
    pub(super) fn into_handles(self) -> impl Iterator<Item = H> {
        let commands = self.asked.into_values().chain(self.queued.into_values());
        let signs = self.signs.into_iter().map(|sign| sign.handle);
        signs
            .chain(commands.flat_map(|command| command.handles))
            .chain(self.close.map(|closing| closing.handle))
    }

    pub(super) fn secret_prefix(&self) -> u64 {
        self.secret.prefix()
    }

    pub(super) fn ttl(&self) -> Duration {
        self.spec.ttl.unwrap_or(TTL)
    }

    pub(super) fn is_wanted(&self) -> bool {
        matches!(self.attach_state, AttachState::Waiting | AttachState::Attaching(_) | AttachState::Attached)
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.attach_state, AttachState::Over)
    }

    /// Time limit for the acknowledgement of an attach or a keep-alive.
    fn sign_limit(&self) -> Duration {
        self.ttl() / 6
    }

    /// As [`Self::sign_limit`], for what the stream waits for now. If a crowd of clients connects at once,
    /// the service may need longer than one limit: clients that give up and begin anew make it longer still,
    /// for ever.
    fn unheard_limit(&self) -> Duration {
        let limit = self.sign_limit();
        match self.attach_state {
            AttachState::Attaching(_) => {
                let doublings = self.silent_attaches.saturating_sub(1).min(3);
                (limit * (1 << doublings)).min(ATTACH_LIMIT_MAX.max(limit))
            }
            _ => limit,
        }
    }

    fn command_limit(&self) -> Duration {
        (self.ttl() / 3).clamp(COMMAND_LIMIT_MIN, COMMAND_LIMIT_MAX)
    }

    /// The delay after which an answer counts as late.
    fn answer_usual(&self) -> Duration {
        (self.ttl() / 12).min(ANSWER_USUAL)
    }

    /// Returns the latest time for the next check of this session.
    pub(super) fn submit(
        &mut self,
        now: BootInstant,
        call: Call,
        handle: H,
        outbox: &mut Outbox,
        out: &mut Vec<CarrierOutput<H>>,
    ) -> Option<BootInstant> {
        if self.is_over() {
            let answer = if let Call::Close = call { Answer::Closed } else { Answer::SessionGone };
            out.push(CarrierOutput::Resolved(handle, Ok(answer)));
            return None;
        }
        match call {
            Call::Open { .. } => self.sign(now, true, handle, outbox),
            Call::KeepAlive => self.sign(now, false, handle, outbox),
            Call::Acquire { seq, done_through, request, wait_left } => {
                let wait_until = wait_left.map(|left| now + left);
                self.command(
                    now,
                    seq,
                    Numbered::Acquire { done_through, request, wait_until },
                    handle,
                    outbox,
                )
            }
            Call::Finish { seq, target, done_through } => {
                // The answer to the acquire itself is no longer needed: its finish decides the outcome (R4).
                let acquire = self.queued.remove(&target).into_iter().chain(self.asked.remove(&target));
                out.extend(acquire.flat_map(|command| command.handles).map(CarrierOutput::Dropped));
                self.command(now, seq, Numbered::Finish { target, done_through }, handle, outbox)
            }
            Call::Change { seq, target, done_through, change } => {
                self.command(now, seq, Numbered::Change { target, done_through, change }, handle, outbox)
            }
            Call::Close if self.attach_state == AttachState::Unwanted => {
                out.push(CarrierOutput::Resolved(handle, Ok(Answer::Closed)));
                None
            }
            Call::Close => {
                let mut closing = Closing { since: now, sent: false, handle };
                if self.attach_state == AttachState::Attached {
                    closing.sent = true;
                    outbox.put(self.close_item());
                }
                self.close = Some(closing);
                Some(now + self.command_limit())
            }
        }
    }

    /// An acknowledgement extends the lease from the time of the call, so the acknowledged item must have
    /// been sent after the call (P5). An attach that was sent before the call does not acknowledge it.
    fn sign(&mut self, now: BootInstant, opens: bool, handle: H, outbox: &mut Outbox) -> Option<BootInstant> {
        self.signs.push_back(Sign { number: self.next_sign, since: now, opens, handle });
        self.next_sign += 1;
        match self.attach_state {
            AttachState::Unwanted => {
                self.attach_state = AttachState::Waiting;
                if outbox.open {
                    self.begin_stream(now, outbox);
                }
            }
            AttachState::Attached => self.put_keep_alive(now, outbox),
            AttachState::Waiting | AttachState::Attaching(_) | AttachState::Over => {}
        }
        Some(now + self.sign_limit())
    }

    fn command(
        &mut self,
        now: BootInstant,
        seq: Seq,
        what: Numbered,
        handle: H,
        outbox: &mut Outbox,
    ) -> Option<BootInstant> {
        // A retry of a request in flight: one answer resolves all handles.
        if let Some(command) = self.queued.get_mut(&seq).or_else(|| self.asked.get_mut(&seq)) {
            command.handles.push(handle);
            return None;
        }
        let mut command =
            PendingCommand { since: now, what, sent: false, unanswered: None, handles: vec![handle] };
        let mut next_check = now + self.command_limit();
        if let (AttachState::Attached, Some(id)) = (self.attach_state, self.id) {
            command.sent = true;
            command.unanswered = Some(now);
            next_check = now + self.answer_usual();
            outbox.put(items::item(id, command.what.item(now, seq)));
        }
        self.asked.insert(seq, command);
        Some(next_check)
    }

    /// Opens or attaches the session on a new stream, if it is in use. Returns the latest time for the next
    /// check.
    pub(super) fn begin_stream(&mut self, now: BootInstant, outbox: &mut Outbox) -> Option<BootInstant> {
        if !self.is_wanted() {
            return None;
        }
        self.attach += 1;
        let covers = self.next_sign - 1;
        self.attach_state = AttachState::Attaching(covers);
        self.sent_through = covers;
        self.unheard = VecDeque::from([(covers, now)]);
        let secret = self.secret.0.to_vec();
        outbox.put(match self.id {
            Some(id) => {
                items::item(id, client_item::What::Attach(v1::AttachSession { secret, attach: self.attach }))
            }
            None => items::item(
                0,
                client_item::What::Open(v1::OpenSession {
                    secret,
                    ttl_ms: items::millis(self.ttl()),
                    lock_delay_ms: items::millis(self.spec.lock_delay),
                    linger_ms: items::millis(self.spec.linger),
                    label: self.label.clone(),
                    attach: self.attach,
                }),
            ),
        });
        Some(now + self.unheard_limit())
    }

    /// Detaches the session from the present stream; returns whether the session was attached or attaching on
    /// it.
    pub(super) fn end_stream(&mut self) -> bool {
        self.unheard.clear();
        let carried = matches!(self.attach_state, AttachState::Attaching(_) | AttachState::Attached);
        if carried {
            self.attach_state = AttachState::Waiting;
            self.asked.values_mut().for_each(|command| command.unanswered = None);
        }
        carried
    }

    /// Whether an attach or keep-alive has not been acknowledged in time.
    pub(super) fn is_unheard(&self, now: BootInstant) -> bool {
        self.unheard.front().is_some_and(|&(_, since)| now >= since + self.unheard_limit())
    }

    /// The stream ends since this session was not answered.
    pub(super) fn count_silence(&mut self) {
        if matches!(self.attach_state, AttachState::Attaching(_)) {
            self.silent_attaches = self.silent_attaches.saturating_add(1);
        }
    }

    /// Fails overdue calls.
    pub(super) fn give_up(&mut self, now: BootInstant, out: &mut Vec<CarrierOutput<H>>) {
        let (sign_limit, command_limit) = (self.sign_limit(), self.command_limit());
        let tried = self.attach > 0;
        while self.signs.front().is_some_and(|sign| now >= sign.since + sign_limit)
            && let Some(sign) = self.signs.pop_front()
        {
            out.push(CarrierOutput::Resolved(sign.handle, Err(CallError::new(tried))));
        }
        let overdue = |command: &PendingCommand<H>| now >= command.since + command_limit;
        let overdue: Vec<Seq> =
            self.asked.iter().filter(|(_, command)| overdue(command)).map(|(&seq, _)| seq).collect();
        for command in overdue.iter().filter_map(|seq| self.asked.remove(seq)) {
            let failed = |handle| CarrierOutput::Resolved(handle, Err(CallError::new(command.sent)));
            out.extend(command.handles.into_iter().map(failed));
        }
        if let Some(closing) = self.close.take_if(|closing| now >= closing.since + command_limit) {
            self.attach_state = AttachState::Over;
            out.push(CarrierOutput::Resolved(closing.handle, Err(CallError::new(closing.sent))));
        }
    }

    /// Sends a keep-alive after a command whose answer is late, unless an attach or keep-alive is
    /// unacknowledged: its time limit already detects an unreachable leader.
    pub(super) fn ask_for_a_sign(&mut self, now: BootInstant, outbox: &mut Outbox) {
        if !self.unheard.is_empty() || self.missed_at().is_none_or(|at| now < at) {
            return;
        }
        // One keep-alive is enough for all commands sent before it.
        self.asked.values_mut().for_each(|command| command.unanswered = None);
        self.put_keep_alive(now, outbox);
    }

    /// When the next answer counts as late.
    fn missed_at(&self) -> Option<BootInstant> {
        let first = self.asked.values().filter_map(|command| command.unanswered).min();
        first.map(|sent| sent + self.answer_usual())
    }

    /// The session's next deadline.
    pub(super) fn next_check(&self) -> Option<BootInstant> {
        let signs = self.signs.front().map(|sign| sign.since + self.sign_limit());
        let unheard = self.unheard.front().map(|&(_, since)| since + self.unheard_limit());
        let asked = self.asked.values().map(|command| command.since + self.command_limit()).min();
        let close = self.close.as_ref().map(|closing| closing.since + self.command_limit());
        // While an attach or keep-alive is unacknowledged, a late answer causes no further keep-alive.
        let missed = self.missed_at().filter(|_| unheard.is_none());
        earlier(missed, earlier(earlier(signs, unheard), earlier(asked, close)))
    }

    /// Sends one keep-alive that covers all pending open and keep-alive calls.
    fn put_keep_alive(&mut self, now: BootInstant, outbox: &mut Outbox) {
        let Some(id) = self.id else { return };
        let number = self.next_sign - 1;
        self.sent_through = number;
        self.unheard.push_back((number, now));
        outbox.put(items::item(id, client_item::What::KeepAlive(v1::KeepAlive { id: number })));
    }

    fn close_item(&self) -> v1::ClientItem {
        items::item(self.id.unwrap_or_default(), client_item::What::Close(v1::CloseSession {}))
    }
}

impl Numbered {
    fn item(&self, now: BootInstant, seq: Seq) -> client_item::What {
        match self {
            Self::Acquire { done_through, request, wait_until } => {
                items::acquire(seq, *done_through, request, wait_until.map(|until| until - now))
            }
            Self::Finish { target, done_through } => client_item::What::Finish(v1::Finish {
                seq: seq.0,
                target: target.0,
                done_through: done_through.0,
            }),
            Self::Change { target, done_through, change: HoldChange::SetValue(value) } => {
                client_item::What::SetValue(v1::SetValue {
                    seq: seq.0,
                    target: target.0,
                    value: value.to_vec(),
                    done_through: done_through.0,
                })
            }
            Self::Change { target, done_through, change: HoldChange::Settle } => {
                client_item::What::Settle(v1::Settle {
                    seq: seq.0,
                    target: target.0,
                    done_through: done_through.0,
                })
            }
            Self::Change { target, done_through, change: HoldChange::Downgrade } => {
                client_item::What::Downgrade(v1::Downgrade {
                    seq: seq.0,
                    target: target.0,
                    done_through: done_through.0,
                })
            }
        }
    }
}
