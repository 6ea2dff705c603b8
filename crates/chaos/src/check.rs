//! The check of a round: its histories as one, through the checker, and the longest pauses without a grant.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockkeeper_history::{HistoryEvent, HistoryLine};
use lockkeeper_verify::{Checker, Counts, Merged, Violation};

use crate::Result;

/// After the end of a fault, clients may still need this long to notice it.
const AFTER_NS: u64 = 2_000_000_000;

/// The result of checking the histories of one round.
pub(crate) struct Checked {
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<Violation>,
    /// Grants by the first segment of their lock.
    pub(crate) grants: BTreeMap<String, u64>,
    /// Grants by the label of their writer: a worker, and its driver.
    pub(crate) grants_by_worker: BTreeMap<String, u64>,
    /// The longest pauses without a grant around each fault, by its kind, in nanoseconds.
    pub(crate) gaps: BTreeMap<String, Vec<u64>>,
    pub(crate) took: Duration,
    pub(crate) bytes: u64,
}

/// Reads and checks these files.
pub(crate) fn check(files: &[PathBuf]) -> Result<Checked> {
    let began = Instant::now();
    let mut readers = Vec::new();
    let mut bytes = 0;
    for file in files {
        let file = File::open(file)?;
        bytes += file.metadata()?.len();
        readers.push(BufReader::with_capacity(1 << 18, file));
    }
    let (mut checker, mut gaps) = (Checker::default(), Gaps::default());
    let (mut grants, mut grants_by_worker) = (BTreeMap::new(), BTreeMap::new());
    let mut labels: BTreeMap<String, String> = BTreeMap::new();
    for line in Merged::new(readers) {
        let line = line.map_err(|error| format!("{}: {error}", files[error.file].display()))?;
        gaps.push(&line);
        if let HistoryEvent::Granted(granted) = &line.event
            && let Some(top) = granted.locks.first().and_then(|lock| lock.split('/').next())
        {
            add_one(&mut grants, top);
            add_one(&mut grants_by_worker, labels.get(&line.by).map_or("", String::as_str));
        }
        if let HistoryEvent::Writer(writer) = &line.event {
            labels.insert(line.by.clone(), writer.label.clone());
        }
        checker.push(line);
    }
    let violations = checker.take_violations();
    let (counts, gaps) = (checker.counts(), gaps.end());
    Ok(Checked { counts, violations, grants, grants_by_worker, gaps, took: began.elapsed(), bytes })
}

fn add_one(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(counts.insert(name.to_owned(), 1)),
    }
}

/// The pauses between grants around faults. Sections of cached holds are no grants of the service.
#[derive(Default)]
struct Gaps {
    last: u64,
    open: VecDeque<Window>,
    found: BTreeMap<String, Vec<u64>>,
}

struct Window {
    fault: String,
    target: String,
    from: u64,
    until: u64,
    longest: u64,
}

impl Gaps {
    fn push(&mut self, line: &HistoryLine) {
        match &line.event {
            HistoryEvent::Fault(fault) if fault.begins => {
                // A pause from now on counts for the new fault.
                for window in &mut self.open {
                    window.until = window.until.min(line.at);
                }
                let (kind, target) = (fault.fault.clone(), fault.target.clone());
                self.open.push_back(Window {
                    fault: kind,
                    target,
                    from: line.at,
                    until: u64::MAX,
                    longest: 0,
                });
            }
            HistoryEvent::Fault(fault) => {
                let is_it =
                    |window: &&mut Window| window.fault == fault.fault && window.target == fault.target;
                if let Some(window) = self.open.iter_mut().rev().find(is_it) {
                    window.until = line.at + AFTER_NS;
                }
            }
            HistoryEvent::Granted(granted) if !granted.cached => {
                for window in &mut self.open {
                    let pause = line.at.min(window.until).saturating_sub(self.last.max(window.from));
                    window.longest = window.longest.max(pause);
                }
                self.last = self.last.max(line.at);
                while let Some(window) = self.open.front()
                    && window.until < line.at
                    && let Some(window) = self.open.pop_front()
                {
                    self.found.entry(window.fault).or_default().push(window.longest);
                }
            }
            _ => {}
        }
    }

    fn end(mut self) -> BTreeMap<String, Vec<u64>> {
        for window in self.open {
            self.found.entry(window.fault).or_default().push(window.longest);
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_history::{FaultEvent, GrantedEvent};

    use super::*;

    #[test]
    fn pause_is_the_longest_between_grants_around_a_fault() {
        let mut gaps = Gaps::default();
        let mut push = |at: u64, event| gaps.push(&HistoryLine { at: at * 1_000_000, by: "w".into(), event });
        let grant = |cached| HistoryEvent::Granted(GrantedEvent { cached, ..GrantedEvent::default() });
        let fault =
            |begins| HistoryEvent::Fault(FaultEvent { fault: "cut".into(), target: "x".into(), begins });
        push(10, grant(false));
        push(500, grant(false));
        push(510, fault(true));
        push(600, grant(true));
        push(900, grant(false));
        push(1000, fault(false));
        push(1800, grant(false));
        push(9000, grant(false));
        push(9100, fault(true));
        push(9110, fault(false));
        push(9120, grant(false));
        let found = gaps.end();
        // The pause from 1800 on, up to two seconds after the fault.
        assert_eq!(found["cut"], vec![1_200_000_000, 20_000_000]);
    }
}
