//! The fields of a command that are needed after the table has applied, and so consumed, it.

use std::time::Duration;

use lockkeeper_core::{Command, IfBusy, Seq, limits};

/// What a command's answer, timers and counts depend on.
pub(crate) enum CommandSummary {
    Acquire {
        at_most: Option<Duration>,
    },
    Finish {
        target: Seq,
    },
    Open {
        ttl: Duration,
        linger: Duration,
    },
    Close,
    Expire,
    /// An operator ends a session.
    EndOrder,
    SetLimit,
    Break,
    Other,
}

impl CommandSummary {
    pub(crate) fn of(command: &Command) -> Self {
        let ms = Duration::from_millis;
        match command {
            Command::Acquire(it) => Self::Acquire {
                at_most: match it.if_busy {
                    IfBusy::Wait { at_most_ms, .. } if it.if_busy.may_wait() => at_most_ms.map(ms),
                    // Queued only while the holders of cached holds decide (C6).
                    _ => Some(ms(limits::TRY_WAIT_MS)),
                },
            },
            Command::Finish { target, .. } => Self::Finish { target: *target },
            Command::OpenSession(open) => Self::Open { ttl: ms(open.ttl_ms), linger: ms(open.linger_ms) },
            Command::CloseSession { .. } => Self::Close,
            Command::ExpireSession { .. } => Self::Expire,
            Command::SetLimit { .. } => Self::SetLimit,
            Command::Break(_) => Self::Break,
            Command::TimeOut { .. }
            | Command::EndDelay { .. }
            | Command::EndRevoked { .. }
            | Command::SetValue { .. }
            | Command::Downgrade { .. }
            | Command::Settle { .. }
            | Command::RaiseTokens { .. }
            | Command::RaiseRules { .. }
            | Command::SetClock { .. }
            | Command::Resume => Self::Other,
        }
    }
}
