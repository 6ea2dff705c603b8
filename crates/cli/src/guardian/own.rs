//! Starts this program again, as guardian or witness.

use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::SigSet;

/// A call of the running binary, even if an upgrade has replaced its file, that inherits these descriptors
/// and starts with all signals blocked.
pub(crate) fn own_program(name: &str, argument: &str, descriptors: Vec<RawFd>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).arg(argument);
    let prepare = move || {
        for fd in &descriptors {
            set_flags(*fd, FdFlag::empty())?;
        }
        // Until the guardian has moved to its own session, Ctrl-C reaches the guardian too.
        SigSet::all().thread_set_mask()?;
        Ok(())
    };
    // SAFETY: `prepare` makes system calls only and allocates nothing, as code between fork and exec must.
    unsafe { command.pre_exec(prepare) };
    command
}

/// Sets a descriptor close-on-exec. The command and its descendants must inherit neither the lock's
/// descriptors nor a socket: the closing of a socket signals the end of a process.
pub(crate) fn close_on_exec(fd: RawFd) -> Result<(), Errno> {
    set_flags(fd, FdFlag::FD_CLOEXEC)
}

fn set_flags(fd: RawFd, flags: FdFlag) -> Result<(), Errno> {
    // SAFETY: borrowed for this call only; a descriptor that isn't open makes the call fail.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(fd, FcntlArg::F_SETFD(flags)).map(drop)
}
