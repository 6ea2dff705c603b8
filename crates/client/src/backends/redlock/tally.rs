//! The nodes' answers in one round, and the outcome. No clock, no I/O.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::{BackendError, BackendErrorKind, Busy};

/// One node's answer to one attempt.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Granted,
    Busy(Busy),
    Waits {
        ahead: u64,
    },
    Refused(BackendError),
    /// No answer. `sent`: it may have been executed (P12). `why`: the reason, for display.
    Failed {
        sent: bool,
        why: String,
    },
}

/// The outcome of a round; `Open` while it is uncertain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Open,
    /// A majority granted.
    Won,
    /// A majority answered, and too few can still grant.
    Taken,
    /// So many nodes refuse that no majority is left, regardless of the other answers.
    Refused,
    /// No majority answers.
    Unreachable,
}

/// The nodes' answers, in the order of the URL.
pub(super) struct Tally {
    majority: usize,
    said: Vec<Option<Said>>,
}

#[derive(Default)]
struct Counts {
    granted: usize,
    taken: usize,
    refused: usize,
    pending: usize,
}

impl Tally {
    pub(super) fn new(nodes: usize, majority: usize) -> Self {
        Self { majority, said: vec![None; nodes] }
    }

    pub(super) fn add(&mut self, index: usize, said: Said) {
        self.said[index] = Some(said);
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for said in &self.said {
            match said {
                None => counts.pending += 1,
                Some(Said::Granted) => counts.granted += 1,
                Some(Said::Busy(_) | Said::Waits { .. }) => counts.taken += 1,
                Some(Said::Refused(_)) => counts.refused += 1,
                Some(Said::Failed { .. }) => {}
            }
        }
        counts
    }

    pub(super) fn verdict(&self) -> Verdict {
        let Counts { granted, taken, refused, pending } = self.counts();
        if granted >= self.majority {
            Verdict::Won
        } else if granted + pending >= self.majority {
            Verdict::Open
        } else if granted + taken >= self.majority {
            Verdict::Taken
        } else if granted + taken + pending >= self.majority {
            // A majority can't grant any more, but whether the lock is taken or the nodes are out of reach is still
            // open.
            Verdict::Open
        } else if self.said.len() - refused < self.majority {
            Verdict::Refused
        } else {
            Verdict::Unreachable
        }
    }

    /// Whether a majority may have granted, counting attempts without an answer.
    pub(super) fn in_doubt(&self) -> bool {
        let may_hold = |said: &&Option<Said>| {
            matches!(said, None | Some(Said::Granted | Said::Failed { sent: true, .. }))
        };
        self.said.iter().filter(may_hold).count() >= self.majority
    }

    /// The holder that most nodes report, and how many do. `None` if no node reports any.
    fn most_named(&self) -> Option<(&Busy, usize)> {
        let mut named: HashMap<Option<&str>, (&Busy, usize)> = HashMap::new();
        for said in self.said.iter().flatten() {
            if let Said::Busy(busy) = said {
                named.entry(busy.holder.as_deref()).or_insert((busy, 0)).1 += 1;
            }
        }
        // A known holder before none, then by name: the result must not depend on the order of a hash map.
        named
            .into_values()
            .max_by_key(|&(busy, count)| (count, busy.holder.is_some(), busy.holder.as_deref()))
    }

    /// The holder in the way, as most nodes report it.
    pub(super) fn busy(&self) -> Busy {
        let holder = self.most_named().and_then(|(busy, _)| busy.holder.clone());
        Busy { holder, queued_ahead: self.ahead() }
    }

    /// Whether no holder is known to have a majority: simultaneous rivals have split the nodes.
    pub(super) fn is_split(&self) -> bool {
        self.most_named().is_none_or(|(_, count)| count < self.majority)
    }

    /// How many wait before this request: the median of the nodes that report it.
    pub(super) fn ahead(&self) -> u64 {
        let mut ahead: Vec<u64> = self
            .said
            .iter()
            .flatten()
            .filter_map(|said| match said {
                Said::Waits { ahead } => Some(*ahead),
                Said::Busy(busy) => Some(busy.queued_ahead),
                _ => None,
            })
            .collect();
        ahead.sort_unstable();
        ahead.get(ahead.len() / 2).copied().unwrap_or(0)
    }

    /// The error for a round in which too many nodes refuse.
    pub(super) fn refusal(&self, names: &[String]) -> BackendError {
        let kind = self.said.iter().flatten().find_map(|said| match said {
            Said::Refused(error) => Some(error.kind),
            _ => None,
        });
        let says =
            format!("{} of {} nodes must agree: {}", self.majority, self.said.len(), self.describe(names));
        BackendError::new(kind.unwrap_or(BackendErrorKind::Refused), says)
    }

    /// Each node's answer, for display.
    pub(super) fn describe(&self, names: &[String]) -> String {
        let says = |said: &Option<Said>| match said {
            None => "no answer yet".to_owned(),
            Some(Said::Granted) => "granted, and taken back".to_owned(),
            Some(Said::Busy(busy)) => busy.to_string(),
            Some(Said::Waits { .. }) => "held, or others wait for it".to_owned(),
            Some(Said::Refused(error)) => format!("refused: {error}"),
            Some(Said::Failed { why, .. }) => why.clone(),
        };
        let lines: Vec<String> =
            names.iter().zip(&self.said).map(|(name, said)| format!("{name}: {}", says(said))).collect();
        lines.join("; ")
    }
}

/// The answer of a node that did not reply in time.
pub(super) fn timed_out(limit: Duration) -> Said {
    Said::Failed { sent: true, why: format!("no answer within {limit:?}") }
}
