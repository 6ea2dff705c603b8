//! Finding and ending descendants.
//!
//! The caller is a child subreaper, so whatever a descendant does (fork twice, `setsid`, change its process
//! group, lose its parent) it stays below the caller in `/proc`. What is not below: processes that a daemon
//! starts on request (`systemd-run`, `docker run`, `at`); nobody can find those.
//!
//! May not decide when: that is `deadline`. May not wait, except [`end_all`].
//!
//! Only `waitpid` proves that nobody is left ([`Reaped::NobodyLeft`]); a scan proves nothing, since processes fork
//! while it runs. So SIGKILL is sent in scans that repeat until `waitpid` says so. SIGTERM is sent once, to those
//! that a stable picture showed: a later newcomer may be the clean-up that a job starts on SIGTERM.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;

use super::boot_now;

/// A process at one look. Its start time tells it from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    state: u8,
    /// Clock ticks since boot.
    started: u64,
}

impl Process {
    /// Stopped by a signal (not by a tracer).
    pub(crate) fn is_stopped(&self) -> bool {
        self.state == b'T'
    }

    /// Dead, but not yet waited for by its parent.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Sends `signal` to this process and to no other: its id may meanwhile belong to a stranger, which as root we
    /// could kill. Errors are no news: it is dead, or not ours to signal (it changed its user).
    fn signal(&self, signal: i32) {
        let handle = pidfd_open(self.pid);
        // The same process had the id before and after the handle was opened, so the handle is its own.
        let is_same = look(self.pid).is_some_and(|now| now.started == self.started);
        if !is_same {
            return;
        }
        match handle {
            // SAFETY: a system call on a descriptor that we own; the null siginfo is allowed.
            Some(handle) => unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal, 0usize, 0u32);
            },
            // No such call (Linux < 5.3, or a sandbox forbids it).
            // SAFETY: plain system call.
            None => unsafe {
                libc::kill(self.pid, signal);
            },
        }
    }
}

fn pidfd_open(pid: i32) -> Option<OwnedFd> {
    // SAFETY: plain system call; a result ≥ 0 is a new descriptor that nobody else owns.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0u32);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// One process by its id, or `None` if there is none.
pub(crate) fn look(pid: i32) -> Option<Process> {
    parse_stat(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (name) state ppid …`, where the name may contain anything, spaces and parentheses too.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // `starttime` is field 22 of the line; state is field 3 and the parent field 4.
    let started = fields.nth(17)?.parse().ok()?;
    Some(Process { pid, parent, state, started })
}

/// Walks `/proc` once and calls `found` for each descendant of this process as soon as it is known to be one:
/// `/proc` is listed by rising id and children mostly follow their parents, so a walk meets even processes that
/// were forked while it runs. Returns how many it found.
fn walk(mut found: impl FnMut(&Process)) -> usize {
    let own = std::process::id().cast_signed();
    let mut family = HashSet::from([own]);
    let mut others = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(process) = look(pid) else { continue };
        if family.contains(&process.parent) {
            family.insert(pid);
            found(&process);
        } else {
            others.push(process);
        }
    }
    // Ids wrap around, so a child may have a lower id than its parent.
    loop {
        let before = family.len();
        others.retain(|process| {
            let is_ours = process.pid != own && family.contains(&process.parent);
            if is_ours {
                family.insert(process.pid);
                found(process);
            }
            !is_ours
        });
        if family.len() == before {
            return before - 1;
        }
    }
}

/// All descendants. One walk can miss a process whose parent dies during it, so walks are joined until one of them
/// finds nobody new.
pub(crate) fn descendants() -> Vec<Process> {
    /// Against a family that never stops forking.
    const WALKS_MAX: usize = 8;
    let mut seen = HashSet::new();
    let mut all: Vec<Process> = Vec::new();
    for _ in 0..WALKS_MAX {
        let before = all.len();
        walk(|process| {
            if seen.insert((process.pid, process.started)) {
                all.push(*process);
            }
        });
        if all.len() == before {
            break;
        }
    }
    all
}

/// SIGTERM to all descendants, and SIGCONT to those that are stopped so that they can react.
pub(crate) fn terminate_all() {
    for process in descendants() {
        process.signal(libc::SIGTERM);
        if process.is_stopped() {
            process.signal(libc::SIGCONT);
        }
    }
}

/// SIGKILL to all descendants that can be found now. To be repeated until nobody is left.
pub(crate) fn kill_all() {
    /// How often a walk follows the last one at once, to catch up with processes that keep forking.
    const WALKS_MAX: usize = 16;
    let mut killed = HashSet::new();
    for _ in 0..WALKS_MAX {
        let before = killed.len();
        walk(|process| {
            if killed.insert((process.pid, process.started)) {
                process.signal(libc::SIGKILL);
            }
        });
        if killed.len() == before {
            return;
        }
    }
}

/// What one look at the children's states brought.
pub(crate) enum Reaped {
    /// A child ended or changed: its id and wait status.
    Changed { pid: i32, status: i32 },
    /// There are children; none has news.
    Nothing,
    /// No child is left, and so no descendant.
    NobodyLeft,
}

/// Takes one child's change of state without waiting. Not nix's `waitpid`: that one can't tell a death by a
/// real-time signal.
pub(crate) fn reap() -> Reaped {
    let mut status = 0;
    let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED | libc::__WALL;
    loop {
        // SAFETY: `status` is valid memory to write to.
        match unsafe { libc::waitpid(-1, &raw mut status, flags) } {
            0 => return Reaped::Nothing,
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Reaped::NobodyLeft,
            pid => return Reaped::Changed { pid, status },
        }
    }
}

/// Ends all descendants of this process and returns when none is left: SIGTERM now, SIGKILL at `kill_at`
/// (`CLOCK_BOOTTIME`, ns). For a wrapper whose guardian died: blocks, so not on an async thread.
pub(crate) fn end_all(kill_at: u64) {
    /// How long between two looks: short against any grace, and cheap.
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    terminate_all();
    loop {
        match reap() {
            Reaped::Changed { .. } => continue,
            Reaped::NobodyLeft => return,
            Reaped::Nothing => {}
        }
        if boot_now() >= kill_at {
            kill_all();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_move_the_fields() {
        let tail = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 4242 19";
        for name in ["sh", "a b", "x) R 1 (y", ")))"] {
            let line = format!("77 ({name}) T 12 {tail}");
            let process = parse_stat(77, line.as_bytes()).unwrap();
            assert_eq!((process.parent, process.state, process.started), (12, b'T', 4242), "{name}");
        }
    }

    #[test]
    fn a_cut_line_is_no_process() {
        for line in ["", "77 (sh", "77 (sh) S", "77 (sh) S 1 2 3", "77 (sh) S one 2"] {
            assert_eq!(parse_stat(77, line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn this_process_is_found_with_its_parent() {
        let own = look(std::process::id().cast_signed()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw());
        assert!(!own.is_stopped() && !own.is_zombie());
    }
}
