//! Commands whose behaviour is hard to reproduce with a shell.

use std::io::Write;
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, setpgid};

pub(crate) fn main(role: &str) -> ExitCode {
    match role {
        "role:tell-signals" => tell_signals(Signal::SIGTERM),
        "role:tell-all" => tell_signals(Signal::SIGUSR2),
        "role:tell-all-in-own-group" => {
            setpgid(Pid::this(), Pid::this()).unwrap();
            tell_signals(Signal::SIGUSR2)
        }
        "role:stop-in-own-group" => stop_in_own_group(),
        _ => panic!("no such role: {role}"),
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).unwrap();
}

/// Prints "listening", then each signal that arrives; exits at `last`.
fn tell_signals(last: Signal) -> ExitCode {
    let told: SigSet = [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGCONT,
        Signal::SIGWINCH,
    ]
    .into_iter()
    .collect();
    told.thread_block().unwrap();
    let signals = SignalFd::new(&told).unwrap();
    say("listening");
    loop {
        let info = signals.read_signal().unwrap().unwrap();
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).unwrap();
        say(&format!("had {signal}"));
        if signal == last {
            return ExitCode::from(9);
        }
    }
}

/// Stops in a process group of its own, as a shell that suspends itself does.
fn stop_in_own_group() -> ExitCode {
    setpgid(Pid::this(), Pid::this()).unwrap();
    raise(Signal::SIGSTOP).unwrap();
    say("continued");
    ExitCode::from(4)
}
