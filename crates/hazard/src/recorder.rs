//! Collects a play's trace.

use std::collections::BTreeMap;

use crate::client::CountedHold;
use crate::trace::{Account, Lane, Message, MessageKind, Phase, Span, SpanKind, Step, StepKind};

/// Maximum number of recorded messages, and of those about sessions, so that renewals in a long play don't
/// displace others.
const MESSAGES_MAX: usize = 2_000;
const SESSION_MESSAGES_MAX: usize = 1_000;

/// The events recorded so far.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) now: u64,
    pub(crate) steps: Vec<Step>,
    pub(crate) messages: Vec<Message>,
    spans: Vec<Span>,
    /// The spans that have not ended, by their index.
    open: BTreeMap<(Lane, SpanKey), usize>,
    /// The holds at the last comparison.
    held: Vec<CountedHold>,
}

/// Identifies an open span of a lane: a client's lane has one of each kind, the lock service's lane one for
/// each hold.
type SpanKey = (u8, Option<u64>, Option<Lane>);

impl Recorder {
    pub(crate) fn step(&mut self, lane: Lane, kind: StepKind, token: Option<u64>, text: impl Into<String>) {
        self.steps.push(Step {
            at_ms: self.now,
            lane,
            kind,
            text: text.into(),
            token,
            phase: None,
            account: None,
        });
    }

    pub(crate) fn at_resource(
        &mut self,
        kind: StepKind,
        token: Option<u64>,
        account: Account,
        text: impl Into<String>,
    ) {
        self.step(Lane::Resource, kind, token, text);
        if let Some(step) = self.steps.last_mut() {
            step.account = Some(account);
        }
    }

    pub(crate) fn message(
        &mut self,
        (from, to): (Lane, Lane),
        arrives_ms: u64,
        text: impl Into<String>,
        kind: MessageKind,
    ) {
        let max = if kind == MessageKind::Session { SESSION_MESSAGES_MAX } else { MESSAGES_MAX };
        if self.messages.len() < max {
            let sent_ms = self.now;
            self.messages.push(Message { from, to, sent_ms, arrives_ms, text: text.into(), kind });
        }
    }

    /// Records that the last step begins a phase of the client's program.
    pub(crate) fn phase(&mut self, phase: Phase) {
        if let Some(step) = self.steps.last_mut() {
            step.phase = Some(phase);
        }
    }

    pub(crate) fn begin(&mut self, lane: Lane, kind: SpanKind, token: Option<u64>) {
        self.begin_span(Span { lane, kind, from_ms: self.now, to_ms: self.now, token, holder: None });
    }

    /// Ends a span of a client, if it has begun.
    pub(crate) fn end(&mut self, lane: Lane, kind: SpanKind) {
        self.end_span(lane, (kind as u8, None, None));
    }

    fn begin_span(&mut self, span: Span) {
        let key = if span.lane == Lane::Locks { key_of(&span) } else { (span.kind as u8, None, None) };
        self.open.insert((span.lane, key), self.spans.len());
        self.spans.push(span);
    }

    fn end_span(&mut self, lane: Lane, key: SpanKey) {
        if let Some(index) = self.open.remove(&(lane, key)) {
            self.spans[index].to_ms = self.now;
        }
    }

    /// Records which holds have begun, ended or been closed since the last call.
    pub(crate) fn holds(&mut self, held: Vec<CountedHold>) {
        let before = std::mem::replace(&mut self.held, held);
        let ended: Vec<CountedHold> =
            before.iter().filter(|hold| !self.held.contains(hold)).copied().collect();
        let begun: Vec<CountedHold> =
            self.held.iter().filter(|hold| !before.contains(hold)).copied().collect();
        for hold in &ended {
            let span = self.span_of(*hold);
            self.end_span(Lane::Locks, key_of(&span));
            let continues_closed = begun.iter().any(|other| other.is_closed && other.token == hold.token);
            let name = hold.holder.lane().name();
            if hold.is_closed {
                self.step(Lane::Locks, StepKind::Ended, span.token, "opens the lock");
            } else if !continues_closed {
                let text = format!("the hold of {name} is over");
                self.step(Lane::Locks, StepKind::Ended, span.token, text);
            }
        }
        for hold in begun {
            let span = self.span_of(hold);
            let (name, token) = (hold.holder.lane().name(), span.token);
            let text = match token {
                _ if hold.is_closed => format!("the hold of {name} is over; the lock stays closed"),
                Some(token) => format!("grants the lock to {name}, with token {token}"),
                None => format!("three of five servers have the key of {name}"),
            };
            let kind = if hold.is_closed { StepKind::Ended } else { StepKind::Granted };
            self.step(Lane::Locks, kind, token, text);
            self.begin_span(span);
        }
    }

    fn span_of(&self, hold: CountedHold) -> Span {
        Span {
            lane: Lane::Locks,
            kind: if hold.is_closed { SpanKind::Closed } else { SpanKind::Held },
            from_ms: self.now,
            to_ms: self.now,
            token: hold.token.map(lockkeeper_core::Token::get),
            holder: Some(hold.holder.lane()),
        }
    }

    /// Ends all spans, and returns them.
    pub(crate) fn finish(mut self) -> (Vec<Step>, Vec<Message>, Vec<Span>) {
        for index in std::mem::take(&mut self.open).into_values() {
            self.spans[index].to_ms = self.now;
        }
        (self.steps, self.messages, self.spans)
    }
}

fn key_of(span: &Span) -> SpanKey {
    (span.kind as u8, span.token, span.holder)
}
