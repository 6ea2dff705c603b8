//! The report of a run, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::conductor::Injected;
use super::verdict::TortureVerdict;
use crate::args::{HolderFault, TokenUse};
use crate::exit::Failure;
use crate::output::{self, human};

/// The largest number of lost updates that the JSON report lists; the count includes all of them.
const NAMED: usize = 20;

/// A finished run.
pub(super) struct TortureReport<'a> {
    /// The lock service's address for display, without its password. `resource` has the same form.
    pub(super) locks: String,
    pub(super) resource: String,
    pub(super) fence: TokenUse,
    pub(super) workers: u32,
    /// `None` if the locks have no leases.
    pub(super) ttl: Option<Duration>,
    pub(super) pause: Duration,
    pub(super) took: Duration,
    pub(super) injected: &'a [Injected],
    pub(super) verdict: &'a TortureVerdict,
    pub(super) interrupted: bool,
}

impl TortureReport<'_> {
    fn count(&self, fault: HolderFault) -> usize {
        self.injected.iter().filter(|injected| injected.fault == fault).count()
    }

    fn held_through(&self) -> usize {
        self.injected.iter().filter(|injected| !injected.taken_over).count()
    }

    /// Whether the run is evidence of safety: updates were acknowledged, faults were injected, no update was
    /// lost, and every token was above all earlier ones.
    pub(super) fn is_safe(&self) -> bool {
        !self.injected.is_empty() && self.verdict.acknowledged > 0 && self.verdict.is_safe()
    }

    /// The median and the longest handover, in milliseconds.
    fn handover(&self) -> (Option<f64>, Option<f64>) {
        let sorted = &self.verdict.handover_ns;
        let ms = |ns: &u64| (*ns as f64 / 1e4).round() / 100.0;
        (sorted.get(sorted.len() / 2).map(ms), sorted.last().map(ms))
    }

    /// The result in one sentence.
    fn sentence(&self) -> String {
        let TortureVerdict { acknowledged, lost, token_regressions, .. } = self.verdict;
        let faults = self.injected.len();
        let fell = token_regressions.unwrap_or(0);
        if !lost.is_empty() {
            let why = match self.fence {
                TokenUse::None => {
                    "a holder that had lost its lock wrote, and nothing stopped it; try `--fence enter`"
                }
                TokenUse::Write => {
                    "every write was checked, but a holder that stalled had read before, and was written over by one \
                     that had read the same: enter before you read (`--fence enter`)"
                }
                TokenUse::Enter => "this must not be: please report it, with what `--keep` leaves",
            };
            return format!("LOST {} of {acknowledged} acknowledged updates: {why}", lost.len());
        }
        if fell > 0 {
            return format!(
                "UNSAFE: {fell} tokens did not rise, so that no fence can tell which grant is later"
            );
        }
        if faults == 0 {
            return "this says nothing: it ended before anything was done to a holder".to_owned();
        }
        if *acknowledged == 0 {
            return "this says nothing: no update was acknowledged; the workers' troubles say why".to_owned();
        }
        let through = match self.held_through() {
            0 => String::new(),
            all if all == faults => "; nobody else got the lock meanwhile".to_owned(),
            some => format!("; {some} of them changed nothing: nobody else got the lock meanwhile"),
        };
        format!(
            "nothing was lost: all {acknowledged} acknowledged updates are there, after {faults} faults{through}"
        )
    }

    pub(super) fn print_json(&self) -> Result<(), Failure> {
        let TortureVerdict { acknowledged, lost, stale_rejected, overlaps, token_regressions, .. } =
            self.verdict;
        let (p50, max) = self.handover();
        let mut injected: serde_json::Map<String, Value> =
            [HolderFault::Pause, HolderFault::Kill, HolderFault::Cut, HolderFault::Server]
                .into_iter()
                .map(|fault| (fault.name().to_owned(), self.count(fault).into()))
                .collect();
        injected.insert("held_through".to_owned(), self.held_through().into());
        output::json(&json!({
            "locks": self.locks,
            "resource": self.resource,
            "fence": self.fence.name(),
            "workers": self.workers,
            "ttl_ms": self.ttl.map(|ttl| ttl.as_millis() as u64),
            "pause_ms": self.pause.as_millis() as u64,
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
            "injected": injected,
            "sections": self.verdict.sections,
            "gave_up": self.verdict.gave_up,
            "troubles": self.verdict.troubles,
            "last_trouble": self.verdict.last_trouble,
            "acknowledged": acknowledged,
            "lost": lost.len(),
            "lost_updates": lost.iter().take(NAMED).collect::<Vec<_>>(),
            "stale_rejected": stale_rejected,
            "overlaps": overlaps,
            "token_regressions": token_regressions,
            "handover_ms": { "p50": p50, "max": max },
            "interrupted": self.interrupted,
            "verdict": self.sentence(),
        }))
    }

    pub(super) fn print_text(&self) -> Result<(), Failure> {
        let TortureVerdict { acknowledged, lost, stale_rejected, overlaps, token_regressions, .. } =
            self.verdict;
        let field = |name: &str, value: String| output::line(format!("{name:<20} {value}"));
        let ttl = self.ttl.map_or_else(|| "no ttl".to_owned(), |ttl| format!("ttl {}", human(ttl)));
        field("locks", format!("{}, {ttl}", self.locks))?;
        field("resource", format!("{}, fence {}", self.resource, self.fence.name()))?;
        let done: Vec<String> =
            [HolderFault::Pause, HolderFault::Kill, HolderFault::Cut, HolderFault::Server]
                .into_iter()
                .filter(|fault| self.count(*fault) > 0)
                .map(|fault| format!("{} {}", fault.name(), self.count(fault)))
                .collect();
        let done = if done.is_empty() { "nothing".to_owned() } else { done.join(", ") };
        let end = if self.interrupted { ", interrupted" } else { "" };
        field("injected", format!("{done}; stalls of {} or more{end}", human(self.pause)))?;
        field("held through", format!("{} of {}", self.held_through(), self.injected.len()))?;
        field(
            "sections",
            format!("{} of {} workers, in {}", self.verdict.sections, self.workers, human(self.took)),
        )?;
        field("gave up in time", self.verdict.gave_up.to_string())?;
        field("acknowledged", acknowledged.to_string())?;
        field("lost", lost.len().to_string())?;
        field("stale rejected", stale_rejected.to_string())?;
        field("overlaps", overlaps.to_string())?;
        let fell = token_regressions.map_or_else(|| "no tokens".to_owned(), |fell| fell.to_string());
        field("token regressions", fell)?;
        if let (Some(p50), Some(max)) = self.handover() {
            field("handover", format!("p50 {p50} ms, max {max} ms"))?;
        }
        if let Some(trouble) = &self.verdict.last_trouble {
            field("troubles", format!("{}, the last: {trouble}", self.verdict.troubles))?;
        }
        field("verdict", self.sentence())
    }
}
