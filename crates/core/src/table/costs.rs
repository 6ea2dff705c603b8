//! What a command costs: the work of applying it, its size, what it adds to the table, and whether it counts
//! against a rate limit.
//!
//! Every match here lists all commands, so that a new command does not compile before each cost is decided.

use super::Table;
use super::crowd::Class;
use super::usage::Usage;
use crate::command::Command;
use crate::limits;
use crate::name::LockName;
use crate::types::SessionId;

impl Command {
    /// Maximum number of table entries that this command visits, independent of the table's contents (M2): a
    /// multiple of the segments of its names, plus the bound on work for other requests,
    /// [`limits::WORK_PER_COMMAND_MAX`]. A command that refers to a request by seq or token is charged for
    /// the longest possible list of names.
    #[must_use]
    pub fn visits_max(&self) -> u64 {
        self.visits_max_with(limits::WORK_PER_COMMAND_MAX)
    }

    /// [`Command::visits_max`] for a table with another bound on work ([`Table::with_work_max`]).
    #[must_use]
    pub fn visits_max_with(&self, work_max: usize) -> u64 {
        /// The most visits of a name or of one of its prefixes: for lookup, conflict checks of each class,
        /// insertion into all indexes, and removal.
        const PER_SEGMENT: usize = 48;
        /// The most entries visited to find a queue position, a conflicting holder and live tokens.
        const VISITS: usize = Class::ALL.len() * limits::POSITION_VISITS_MAX
            + 4 * (limits::HOLDER_VISITS_MAX + limits::LIVE_TOKENS_MAX);
        /// A step of the search for a deadlock visits one name of a request with its prefixes (K2).
        const DEADLOCK: usize = limits::DEADLOCK_STEPS_MAX * limits::NAME_SEGMENTS_MAX * 4;
        let segments = match self {
            Self::OpenSession(_)
            | Self::RaiseTokens { .. }
            | Self::RaiseRules { .. }
            | Self::SetClock { .. } => 0,
            Self::Acquire(_) | Self::SetLimit { .. } => self.names().iter().map(LockName::segments).sum(),
            Self::Break(_)
            | Self::TimeOut { .. }
            | Self::EndDelay { .. }
            | Self::EndRevoked { .. }
            | Self::Finish { .. }
            | Self::SetValue { .. }
            | Self::Downgrade { .. }
            | Self::Settle { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::Resume => limits::NAMES_PER_REQUEST_MAX * limits::NAME_SEGMENTS_MAX,
        };
        let deadlock = if matches!(self, Self::Acquire(it) if !it.holding.is_empty()) { DEADLOCK } else { 0 };
        (PER_SEGMENT * (segments + 3 * work_max) + VISITS + deadlock) as u64
    }

    /// The names that the command contains.
    #[must_use]
    pub fn names(&self) -> &[LockName] {
        match self {
            Self::Acquire(it) => &it.names,
            Self::SetLimit { name, .. } => std::slice::from_ref(name),
            Self::Break(order) => std::slice::from_ref(&order.name),
            Self::OpenSession(_)
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::TimeOut { .. }
            | Self::EndDelay { .. }
            | Self::EndRevoked { .. }
            | Self::Finish { .. }
            | Self::SetValue { .. }
            | Self::Downgrade { .. }
            | Self::Settle { .. }
            | Self::RaiseTokens { .. }
            | Self::RaiseRules { .. }
            | Self::SetClock { .. }
            | Self::Resume => &[],
        }
    }

    /// Size of the command's names, values and texts, in bytes. All other fields have a fixed size.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let names: usize = self.names().iter().map(|name| name.as_str().len()).sum();
        names
            + match self {
                Self::OpenSession(open) => open.label.len() + open.identity.len(),
                Self::Acquire(it) => it.value.len() + it.meta.len() + size_of_val(&*it.holding),
                Self::SetValue { value, .. } => value.len(),
                Self::Break(order) => order.reason.len() + order.by.len(),
                Self::CloseSession { .. }
                | Self::ExpireSession { .. }
                | Self::TimeOut { .. }
                | Self::EndDelay { .. }
                | Self::EndRevoked { .. }
                | Self::Finish { .. }
                | Self::Downgrade { .. }
                | Self::Settle { .. }
                | Self::SetLimit { .. }
                | Self::RaiseTokens { .. }
                | Self::RaiseRules { .. }
                | Self::SetClock { .. }
                | Self::Resume => 0,
            }
    }

    /// Whether the command counts against its client's limit of requests per second. Commands that keep or
    /// end what a client already has do not count, nor do the leader's own.
    #[must_use]
    pub fn is_rate_limited(&self) -> bool {
        match self {
            Self::OpenSession(_)
            | Self::Acquire(_)
            | Self::SetValue { .. }
            | Self::Downgrade { .. }
            | Self::SetLimit { .. }
            | Self::Break(_) => true,
            Self::CloseSession { .. }
            | Self::Finish { .. }
            | Self::Settle { .. }
            | Self::ExpireSession { .. }
            | Self::TimeOut { .. }
            | Self::EndDelay { .. }
            | Self::EndRevoked { .. }
            | Self::RaiseTokens { .. }
            | Self::RaiseRules { .. }
            | Self::SetClock { .. }
            | Self::Resume => false,
        }
    }
}

impl Table {
    /// The usage that a session's command adds until the request ends or the answer is confirmed, and the
    /// session whose identity it counts for. `None`: the command adds nothing that a quota limits; a new
    /// session has [`Usage::of_session`].
    #[must_use]
    pub fn usage_added(&self, command: &Command) -> Option<(SessionId, Usage)> {
        match command {
            Command::Acquire(acquire) => Some((acquire.session, Usage::of_acquire(acquire))),
            Command::SetValue { session, target, value, .. } => {
                // The present value is unknown while the command that requests the hold is queued.
                let bytes = match self.has_seen(*session, *target) {
                    true => self.value_growth(*session, *target, value.len()),
                    false => value.len() as u64,
                };
                Some((*session, Usage { bytes, ..Usage::default() }.plus(Usage::of_answer())))
            }
            Command::Downgrade { session, .. } => Some((*session, Usage::of_answer())),
            // The answer is small, and an identity at its limit must be able to give locks back.
            Command::Finish { .. }
            | Command::Settle { .. }
            | Command::OpenSession(_)
            | Command::CloseSession { .. }
            | Command::ExpireSession { .. }
            | Command::TimeOut { .. }
            | Command::EndDelay { .. }
            | Command::EndRevoked { .. }
            | Command::SetLimit { .. }
            | Command::Break(_)
            | Command::RaiseTokens { .. }
            | Command::RaiseRules { .. }
            | Command::SetClock { .. }
            | Command::Resume => None,
        }
    }
}
