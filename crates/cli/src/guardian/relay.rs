//! Decides which signals to the wrapper are relayed to the command: those that were not also sent to the
//! command. Pure: the time is a parameter, and no signal is sent here.
//!
//! A signal that is sent to several processes may have reached the command too, which must not receive it
//! twice. Evidence, by which of our two helper processes has received the signal:
//! - The *witness* only: it was sent to the wrapper's process group (a key of the terminal, `kill -- -GROUP`,
//!   `timeout`). The command has it if it is in that group.
//! - The *guardian* only, which is alone in its group: it was sent to each process (`systemctl stop`). The
//!   command has it.
//! - Both: it was sent to each process, or to all processes of one program (`killall /usr/bin/lockkeeper`).
//!   In the second case the command has not got it. A sender that is the wrapper's parent, process 1 or
//!   outside of this PID namespace is never such a `killall`.
//!
//! All times are nanoseconds of `CLOCK_BOOTTIME`.

use std::collections::VecDeque;

use nix::sys::signal::Signal;

use super::inherited::bit;

/// How long a signal waits for evidence: a sender signals many processes one after the other.
const WINDOW_NS: u64 = 100_000_000;
/// A signal to the guardian is evidence if it arrives less than this before or after the wrapper's.
const GUARDIAN_NS: u64 = 300_000_000;
/// How many signals to the guardian are remembered.
const GUARDIAN_MAX: usize = 16;
/// How long the witness may take to answer.
const ANSWER_NS: u64 = 1_000_000_000;

/// The process group of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandGroup {
    /// In the wrapper's process group.
    WithWrapper,
    /// In another group, as `timeout` and `setsid` put it.
    Elsewhere,
    /// The command has ended; descendants remain.
    Ended,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayStep {
    /// Poll again at this time; `None`: when the next signal arrives.
    Wait(Option<u64>),
    /// Ask the witness, and pass its answer to [`Relay::answered`].
    Ask,
    /// The witness did not answer in time: decide without it.
    GiveUp,
}

#[derive(Debug, Default)]
pub(crate) struct Relay {
    /// Undecided signals with their times of arrival, in that order.
    waiting: VecDeque<(Signal, u64)>,
    ask_at: Option<u64>,
    /// The pending question to the witness: how many of `waiting` it covers, and when it times out.
    asked: Option<(usize, u64)>,
    /// Signals that the witness has reported and the wrapper has not received yet.
    group: u64,
    /// The latest signals to the guardian: the signal, when it arrived, and `from_manager`.
    guardian: VecDeque<(Signal, u64, bool)>,
}

impl Relay {
    /// The wrapper has received a signal.
    pub(crate) fn received(&mut self, signal: Signal, now: u64) {
        self.waiting.push_back((signal, now));
        self.ask_at.get_or_insert(now.saturating_add(WINDOW_NS));
    }

    /// The guardian has received a signal. `from_manager`: from the wrapper's parent, process 1, or outside
    /// of this PID namespace.
    pub(crate) fn guardian_got(&mut self, signal: Signal, from_manager: bool, now: u64) {
        self.guardian.push_back((signal, now, from_manager));
        if self.guardian.len() > GUARDIAN_MAX {
            self.guardian.pop_front();
        }
    }

    /// The command has ended: asks the witness at once, for the signals that may have ended the command.
    pub(crate) fn command_ended(&mut self, now: u64) {
        self.ask_at = Some(now);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    pub(crate) fn poll(&mut self, now: u64) -> RelayStep {
        match (self.asked, self.ask_at) {
            (Some((_, until)), _) if until <= now => RelayStep::GiveUp,
            (Some((_, until)), _) => RelayStep::Wait(Some(until)),
            (None, Some(at)) if at <= now => {
                self.ask_at = None;
                self.asked = Some((self.waiting.len(), now.saturating_add(ANSWER_NS)));
                RelayStep::Ask
            }
            (None, at) => RelayStep::Wait(at),
        }
    }

    /// Decides about the signals that the question covers. `got`: the signals that the witness received; 0
    /// without a witness. Returns the signals to relay.
    pub(crate) fn answered(&mut self, got: u64, command: CommandGroup, now: u64) -> Vec<Signal> {
        let covered = self.asked.take().map_or(0, |(covered, _)| covered);
        self.group |= got;
        let covered: Vec<_> = self.waiting.drain(..covered).collect();
        if !self.waiting.is_empty() {
            self.ask_at.get_or_insert(now.saturating_add(WINDOW_NS));
        }
        let mut seen = 0;
        let is_to_relay = |(signal, received): &(Signal, u64)| {
            seen |= self.group & bit(*signal as i32);
            let group_got = self.group & bit(*signal as i32) != 0;
            let is_same = |(got, at, _): &&(_, u64, _)| got == signal && at.abs_diff(*received) < GUARDIAN_NS;
            match self.guardian.iter().rfind(is_same) {
                Some((.., from_manager)) => group_got && !from_manager,
                None => !group_got || command == CommandGroup::Elsewhere,
            }
        };
        let relayed = covered.into_iter().filter(is_to_relay).map(|(signal, _)| signal).collect();
        self.group &= !seen;
        relayed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CommandGroup::{Elsewhere, Ended, WithWrapper};
    use Signal::{SIGINT, SIGTERM, SIGUSR1};

    const MS: u64 = 1_000_000;

    fn set(signals: &[Signal]) -> u64 {
        signals.iter().fold(0, |set, signal| set | bit(*signal as i32))
    }

    /// The wrapper receives these signals at time 0; returns what is relayed.
    fn relayed(
        received: &[Signal],
        got: &[Signal],
        guardian: &[Signal],
        from_manager: bool,
        command: CommandGroup,
    ) -> Vec<Signal> {
        let mut relay = Relay::default();
        for signal in received {
            relay.received(*signal, 0);
        }
        for signal in guardian {
            relay.guardian_got(*signal, from_manager, 50 * MS);
        }
        assert_eq!(relay.poll(50 * MS), RelayStep::Wait(Some(WINDOW_NS)));
        assert_eq!(relay.poll(WINDOW_NS), RelayStep::Ask);
        let relayed = relay.answered(set(got), command, WINDOW_NS);
        assert_eq!(relay.poll(u64::MAX), RelayStep::Wait(None));
        relayed
    }

    #[test]
    fn signal_is_relayed_unless_the_command_has_it() {
        for (got, guardian, command, expected) in [
            (&[][..], &[][..], WithWrapper, &[SIGTERM][..]),
            (&[], &[], Elsewhere, &[SIGTERM]),
            (&[SIGTERM], &[], WithWrapper, &[]),
            (&[SIGTERM], &[], Elsewhere, &[SIGTERM]),
            (&[SIGINT], &[], WithWrapper, &[SIGTERM]),
            (&[], &[SIGTERM], WithWrapper, &[]),
            (&[], &[SIGTERM], Elsewhere, &[]),
            (&[], &[SIGINT], WithWrapper, &[SIGTERM]),
        ] {
            for from_manager in [false, true] {
                let relayed = relayed(&[SIGTERM], got, guardian, from_manager, command);
                assert_eq!(relayed, expected, "{got:?} {guardian:?} {from_manager} {command:?}");
            }
        }
        for command in [WithWrapper, Elsewhere] {
            assert_eq!(relayed(&[SIGTERM], &[SIGTERM], &[SIGTERM], true, command), []);
            assert_eq!(relayed(&[SIGTERM], &[SIGTERM], &[SIGTERM], false, command), [SIGTERM]);
        }
        let several = [SIGUSR1, SIGTERM, SIGUSR1];
        assert_eq!(relayed(&several, &[SIGTERM], &[], true, WithWrapper), [SIGUSR1, SIGUSR1]);
        // `timeout` signals the wrapper, and then the group.
        assert_eq!(relayed(&[SIGTERM, SIGTERM], &[SIGTERM], &[], true, WithWrapper), []);
    }

    #[test]
    fn evidence_is_used_once() {
        let mut relay = Relay::default();
        for expected in [&[][..], &[SIGTERM]] {
            relay.received(SIGTERM, 0);
            assert_eq!(relay.poll(WINDOW_NS), RelayStep::Ask);
            let got = if expected.is_empty() { set(&[SIGTERM]) } else { 0 };
            assert_eq!(relay.answered(got, WithWrapper, WINDOW_NS), expected);
        }
    }

    #[test]
    fn signal_to_the_group_that_ended_the_command_is_not_relayed_to_the_rest() {
        let mut relay = Relay::default();
        relay.command_ended(0);
        assert_eq!(relay.poll(0), RelayStep::Ask);
        assert_eq!(relay.answered(set(&[SIGTERM]), Ended, 0), []);
        // The wrapper's copy of that signal arrives late; the next signal is a new one.
        for expected in [&[][..], &[SIGTERM]] {
            relay.received(SIGTERM, 0);
            assert_eq!(relay.poll(WINDOW_NS), RelayStep::Ask);
            assert_eq!(relay.answered(0, Ended, WINDOW_NS), expected);
        }
    }

    #[test]
    fn signals_behind_a_question_wait_for_the_next() {
        let mut relay = Relay::default();
        relay.received(SIGTERM, 0);
        assert_eq!(relay.poll(WINDOW_NS), RelayStep::Ask);
        relay.received(SIGUSR1, WINDOW_NS);
        assert_eq!(relay.poll(WINDOW_NS + ANSWER_NS), RelayStep::GiveUp);
        assert_eq!(relay.answered(0, WithWrapper, WINDOW_NS), [SIGTERM]);
        assert_eq!(relay.poll(2 * WINDOW_NS), RelayStep::Ask);
        assert_eq!(relay.answered(0, WithWrapper, 2 * WINDOW_NS), [SIGUSR1]);
    }

    #[test]
    fn old_signals_to_the_guardian_are_no_evidence() {
        let mut relay = Relay::default();
        relay.guardian_got(SIGTERM, true, 0);
        relay.received(SIGTERM, GUARDIAN_NS);
        assert_eq!(relay.poll(GUARDIAN_NS + WINDOW_NS), RelayStep::Ask);
        assert_eq!(relay.answered(0, WithWrapper, GUARDIAN_NS + WINDOW_NS), [SIGTERM]);
    }
}
