//! The witness: a process in the wrapper's process group, whose pending signals are those sent to the group.
//!
//! The kernel does not show a process whether a signal was sent to it alone or to its whole group. The
//! wrapper needs this: a signal to the group has reached the command as well, and must not be relayed. The
//! witness has the wrapper's group and session, blocks all signals and does nothing, so its pending signals
//! are the evidence. It ends with the wrapper.
//!
//! Names and arguments of witness and guardian do not contain `lockkeeper`, so that `pkill -f lockkeeper`
//! does not look like a signal to the group or to all processes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Child, ExitCode, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::unix::AsyncFd;

use super::channel::{Channel, Incoming, next_message};
use super::inherited::bit;
use super::own::{close_on_exec, own_program};
use super::protocol::FORWARDED;

/// The first argument that makes this binary a witness. Internal: users never type it.
pub(crate) const WITNESS_ARGUMENT: &str = "__witness";

/// The wrapper's handle of the witness process. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Witness {
    channel: AsyncFd<Channel>,
    process: Child,
}

impl Witness {
    /// Starts the process. It has blocked all signals once this returns.
    pub(crate) fn start() -> io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let mut command = own_program("lk-witness", WITNESS_ARGUMENT, vec![theirs.as_raw_fd()]);
        command.arg(theirs.as_raw_fd().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        // SAFETY: a channel owns one open socket for all its life.
        let channel = unsafe { AsyncFd::register(channel) }.map_err(io::Error::from)?;
        Ok(Self { channel, process })
    }

    /// Asks for the signals since the last question; the answer comes by [`Witness::answer`].
    pub(crate) fn ask(&mut self) {
        self.channel.get_mut().send(b"?".to_vec(), false);
    }

    /// The next answer, as a set of signals; `None` if the process is gone. Cancel-safe.
    pub(crate) async fn answer(&mut self) -> Option<u64> {
        let answer = next_message(&mut self.channel).await?;
        Some(u64::from_le_bytes(answer.try_into().ok()?))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // A witness that was stopped together with its group would not notice the end of this channel.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The witness's `main`; `socket` is its argument.
pub(crate) fn main(socket: Option<RawFd>) -> ExitCode {
    let Some(socket) = socket.filter(|fd| *fd > 2 && close_on_exec(*fd).is_ok()) else {
        return ExitCode::from(64);
    };
    // SAFETY: the wrapper passed this descriptor to be owned here, and it was just checked to be open.
    let mut channel = Channel::new(unsafe { OwnedFd::from_raw_fd(socket) });
    let _ = nix::sys::prctl::set_name(c"lk-witness");
    let listened: SigSet = FORWARDED.into_iter().collect();
    let Ok(signals) = SignalFd::with_flags(&listened, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK) else {
        return ExitCode::FAILURE;
    };
    loop {
        let _ = poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        match channel.receive() {
            Incoming::Message(_) => {
                let mut got = 0;
                while let Ok(Some(signal)) = signals.read_signal() {
                    got |= bit(signal.ssi_signo.cast_signed());
                }
                channel.send(u64::to_le_bytes(got).to_vec(), false);
            }
            Incoming::Empty => {}
            Incoming::Closed => return ExitCode::SUCCESS,
        }
    }
}
