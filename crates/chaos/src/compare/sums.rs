//! What the histories of a row show.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_history::{HistoryEvent, HistoryLine, WriteOutcome};
use lockkeeper_verify::{ViolationKind, parse};

use super::rows::{ComparedRow, LockClient};
use super::section::{Guarding, elements};
use crate::Result;
use crate::check::check;

/// The cells of a row.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct RowSums {
    pub(crate) grants: u64,
    pub(crate) faults: usize,
    /// Holds on which a client still counted when the lock was granted to another one.
    pub(crate) overlaps: u64,
    /// Acknowledged elements that are not in the set at the end, for each [`Guarding`]; none: never written.
    pub(crate) lost: [Option<u64>; 3],
    /// The longest time without a grant around each fault of a contender.
    pub(crate) after_client: Vec<Duration>,
    /// The same, for a server's.
    pub(crate) after_server: Vec<Duration>,
    /// What `lockkeeper verify` says of the claims: whether holds overlap.
    pub(crate) has_overlap: bool,
}

impl RowSums {
    /// Whether a fence with `enter` has lost no update, and no hold of our library overlaps another one.
    /// Two exceptions follow from the pages of these services: after a fail-over, Redis may have lost grants
    /// and tokens; PostgreSQL frees the lock of a connection that it takes for dead.
    pub(crate) fn is_well(&self, row: &ComparedRow) -> bool {
        let may_overlap = row.client != LockClient::Ours || row.on == "postgres-session";
        let tells = may_overlap || (self.overlaps == 0 && !self.has_overlap);
        row.on == "fail-over" || (tells && self.lost[2].is_none_or(|lost| lost == 0))
    }
}

/// Reads the histories in these files, and the sets in this folder.
pub(super) fn sums(files: &[PathBuf], folder: &Path) -> Result<RowSums> {
    let checked = check(files)?;
    let mut lines = Vec::new();
    for file in files {
        for line in fs::read_to_string(file)?.lines() {
            // The last line of a killed process may be cut off.
            lines.extend(parse(line).ok().flatten());
        }
    }
    let mut sets = Vec::new();
    for guarding in Guarding::ALL {
        sets.push(elements(folder, guarding)?);
    }
    let mut sums = of_lines(&lines, &sets);
    sums.has_overlap = checked.violations.iter().any(|it| it.kind == ViolationKind::Overlap);
    (sums.after_client, sums.after_server) = pauses(&checked.gaps);
    sums.faults = checked.gaps.values().map(Vec::len).sum();
    Ok(sums)
}

/// Grants, overlaps and lost elements.
fn of_lines(lines: &[HistoryLine], sets: &[String]) -> RowSums {
    let mut holds = Vec::new();
    let mut ends = HashMap::new();
    let mut acknowledged: [Option<Vec<&str>>; 3] = Default::default();
    for line in lines {
        match &line.event {
            HistoryEvent::Granted(granted) => holds.push((line.at, (&line.by, granted.hold))),
            HistoryEvent::Ended(ended) => drop(ends.insert((&line.by, ended.hold), ended.until)),
            HistoryEvent::Wrote(wrote) => {
                let index = Guarding::ALL.iter().position(|it| it.resource() == wrote.resource);
                if let (Some(index), WriteOutcome::Done) = (index, wrote.outcome) {
                    acknowledged[index].get_or_insert_default().push(&wrote.made);
                }
            }
            _ => {}
        }
    }
    holds.sort_unstable();
    // A later hold begins before the end that the client of the earlier one has told.
    let is_outlived = |pair: &&[(u64, _)]| ends.get(&pair[0].1).is_some_and(|until| pair[1].0 < *until);
    let overlaps = holds.windows(2).filter(is_outlived).count() as u64;
    let mut lost = [None; 3];
    for (index, acknowledged) in acknowledged.iter().enumerate() {
        let there: std::collections::HashSet<&str> =
            sets.get(index).map(String::as_str).unwrap_or_default().lines().collect();
        lost[index] =
            acknowledged.as_ref().map(|all| all.iter().filter(|made| !there.contains(**made)).count() as u64);
    }
    RowSums { grants: holds.len() as u64, overlaps, lost, ..RowSums::default() }
}

/// The pauses after faults of contenders, and after those of servers. A fault in which a holder's section
/// goes on measures that section.
fn pauses(gaps: &BTreeMap<String, Vec<u64>>) -> (Vec<Duration>, Vec<Duration>) {
    let (mut client, mut server) = (Vec::new(), Vec::new());
    for (fault, gaps) in gaps.iter().filter(|(fault, _)| !fault.ends_with("-held")) {
        let of = if fault.starts_with("server") { &mut server } else { &mut client };
        of.extend(gaps.iter().map(|ns| Duration::from_nanos(*ns)));
    }
    client.sort_unstable();
    server.sort_unstable();
    (client, server)
}

#[cfg(test)]
mod tests {
    use lockkeeper_history::{EndedEvent, GrantedEvent, HoldEnd, WroteEvent};

    use super::*;

    fn line(at: u64, by: &str, event: HistoryEvent) -> HistoryLine {
        HistoryLine { at, by: by.into(), event }
    }

    fn hold(by: &str, hold: u64, from: u64, until: Option<u64>) -> Vec<HistoryLine> {
        let granted = HistoryEvent::Granted(GrantedEvent { hold, ..GrantedEvent::default() });
        let ended = |until| HistoryEvent::Ended(EndedEvent { hold, until, how: HoldEnd::Lost });
        let ended = until.map(|until| line(until + 1, by, ended(until)));
        std::iter::once(line(from, by, granted)).chain(ended).collect()
    }

    #[test]
    fn a_hold_that_its_client_counts_on_after_the_next_grant_is_one_overlap() {
        let lines = [
            hold("a", 1, 10, Some(100)),
            hold("b", 1, 50, Some(60)),
            hold("c", 1, 70, Some(80)),
            // Killed: nobody knows how long it counted on its hold.
            hold("a", 2, 110, None),
            hold("b", 2, 120, Some(130)),
        ];
        let sums = of_lines(&lines.concat(), &[]);
        assert_eq!((sums.grants, sums.overlaps), (5, 1));
    }

    #[test]
    fn an_acknowledged_element_that_is_not_in_the_set_is_lost() {
        let wrote = |resource: Guarding, made: &str, outcome| {
            let (resource, made) = (resource.resource().to_owned(), made.to_owned());
            let (service, lock, saw) = (String::new(), String::new(), String::new());
            let event = WroteEvent { resource, service, lock, token: None, asked: 1, saw, made, outcome };
            line(2, "a", HistoryEvent::Wrote(event))
        };
        let lines = [
            wrote(Guarding::Unfenced, "a-1", WriteOutcome::Done),
            wrote(Guarding::Unfenced, "a-2", WriteOutcome::Done),
            wrote(Guarding::CheckedWrites, "a-1", WriteOutcome::Stale),
            wrote(Guarding::CheckedWrites, "a-2", WriteOutcome::Done),
        ];
        let sums = of_lines(&lines, &["a-2\n".into(), "a-2\n".into(), String::new()]);
        assert_eq!(sums.lost, [Some(1), Some(0), None]);
    }

    #[test]
    fn pauses_with_a_slow_section_do_not_count() {
        let gaps = [("stop", 3), ("kill", 2), ("server-kill", 5), ("server-kill-held", 9)];
        let gaps = gaps.map(|(fault, s)| (fault.to_owned(), vec![s * 1_000_000_000]));
        let seconds = |it: &[u64]| it.iter().map(|s| Duration::from_secs(*s)).collect::<Vec<_>>();
        assert_eq!(pauses(&gaps.into()), (seconds(&[2, 3]), seconds(&[5])));
    }
}
