//! An event as one line of JSON.
//!
//! Written by hand, not by a serializer: the library writes these lines in every program, and has no other
//! use for one.

use std::fmt::Write;

use crate::event::{
    FenceVerdict, GrantedEvent, HistoryEvent, HistoryLine, HoldEnd, HoldMode, SlotOf, TokenAnswer,
    WriteOutcome,
};

impl HistoryLine {
    /// The line, with its line feed.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut out = Object::new(160);
        out.number("at", self.at);
        out.text("by", &self.by);
        out.text("event", self.event.name());
        out.fields(&self.event);
        out.end()
    }
}

impl HistoryEvent {
    /// The value of `event`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Writer(_) => "writer",
            Self::Clock(_) => "clock",
            Self::Granted(_) => "granted",
            Self::Ended(_) => "ended",
            Self::Downgraded(_) => "downgraded",
            Self::Denied(_) => "denied",
            Self::Status(_) => "status",
            Self::Listed(_) => "listed",
            Self::Entered(_) => "entered",
            Self::Marked(_) => "marked",
            Self::Read(_) => "read",
            Self::Wrote(_) => "wrote",
            Self::Fault(_) => "fault",
        }
    }
}

/// The words for the values of an enum.
macro_rules! words {
    ($($type:ty { $($value:path = $word:literal),+ $(,)? })+) => {$(
        impl $type {
            /// The word in a line.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $($value => $word),+ }
            }

            /// The value of a word.
            #[must_use]
            pub fn of_word(word: &str) -> Option<Self> {
                match word { $($word => Some($value),)+ _ => None }
            }
        }
    )+};
}

words! {
    HoldMode { HoldMode::Exclusive = "exclusive", HoldMode::Shared = "shared", HoldMode::Permit = "permit" }
    HoldEnd { HoldEnd::Released = "released", HoldEnd::Lost = "lost" }
    TokenAnswer {
        TokenAnswer::Current = "current",
        TokenAnswer::NotCurrent = "not-current",
        TokenAnswer::NeverIssued = "never-issued",
    }
    FenceVerdict {
        FenceVerdict::Accepted = "accepted", FenceVerdict::Stale = "stale", FenceVerdict::Unknown = "unknown",
    }
    WriteOutcome {
        WriteOutcome::Done = "done", WriteOutcome::Stale = "stale", WriteOutcome::Unknown = "unknown",
    }
}

/// A JSON object that is being written.
struct Object(String);

impl Object {
    fn new(capacity: usize) -> Self {
        let mut text = String::with_capacity(capacity);
        text.push('{');
        Self(text)
    }

    fn end(mut self) -> String {
        self.0.push_str("}\n");
        self.0
    }

    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.quoted(key);
        self.0.push(':');
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.quoted(value);
    }

    fn number(&mut self, key: &str, value: impl std::fmt::Display) {
        self.key(key);
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{value}");
    }

    fn list<T>(&mut self, key: &str, values: &[T], each: impl Fn(&mut Self, &T)) {
        self.key(key);
        self.0.push('[');
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.0.push(',');
            }
            each(self, value);
        }
        self.0.push(']');
    }

    fn quoted(&mut self, text: &str) {
        self.0.push('"');
        for char in text.chars() {
            match char {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                '\u{0}'..='\u{1f}' => {
                    let _ = write!(self.0, "\\u{:04x}", u32::from(char));
                }
                _ => self.0.push(char),
            }
        }
        self.0.push('"');
    }

    fn fields(&mut self, event: &HistoryEvent) {
        match event {
            HistoryEvent::Writer(it) => {
                self.number("format", it.format);
                self.text("clock", &it.clock);
                self.text("label", &it.label);
            }
            HistoryEvent::Clock(it) => {
                self.text("other", &it.other);
                self.number("ahead_min", it.ahead_min);
                self.number("ahead_max", it.ahead_max);
            }
            HistoryEvent::Granted(it) => self.granted(it),
            HistoryEvent::Ended(it) => {
                self.number("hold", it.hold);
                self.number("until", it.until);
                self.text("how", it.how.word());
            }
            HistoryEvent::Downgraded(it) => {
                self.number("hold", it.hold);
                self.number("asked", it.asked);
            }
            HistoryEvent::Denied(it) => {
                self.text("service", &it.service);
                self.list("locks", &it.locks, |out, lock| out.quoted(lock));
                self.number("asked", it.asked);
                self.text("why", &it.why);
            }
            HistoryEvent::Status(it) => {
                self.lock(&it.service, &it.lock);
                self.number("token", it.token);
                self.number("asked", it.asked);
                self.text("answer", it.answer.word());
            }
            HistoryEvent::Listed(it) => {
                self.lock(&it.service, &it.lock);
                self.number("asked", it.asked);
                self.list("tokens", &it.tokens, |out, token| {
                    let _ = write!(out.0, "{token}");
                });
            }
            HistoryEvent::Entered(it) => {
                self.text("resource", &it.resource);
                self.lock(&it.service, &it.lock);
                self.number("token", it.token);
                self.number("asked", it.asked);
                self.text("verdict", it.verdict.word());
            }
            HistoryEvent::Marked(it) => {
                self.text("resource", &it.resource);
                self.number("asked", it.asked);
                self.number("token", it.token);
            }
            HistoryEvent::Read(it) => {
                self.text("resource", &it.resource);
                self.number("asked", it.asked);
                self.text("version", &it.version);
            }
            HistoryEvent::Wrote(it) => {
                self.text("resource", &it.resource);
                self.lock(&it.service, &it.lock);
                it.token.inspect(|token| self.number("token", token));
                self.number("asked", it.asked);
                self.text("saw", &it.saw);
                self.text("made", &it.made);
                self.text("outcome", it.outcome.word());
            }
            HistoryEvent::Fault(it) => {
                self.text("fault", &it.fault);
                self.text("target", &it.target);
                self.number("begins", it.begins);
            }
        }
    }

    fn lock(&mut self, service: &str, lock: &str) {
        self.text("service", service);
        self.text("lock", lock);
    }

    fn granted(&mut self, it: &GrantedEvent) {
        self.number("hold", it.hold);
        self.text("service", &it.service);
        self.list("locks", &it.locks, |out, lock| out.quoted(lock));
        self.text("mode", it.mode.word());
        if it.subtree {
            self.number("subtree", true);
        }
        if !it.slots.is_empty() {
            self.list("slots", &it.slots, |out, SlotOf { slot, limit }| {
                let _ = write!(out.0, "[{slot},{limit}]");
            });
        }
        it.token.inspect(|token| self.number("token", token));
        if it.cached {
            self.number("cached", true);
        }
        self.number("asked", it.asked);
        it.queued.inspect(|queued| self.number("queued", queued));
    }
}
