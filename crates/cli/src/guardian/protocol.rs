//! Messages between wrapper and guardian, and their encoding.
//!
//! Both ends are the same binary, so there is no version. One message is one packet: a tag and little-endian
//! integers. This module does no I/O.

use nix::sys::signal::Signal;

/// The longest message in bytes; `LeftBehind` is the only one of variable length.
pub(crate) const MESSAGE_BYTES_MAX: usize = 5 + 4 * PIDS_MAX;

/// The largest number of process ids in `LeftBehind`: enough for a diagnosis, and the packet stays small.
pub(crate) const PIDS_MAX: usize = 32;

/// A message from the wrapper to the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardianOrder {
    /// The lock's new deadline (`CLOCK_BOOTTIME`, ns).
    ValidUntil(u64),
    /// Send this signal to the command.
    Forward(i32),
    /// Send SIGTERM to all descendants now, and SIGKILL at `by` (`CLOCK_BOOTTIME`, ns). The wrapper sends
    /// this when the lock is lost, or when the command has ended, descendants still run, and the wrapper
    /// receives a termination signal.
    End { by: u64 },
    /// The wrapper was continued: continue the command if it is stopped.
    Continue,
    /// The wrapper has received SIGTSTP: report the command's stop, even if it is stopped already.
    ReportStop,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// The command exited with this code.
    Code(u8),
    /// A signal ended the command. An integer, since real-time signals have no name.
    Signal(i32),
}

impl CommandEnd {
    /// The exit code by which the wrapper reports the outcome: the code itself, or 128 + n for signal n.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            // Linux has the signals 1 to 64, so this stays below 255.
            Self::Signal(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        }
    }
}

/// Why the guardian ends all descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The lock's deadline is near and was not extended.
    ValidUntil,
    /// The wrapper is dead.
    WrapperGone,
    /// The wrapper sent an `End` order.
    Asked,
}

/// A message from the guardian to the wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuardianReport {
    Started {
        pid: i32,
    },
    SpawnFailed {
        errno: i32,
    },
    Stopped,
    LeftBehind {
        total: u32,
        pids: Vec<i32>,
    },
    Exited(CommandEnd),
    Terminating(Reason),
    /// The guardian received this signal from this process. It does nothing itself.
    Received {
        signal: i32,
        sender: i32,
    },
    Gone {
        at: u64,
    },
}

impl GuardianOrder {
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::ValidUntil(at) => with_u64(b'V', at),
            Self::Forward(signal) => with_i32(b'F', signal),
            Self::End { by } => with_u64(b'E', by),
            Self::Continue => vec![b'C'],
            Self::ReportStop => vec![b'S'],
        }
    }

    /// Returns `None` if the bytes are not a valid message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        Some(match tag {
            b'V' => Self::ValidUntil(u64_of(rest)?),
            b'F' => Self::Forward(i32_of(rest)?),
            b'E' => Self::End { by: u64_of(rest)? },
            b'C' if rest.is_empty() => Self::Continue,
            b'S' if rest.is_empty() => Self::ReportStop,
            _ => return None,
        })
    }
}

impl GuardianReport {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Started { pid } => with_i32(b's', *pid),
            Self::SpawnFailed { errno } => with_i32(b'f', *errno),
            Self::Stopped => vec![b'z'],
            Self::LeftBehind { total, pids } => {
                let mut bytes = vec![b'l'];
                bytes.extend(total.to_le_bytes());
                bytes.extend(pids.iter().take(PIDS_MAX).flat_map(|pid| pid.to_le_bytes()));
                bytes
            }
            Self::Exited(CommandEnd::Code(code)) => vec![b'c', *code],
            Self::Exited(CommandEnd::Signal(signal)) => with_i32(b'k', *signal),
            Self::Terminating(reason) => vec![
                b't',
                match reason {
                    Reason::ValidUntil => b'v',
                    Reason::WrapperGone => b'w',
                    Reason::Asked => b'a',
                },
            ],
            Self::Received { signal, sender } => {
                [&[b'r'][..], &signal.to_le_bytes(), &sender.to_le_bytes()].concat()
            }
            Self::Gone { at } => with_u64(b'g', *at),
        }
    }

    /// Returns `None` if the bytes are not a valid message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        Some(match (tag, rest) {
            (b's', _) => Self::Started { pid: i32_of(rest)? },
            (b'f', _) => Self::SpawnFailed { errno: i32_of(rest)? },
            (b'z', []) => Self::Stopped,
            (b'l', _) => {
                let (total, pids) = rest.split_at_checked(4)?;
                let pids = pids.chunks(4).map(i32_of).collect::<Option<_>>()?;
                Self::LeftBehind { total: u32::from_le_bytes(total.try_into().ok()?), pids }
            }
            (b'c', [code]) => Self::Exited(CommandEnd::Code(*code)),
            (b'k', _) => Self::Exited(CommandEnd::Signal(i32_of(rest)?)),
            (b't', [b'v']) => Self::Terminating(Reason::ValidUntil),
            (b't', [b'w']) => Self::Terminating(Reason::WrapperGone),
            (b't', [b'a']) => Self::Terminating(Reason::Asked),
            (b'r', _) => {
                let (signal, sender) = rest.split_at_checked(4)?;
                Self::Received { signal: i32_of(signal)?, sender: i32_of(sender)? }
            }
            (b'g', _) => Self::Gone { at: u64_of(rest)? },
            _ => return None,
        })
    }
}

/// The signals that the wrapper relays to the command.
pub(crate) const FORWARDED: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
];

fn with_u64(tag: u8, number: u64) -> Vec<u8> {
    [&[tag][..], &number.to_le_bytes()].concat()
}

fn with_i32(tag: u8, number: i32) -> Vec<u8> {
    [&[tag][..], &number.to_le_bytes()].concat()
}

fn u64_of(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn i32_of(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_round_trips() {
        for order in [
            GuardianOrder::ValidUntil(u64::MAX),
            GuardianOrder::Forward(15),
            GuardianOrder::End { by: 7 },
            GuardianOrder::Continue,
            GuardianOrder::ReportStop,
        ] {
            assert_eq!(GuardianOrder::decode(&order.encode()), Some(order));
        }
        let reasons = [Reason::ValidUntil, Reason::WrapperGone, Reason::Asked];
        let mut reports: Vec<_> = reasons.map(GuardianReport::Terminating).into();
        reports.extend([
            GuardianReport::Started { pid: 1 },
            GuardianReport::SpawnFailed { errno: 2 },
            GuardianReport::Stopped,
            GuardianReport::LeftBehind { total: 40, pids: (0..32).collect() },
            GuardianReport::Exited(CommandEnd::Code(255)),
            GuardianReport::Exited(CommandEnd::Signal(64)),
            GuardianReport::Received { signal: 15, sender: 0 },
            GuardianReport::Gone { at: 9 },
        ]);
        for report in reports {
            let bytes = report.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(GuardianReport::decode(&bytes), Some(report));
        }
    }

    #[test]
    fn truncated_or_unknown_messages_are_refused() {
        for bytes in [&b""[..], b"V", b"V123", b"F12345", b"C1", b"?"] {
            assert_eq!(GuardianOrder::decode(bytes), None, "{bytes:?}");
        }
        for bytes in [&b""[..], b"s", b"z1", b"l123", b"l123456", b"c", b"t?", b"r12345", b"?"] {
            assert_eq!(GuardianReport::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn exit_code_of_a_signal_is_128_plus_its_number() {
        assert_eq!(CommandEnd::Code(3).exit_code(), 3);
        assert_eq!(CommandEnd::Signal(15).exit_code(), 143);
        assert_eq!(CommandEnd::Signal(64).exit_code(), 192);
    }
}
