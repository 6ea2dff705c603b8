//! Short histories as text, for tests.

use lockkeeper_history::{
    ClockEvent, DowngradedEvent, EndedEvent, EnteredEvent, FenceVerdict, GrantedEvent, HistoryEvent,
    HistoryLine, HoldEnd, HoldMode, ListedEvent, MarkedEvent, ReadEvent, SlotOf, StatusEvent, TokenAnswer,
    WriteOutcome, WriterEvent, WroteEvent,
};
use lockkeeper_verify::{Checker, Violation, ViolationKind};

/// A history that is being made. Times are small numbers on one clock, unless writers are given others.
#[derive(Default)]
pub(crate) struct Play {
    lines: Vec<HistoryLine>,
}

/// What a grant is of.
pub(crate) fn exclusive(lock: &str) -> GrantedEvent {
    GrantedEvent { service: "s".to_owned(), locks: vec![lock.to_owned()], ..GrantedEvent::default() }
}

impl Play {
    pub(crate) fn line(&mut self, at: u64, by: &str, event: HistoryEvent) -> &mut Self {
        if !self.lines.iter().any(|line| line.by == by) {
            self.writer(by, "c");
        }
        self.lines.push(HistoryLine { at, by: by.to_owned(), event });
        self
    }

    pub(crate) fn writer(&mut self, by: &str, clock: &str) -> &mut Self {
        let event = WriterEvent { format: 1, clock: clock.to_owned(), label: "test".to_owned() };
        self.lines.push(HistoryLine { at: 0, by: by.to_owned(), event: HistoryEvent::Writer(event) });
        self
    }

    pub(crate) fn clock(&mut self, by: &str, other: &str, ahead_min: i64, ahead_max: i64) -> &mut Self {
        self.line(0, by, HistoryEvent::Clock(ClockEvent { other: other.to_owned(), ahead_min, ahead_max }))
    }

    pub(crate) fn grant(
        &mut self,
        by: &str,
        of: GrantedEvent,
        (asked, at): (u64, u64),
        token: u64,
    ) -> &mut Self {
        let hold = token;
        self.line(at, by, HistoryEvent::Granted(GrantedEvent { hold, asked, token: Some(token), ..of }))
    }

    /// An exclusive hold of `x`.
    pub(crate) fn takes(&mut self, by: &str, times: (u64, u64), token: u64) -> &mut Self {
        self.grant(by, exclusive("x"), times, token)
    }

    pub(crate) fn permit(
        &mut self,
        by: &str,
        times: (u64, u64),
        (slot, limit): (u32, u32),
        token: u64,
    ) -> &mut Self {
        let of =
            GrantedEvent { mode: HoldMode::Permit, slots: vec![SlotOf { slot, limit }], ..exclusive("x") };
        self.grant(by, of, times, token)
    }

    pub(crate) fn ends(&mut self, by: &str, hold: u64, until: u64, at: u64) -> &mut Self {
        self.line(at, by, HistoryEvent::Ended(EndedEvent { hold, until, how: HoldEnd::Released }))
    }

    pub(crate) fn downgrades(&mut self, by: &str, hold: u64, (asked, at): (u64, u64)) -> &mut Self {
        self.line(at, by, HistoryEvent::Downgraded(DowngradedEvent { hold, asked }))
    }

    pub(crate) fn asks(&mut self, (asked, at): (u64, u64), token: u64, answer: TokenAnswer) -> &mut Self {
        let (service, lock) = ("s".to_owned(), "x".to_owned());
        self.line(at, "asks", HistoryEvent::Status(StatusEvent { service, lock, token, asked, answer }))
    }

    pub(crate) fn lists(&mut self, (asked, at): (u64, u64), tokens: &[u64]) -> &mut Self {
        let (service, lock, tokens) = ("s".to_owned(), "x".to_owned(), tokens.to_vec());
        self.line(at, "asks", HistoryEvent::Listed(ListedEvent { service, lock, asked, tokens }))
    }

    pub(crate) fn enters(&mut self, lock: &str, (asked, at): (u64, u64), token: u64) -> &mut Self {
        let (resource, service, lock) = ("r".to_owned(), "s".to_owned(), lock.to_owned());
        let verdict = FenceVerdict::Accepted;
        self.line(
            at,
            "fence",
            HistoryEvent::Entered(EnteredEvent { resource, service, lock, token, asked, verdict }),
        )
    }

    /// The mark of `r`.
    pub(crate) fn marks(&mut self, (asked, at): (u64, u64), token: u64) -> &mut Self {
        let resource = "r".to_owned();
        self.line(at, "store", HistoryEvent::Marked(MarkedEvent { resource, asked, token }))
    }

    /// A write of `r` without a token.
    pub(crate) fn writes(
        &mut self,
        (asked, at): (u64, u64),
        (saw, made): (&str, &str),
        outcome: WriteOutcome,
    ) -> &mut Self {
        let (resource, service, lock) = ("r".to_owned(), "s".to_owned(), "x".to_owned());
        let (saw, made) = (saw.to_owned(), made.to_owned());
        let event = WroteEvent { resource, service, lock, token: None, asked, saw, made, outcome };
        self.line(at, "writes", HistoryEvent::Wrote(event))
    }

    pub(crate) fn reads(&mut self, (asked, at): (u64, u64), version: &str) -> &mut Self {
        let (resource, version) = ("r".to_owned(), version.to_owned());
        self.line(at, "reads", HistoryEvent::Read(ReadEvent { resource, asked, version }))
    }

    pub(crate) fn lines(&self) -> &[HistoryLine] {
        &self.lines
    }

    /// Each violation once, as the lines stand.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let mut checker = Checker::default();
        for line in &self.lines {
            checker.push(line.clone());
        }
        checker.take_violations()
    }

    pub(crate) fn kinds(&self) -> Vec<ViolationKind> {
        self.violations().iter().map(|violation| violation.kind).collect()
    }
}
