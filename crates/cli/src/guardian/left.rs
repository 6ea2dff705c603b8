//! Descendants that outlive the command.

use clap::ValueEnum;

/// Treatment of descendants that outlive the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Left {
    /// Send them SIGTERM, and SIGKILL after the grace
    End,
    /// Hold the lock until the last of them has ended
    #[default]
    Wait,
    /// Release the lock: they run on without it
    Release,
}

impl Left {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Wait => "wait",
            Self::Release => "release",
        }
    }
}
