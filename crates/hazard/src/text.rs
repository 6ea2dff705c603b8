//! A trace as lines of text.

use crate::trace::{DataVerdict, PlayOutcome, Step, StepKind};

/// A step in one line: its time in seconds, its lane, what happens.
#[must_use]
pub fn step_line(step: &Step) -> String {
    let seconds = format!("{}.{:03}", step.at_ms / 1_000, step.at_ms % 1_000);
    let sign = if step.kind == StepKind::Fault { "** " } else { "" };
    format!("{seconds:>8}  {:<8} {sign}{}", step.lane.name(), step.text)
}

/// The outcome in one line.
#[must_use]
pub fn outcome_line(outcome: &PlayOutcome) -> String {
    let word = match outcome.verdict {
        DataVerdict::Kept => "kept",
        DataVerdict::Lost => "LOST",
        DataVerdict::Torn => "TORN",
    };
    format!("{word:>8}  {}", outcome.text)
}
