//! The trace of a run, one line for each event. It is always hashed, and kept if that is requested.

use std::fmt::Write;

use xxhash_rust::xxh3::Xxh3;

use crate::clock::Nanos;

/// The trace. Two runs whose traces have the same hash had the same events in the same order.
pub(crate) struct Trace {
    hash: Xxh3,
    line: String,
    lines: Option<Vec<String>>,
    count: u64,
}

impl Trace {
    pub(crate) fn new(keep: bool) -> Self {
        Self { hash: Xxh3::new(), line: String::new(), lines: keep.then(Vec::new), count: 0 }
    }

    pub(crate) fn note(&mut self, now: Nanos, what: std::fmt::Arguments<'_>) {
        self.line.clear();
        // Writing to a String can't fail.
        let _ = write!(self.line, "{:>5}.{:09} {what}", now / 1_000_000_000, now % 1_000_000_000);
        self.hash.update(self.line.as_bytes());
        self.count += 1;
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }

    /// Whether the lines are kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.lines.is_some()
    }

    pub(crate) fn finish(self) -> (u64, u64, Vec<String>) {
        (self.hash.digest(), self.count, self.lines.unwrap_or_default())
    }
}
