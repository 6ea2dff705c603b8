//! The analysis of journals and ledger: lost updates, refused writes, overlaps, token regressions, handovers.
//!
//! Pure functions of the journals, the ledger and the injected faults. All times are of one clock,
//! `journal::now`: the workers run on one machine.

use std::collections::HashSet;

use super::conductor::Injected;
use super::journal::{JournalStep, Steps};

/// The figures of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct TortureVerdict {
    /// Updates whose write succeeded.
    pub(super) acknowledged: usize,
    /// Acknowledged updates that are missing from the ledger.
    pub(super) lost: Vec<String>,
    /// The number of operations that the fence refused.
    pub(super) stale_rejected: usize,
    /// Pairs of sections that overlap in time.
    pub(super) overlaps: usize,
    /// Grants whose token is not above the tokens of all earlier grants; `None` if the locks have no tokens.
    pub(super) token_regressions: Option<usize>,
    /// Handover times in nanoseconds, sorted: from a release, or from the fault in the holder, to the next
    /// grant. Only handovers to workers that were already waiting are counted.
    pub(super) handover_ns: Vec<u64>,
    /// The number of grants.
    pub(super) sections: usize,
    /// Sections in which the worker found its hold lost, and wrote nothing.
    pub(super) gave_up: usize,
    /// Failures of the lock service or the resource, as logged by workers.
    pub(super) troubles: usize,
    /// The last failure.
    pub(super) last_trouble: Option<String>,
}

/// A section: from a grant to the last action that the worker took as the holder.
#[derive(Debug)]
struct Section {
    serial: u32,
    asked: u64,
    granted: u64,
    token: Option<u64>,
    /// The time of that last action: the last step that was logged before the release, usually the reply to
    /// the write. If the worker gave up: the end of its hold (at most the hold's deadline).
    end: u64,
    releasing: Option<u64>,
}

impl TortureVerdict {
    pub(super) fn new(journals: &[(u32, Steps)], ledger: &str, injected: &[Injected]) -> Self {
        let mut verdict = Self::default();
        let there: HashSet<&str> = ledger.lines().collect();
        for step in journals.iter().flat_map(|(_, steps)| steps).map(|(_, step)| step) {
            match step {
                JournalStep::Acknowledged { update } => {
                    verdict.acknowledged += 1;
                    if !there.contains(update.as_str()) {
                        verdict.lost.push(update.clone());
                    }
                }
                JournalStep::Stale { .. } => verdict.stale_rejected += 1,
                JournalStep::GaveUp { .. } => verdict.gave_up += 1,
                JournalStep::Trouble { why } => {
                    verdict.troubles += 1;
                    verdict.last_trouble = Some(why.clone());
                }
                _ => {}
            }
        }
        let mut sections: Vec<Section> =
            journals.iter().flat_map(|(serial, steps)| sections(*serial, steps)).collect();
        sections.sort_unstable_by_key(|section| section.granted);
        verdict.sections = sections.len();
        verdict.overlaps = overlaps(&sections);
        verdict.token_regressions = regressions(&sections);
        verdict.handover_ns = handovers(&sections, injected);
        verdict
    }

    /// Whether no acknowledged update is missing and every token is above all earlier ones.
    pub(super) fn is_safe(&self) -> bool {
        self.lost.is_empty() && self.token_regressions.unwrap_or(0) == 0
    }
}

fn sections(serial: u32, steps: &[(u64, JournalStep)]) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut asked = 0;
    for (at, step) in steps {
        let at = *at;
        let current = sections.last_mut().filter(|section| section.releasing.is_none());
        match (step, current) {
            (JournalStep::Asked, _) => asked = at,
            (JournalStep::Granted { token }, _) => {
                let token = token.map(lockkeeper::Token::get);
                sections.push(Section { serial, asked, granted: at, token, end: at, releasing: None });
            }
            // Giving up is no action as the holder. So the section ends at the hold's end, even if the worker
            // was stopped then and logged `gave-up` much later.
            (JournalStep::GaveUp { believed_until }, Some(section)) => {
                section.end = at.min(believed_until.unwrap_or(u64::MAX)).max(section.end);
            }
            (JournalStep::Releasing, Some(section)) => section.releasing = Some(at),
            (_, Some(section)) => section.end = at,
            (_, None) => {}
        }
    }
    sections
}

/// Counts the overlapping pairs; `sections` must be sorted by grant.
fn overlaps(sections: &[Section]) -> usize {
    let mut count = 0;
    let mut open: Vec<u64> = Vec::new();
    for section in sections {
        open.retain(|end| *end > section.granted);
        count += open.len();
        open.push(section.end);
    }
    count
}

fn regressions(sections: &[Section]) -> Option<usize> {
    let mut highest = None;
    let mut fell = 0;
    for token in sections.iter().filter_map(|section| section.token) {
        fell += usize::from(highest.is_some_and(|highest| token <= highest));
        highest = highest.max(Some(token));
    }
    highest.map(|_| fell)
}

fn handovers(sections: &[Section], injected: &[Injected]) -> Vec<u64> {
    let taken = sections.windows(2).filter_map(|two| {
        let [former, next] = two else { return None };
        let released = former.releasing.filter(|at| *at <= next.granted);
        // A holder that a fault hit did not release the lock before the next grant: the handover is counted
        // from the fault.
        let ended = released.or_else(|| {
            let during = |done: &&Injected| {
                done.serial == former.serial && (former.granted..=next.granted).contains(&done.at)
            };
            injected.iter().find(during).map(|done| done.at)
        })?;
        (next.asked < ended).then(|| next.granted - ended)
    });
    let mut taken: Vec<u64> = taken.collect();
    taken.sort_unstable();
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::HolderFault;

    /// Parses `5 asked, 6 granted 17, …` as a journal.
    fn journal(serial: u32, lines: &str) -> (u32, Steps) {
        let steps = lines.split(", ").map(|line| {
            let (at, step) = line.split_once(' ').unwrap();
            (at.parse().unwrap(), step.parse().unwrap())
        });
        (serial, steps.collect())
    }

    fn judged(journals: &[(u32, Steps)], ledger: &str, injected: &[Injected]) -> TortureVerdict {
        TortureVerdict::new(journals, ledger, injected)
    }

    #[test]
    fn only_acknowledged_updates_missing_from_the_ledger_are_lost() {
        let journals = [
            journal(0, "1 asked, 2 granted 5, 3 read, 4 writes 0.1, 5 acknowledged 0.1, 6 releasing"),
            journal(1, "1 asked, 7 granted 6, 8 read, 9 writes 1.1, 10 acknowledged 1.1, 11 releasing"),
            // Worker 2 was killed before the reply. Its update was not acknowledged, so it may or may not be
            // in the ledger.
            journal(2, "1 asked, 12 granted 7, 13 read, 14 writes 2.1"),
        ];
        let lost = |ledger: &str| judged(&journals, ledger, &[]).lost;
        assert_eq!(lost("0.1\n1.1\n2.1\n"), Vec::<String>::new());
        assert_eq!(lost("0.1\n1.1\n"), Vec::<String>::new());
        assert_eq!(lost("0.1\n1.11\n"), ["1.1"]);
        assert_eq!(lost(""), ["0.1", "1.1"]);
        assert!(!judged(&journals, "0.1\n", &[]).is_safe());
    }

    #[test]
    fn sections_span_from_grant_to_last_action_as_holder() {
        let late =
            journal(1, "1 asked, 50 granted 6, 60 read, 70 writes 1.1, 80 acknowledged 1.1, 90 releasing");
        let overlaps = |former: &str| {
            let verdict = judged(&[journal(0, former), late.clone()], "", &[]);
            verdict.overlaps
        };
        let first = "1 asked, 2 granted 5, 3 read, 4 writes 0.1";
        assert_eq!(overlaps(&format!("{first}, 40 acknowledged 0.1, 95 releasing")), 0, "released late");
        assert_eq!(overlaps(&format!("{first}, 65 acknowledged 0.1, 66 releasing")), 1);
        assert_eq!(overlaps(&format!("{first}, 65 stale 5 6, 66 releasing")), 1, "refused, it had tried");
        assert_eq!(overlaps(first), 0, "killed");
        let read = "1 asked, 2 granted 5, 3 read";
        assert_eq!(overlaps(&format!("{read}, 65 gave-up 45, 66 releasing")), 0, "its deadline was 45");
        assert_eq!(overlaps(&format!("{read}, 65 gave-up -, 66 releasing")), 1, "it had no deadline");
    }

    #[test]
    fn token_that_does_not_rise_is_a_regression() {
        let fell = |tokens: &[&str]| {
            let journals: Vec<_> = (0u32..)
                .zip(tokens)
                .map(|(serial, token)| {
                    let at = u64::from(serial) * 10;
                    let lines = format!("{at} asked, {} granted {token}, {} releasing", at + 1, at + 2);
                    journal(serial, &lines)
                })
                .collect();
            judged(&journals, "", &[]).token_regressions
        };
        assert_eq!(fell(&["5", "6", "9"]), Some(0));
        assert_eq!(fell(&["5", "6", "6"]), Some(1));
        assert_eq!(fell(&["9", "6", "7", "10"]), Some(2), "both are below 9");
        assert_eq!(fell(&["-", "-"]), None);
    }

    #[test]
    fn handover_is_measured_only_for_a_waiting_worker() {
        let first = "1 asked, 2 granted 5, 3 read, 20 releasing";
        let second = |asked: u64| journal(1, &format!("{asked} asked, 27 granted 6"));
        assert_eq!(judged(&[journal(0, first), second(10)], "", &[]).handover_ns, [7]);
        assert_eq!(judged(&[journal(0, first), second(21)], "", &[]).handover_ns, [0u64; 0]);
        let killed = Injected { fault: HolderFault::Kill, serial: 0, at: 5, taken_over: true };
        let journals = [journal(0, "1 asked, 2 granted 5, 3 read"), second(4)];
        assert_eq!(judged(&journals, "", &[killed]).handover_ns, [22], "since it was killed");
        assert_eq!(judged(&journals, "", &[]).handover_ns, [0u64; 0]);
    }

    #[test]
    fn refusals_and_troubles_are_counted() {
        let journals = [journal(
            0,
            "1 asked, 2 granted 5, 3 stale 5 6, 4 releasing, 5 asked, 6 trouble no route, 7 asked, \
             8 granted 7, 9 read, 10 gave-up 9, 11 releasing",
        )];
        let verdict = judged(&journals, "", &[]);
        let counts = (verdict.sections, verdict.stale_rejected, verdict.gave_up, verdict.troubles);
        assert_eq!(counts, (2, 1, 1, 1));
        assert_eq!(verdict.last_trouble.as_deref(), Some("no route"));
    }
}
