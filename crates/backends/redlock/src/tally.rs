//! The nodes' replies in one round, and the outcome. No clock, no I/O.

use std::collections::HashMap;

use lockkeeper_backend::{BackendError, BackendErrorKind, Busy};

/// One node's reply to one attempt.
#[derive(Clone, Debug)]
pub(super) enum NodeReply {
    Granted,
    Busy(Busy),
    Waits {
        ahead: u64,
    },
    Refused(BackendError),
    /// No reply. `sent`: the attempt may have been executed (P12). `why`: the reason, for display.
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
    /// A majority granted, but too late, or the claim was ended meanwhile.
    Late,
    /// A majority answered, and too few can still grant.
    Taken,
    /// So many nodes refuse that no majority is left, regardless of the other answers.
    Refused,
    /// No majority answers.
    Unreachable,
}

/// The nodes' replies, in the order of the URL.
pub(super) struct Tally {
    majority: usize,
    replies: Vec<Option<NodeReply>>,
}

impl Tally {
    pub(super) fn new(nodes: usize, majority: usize) -> Self {
        Self { majority, replies: vec![None; nodes] }
    }

    pub(super) fn add(&mut self, index: usize, reply: NodeReply) {
        self.replies[index] = Some(reply);
    }

    fn count(&self, is: impl Fn(&Option<NodeReply>) -> bool) -> usize {
        self.replies.iter().filter(|reply| is(reply)).count()
    }

    pub(super) fn verdict(&self) -> Verdict {
        let granted = self.count(|reply| matches!(reply, Some(NodeReply::Granted)));
        let taken = self.count(|reply| matches!(reply, Some(NodeReply::Busy(_) | NodeReply::Waits { .. })));
        let refused = self.count(|reply| matches!(reply, Some(NodeReply::Refused(_))));
        let pending = self.count(Option::is_none);
        if granted >= self.majority {
            Verdict::Won
        } else if granted + pending >= self.majority {
            Verdict::Open
        } else if granted + taken >= self.majority {
            Verdict::Taken
        } else if granted + taken + pending >= self.majority {
            // A majority can't grant any more, but whether the lock is taken or the nodes are out of reach is
            // still open.
            Verdict::Open
        } else if self.replies.len() - refused < self.majority {
            Verdict::Refused
        } else {
            Verdict::Unreachable
        }
    }

    /// Whether a majority may have granted, counting attempts without an answer.
    pub(super) fn in_doubt(&self) -> bool {
        let may_hold = |reply: &Option<NodeReply>| {
            matches!(reply, None | Some(NodeReply::Granted | NodeReply::Failed { sent: true, .. }))
        };
        self.count(may_hold) >= self.majority
    }

    /// The holder that most nodes report, and how many do. `None` if no node reports any.
    fn most_named(&self) -> Option<(&Busy, usize)> {
        let mut named: HashMap<Option<&str>, (&Busy, usize)> = HashMap::new();
        for reply in self.replies.iter().flatten() {
            if let NodeReply::Busy(busy) = reply {
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
            .replies
            .iter()
            .flatten()
            .filter_map(|reply| match reply {
                NodeReply::Waits { ahead } => Some(*ahead),
                NodeReply::Busy(busy) => Some(busy.queued_ahead),
                _ => None,
            })
            .collect();
        ahead.sort_unstable();
        ahead.get(ahead.len() / 2).copied().unwrap_or(0)
    }

    /// The error for a round in which too many nodes refuse.
    pub(super) fn refusal(&self, names: &[String]) -> BackendError {
        let kind = self.replies.iter().flatten().find_map(|reply| match reply {
            NodeReply::Refused(error) => Some(error.kind),
            _ => None,
        });
        let says =
            format!("{} of {} nodes must agree: {}", self.majority, self.replies.len(), self.describe(names));
        BackendError::new(kind.unwrap_or(BackendErrorKind::Refused), says)
    }

    /// Each node's reply, for display.
    pub(super) fn describe(&self, names: &[String]) -> String {
        let says = |reply: &Option<NodeReply>| match reply {
            None => "no answer yet".to_owned(),
            Some(NodeReply::Granted) => "granted, and taken back".to_owned(),
            Some(NodeReply::Busy(busy)) => busy.to_string(),
            Some(NodeReply::Waits { .. }) => "held, or others wait for it".to_owned(),
            Some(NodeReply::Refused(error)) => format!("refused: {error}"),
            Some(NodeReply::Failed { why, .. }) => why.clone(),
        };
        let lines: Vec<String> =
            names.iter().zip(&self.replies).map(|(name, reply)| format!("{name}: {}", says(reply))).collect();
        lines.join("; ")
    }
}
