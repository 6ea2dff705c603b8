//! What a run has done and found, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockkeeper_verify::Counts;
use serde_json::{Value, json};

use crate::check::Checked;
use crate::options::RunOptions;
use crate::samples::{self, Sample};

/// All rounds of a run.
pub(crate) struct Summary {
    pub(crate) options: Rc<RunOptions>,
    began: Instant,
    pub(crate) rounds: u64,
    counts: Counts,
    grants: BTreeMap<String, u64>,
    grants_by_worker: BTreeMap<String, u64>,
    /// By kind: how many were injected, and how many of them have bitten.
    faults: BTreeMap<String, [u64; 2]>,
    /// By kind of fault, in nanoseconds.
    gaps: BTreeMap<String, Vec<u64>>,
    checking: Duration,
    bytes: u64,
    /// The first violation of each kind, as text.
    shown: BTreeMap<&'static str, String>,
    /// Failures that are no violations: a cluster that does not recover, a worker that ended by itself.
    pub(crate) failures: Vec<String>,
    /// Of a run without faults.
    pub(crate) samples: Vec<Sample>,
    /// Folders with the histories of rounds that were not well.
    pub(crate) kept: Vec<PathBuf>,
}

impl Summary {
    pub(crate) fn new(options: &Rc<RunOptions>) -> Self {
        Self {
            options: Rc::clone(options),
            began: Instant::now(),
            rounds: 0,
            counts: Counts::default(),
            grants: BTreeMap::new(),
            grants_by_worker: BTreeMap::new(),
            faults: BTreeMap::new(),
            gaps: BTreeMap::new(),
            checking: Duration::ZERO,
            bytes: 0,
            shown: BTreeMap::new(),
            failures: Vec::new(),
            samples: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// A fault was injected and healed.
    pub(crate) fn played(&mut self, kind: &str, bitten: bool) {
        let [injected, bites] = self.faults.entry(kind.to_owned()).or_default();
        *injected += 1;
        *bites += u64::from(bitten);
    }

    /// Adds a round; returns a line about it.
    pub(crate) fn round(&mut self, checked: &Checked) -> String {
        let counts = checked.counts;
        self.counts += counts;
        self.checking += checked.took;
        self.bytes += checked.bytes;
        for (work, count) in &checked.grants {
            *self.grants.entry(work.clone()).or_default() += count;
        }
        for (worker, count) in &checked.grants_by_worker {
            *self.grants_by_worker.entry(worker.clone()).or_default() += count;
        }
        for (kind, gaps) in &checked.gaps {
            self.gaps.entry(kind.clone()).or_default().extend(gaps);
        }
        for violation in &checked.violations {
            self.shown.entry(violation.kind.word()).or_insert_with(|| {
                let lines: String = violation.lines.iter().map(|line| line.encode()).collect();
                format!("{}: {}\n{lines}", violation.kind.word(), violation.text)
            });
        }
        format!(
            "round {}: {} operations, {} faults, {} violations; checked in {:.1} s",
            self.rounds,
            counts.operations(),
            counts.faults,
            counts.violations,
            checked.took.as_secs_f64()
        )
    }

    /// Whether all is as it should be: no violation or, of a planted mistake, the one that must follow.
    pub(crate) fn is_well(&self) -> bool {
        let is_right =
            if self.options.mutant.is_some() { self.found_mutant() } else { self.counts.violations == 0 };
        is_right && self.failures.is_empty()
    }

    /// Whether there is a planted mistake, and it was found.
    pub(crate) fn found_mutant(&self) -> bool {
        self.options.mutant.is_some_and(|mutant| self.shown.contains_key(mutant.expected()))
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    pub(crate) fn operations(&self) -> u64 {
        self.counts.operations()
    }

    pub(crate) fn violations(&self) -> u64 {
        self.counts.violations
    }

    /// How many faults were injected, and how many have bitten.
    pub(crate) fn faults(&self) -> [u64; 2] {
        self.faults.values().fold([0; 2], |[all, bitten], it| [all + it[0], bitten + it[1]])
    }

    fn checked_per_second(&self) -> f64 {
        self.counts.operations() as f64 / self.checking.as_secs_f64().max(0.001)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let [injected, bitten] = self.faults();
        let _ = writeln!(
            out,
            "seed {}, on {}: {} s, {} rounds, {} operations checked ({:.0}/s while checking), {injected} faults \
             ({bitten} bitten), {} violations",
            self.options.seed,
            self.options.on,
            self.seconds(),
            self.rounds,
            self.operations(),
            self.checked_per_second(),
            self.violations()
        );
        let Counts { grants, denials, questions, fenced, writers, .. } = self.counts;
        let rate = grants as f64 / self.seconds().max(1) as f64;
        let _ = writeln!(
            out,
            "grants {grants} ({rate:.0}/s), denials {denials}, questions {questions}, at resources {fenced}; \
             {writers} writers, {} MB of histories",
            self.bytes >> 20
        );
        for (work, count) in &self.grants {
            let _ = writeln!(out, "  {work:<14} {count:>9}");
        }
        for (worker, count) in &self.grants_by_worker {
            let _ = writeln!(out, "  {worker:<24} {count:>9}");
        }
        let _ = writeln!(
            out,
            "faults          injected  bitten   longest pause without a grant, ms: p50, p95, max"
        );
        for (kind, [injected, bitten]) in &self.faults {
            let [p50, p95, max] = self.pauses(kind);
            let _ = writeln!(out, "  {kind:<14} {injected:>7} {bitten:>7} {p50:>9} {p95:>6} {max:>6}");
        }
        if !self.samples.is_empty() {
            out += &samples::text(&self.samples);
        }
        for text in self.shown.values() {
            let _ = write!(out, "VIOLATION {text}");
        }
        if let Some(mutant) = self.options.mutant {
            let (name, expected) = (mutant.name(), mutant.expected());
            let found = if self.found_mutant() { "found" } else { "NOT found" };
            let _ = writeln!(out, "planted mistake {name}: {expected} was {found}");
        }
        for failure in &self.failures {
            let _ = writeln!(out, "FAILURE {failure}");
        }
        for kept in &self.kept {
            let _ = writeln!(out, "kept: {}", kept.display());
        }
        out.truncate(out.trim_end().len());
        out
    }

    /// p50, p95 and maximum, in milliseconds.
    fn pauses(&self, kind: &str) -> [u64; 3] {
        let mut gaps = self.gaps.get(kind).cloned().unwrap_or_default();
        gaps.sort_unstable();
        let at = |part: usize| gaps.get((gaps.len() * part / 100).min(gaps.len().saturating_sub(1)));
        [50, 95, 100].map(|part| at(part).copied().unwrap_or_default() / 1_000_000)
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let faults = |(kind, [injected, bitten]): (&String, &[u64; 2])| {
            let [p50, p95, max] = self.pauses(kind);
            let pauses = json!({ "p50": p50, "p95": p95, "max": max });
            (kind.clone(), json!({ "injected": injected, "bitten": bitten, "pause_ms": pauses }))
        };
        let value = json!({
            "seed": self.options.seed,
            "on": self.options.on,
            "seconds": self.seconds(),
            "rounds": self.rounds,
            "operations": self.operations(),
            "lines": self.counts.lines,
            "grants": self.counts.grants,
            "denials": self.counts.denials,
            "questions": self.counts.questions,
            "fenced": self.counts.fenced,
            "grants_by_work": self.grants,
            "grants_by_worker": self.grants_by_worker,
            "faults": self.faults.iter().map(faults).collect::<serde_json::Map<String, Value>>(),
            "violations": self.violations(),
            "violation_kinds": self.shown.keys().collect::<Vec<_>>(),
            "failures": self.failures,
            "checked_per_second": self.checked_per_second().round(),
        });
        value.to_string()
    }
}
