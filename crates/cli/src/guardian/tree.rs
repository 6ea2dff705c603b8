//! Finds and ends descendant processes.
//!
//! The caller is a child subreaper, so every descendant stays below the caller in `/proc`, even if it forks
//! twice, calls `setsid`, changes its process group or loses its parent. Processes that a daemon starts on
//! request (`systemd-run`, `docker run`, `at`) are not descendants and can't be found.
//!
//! `deadline` decides when to signal. Only [`end_all`] waits.
//!
//! Only `waitpid` proves that no descendant is left ([`Reaped::NobodyLeft`]); a scan of `/proc` proves
//! nothing, since processes fork while it runs. So scans that send SIGKILL repeat until `waitpid` reports
//! that no child is left. SIGTERM is sent once, to the processes that a few scans have found: a process that
//! appears later may be the clean-up that the command starts on SIGTERM.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;

use super::boot_now;

/// A process at the time of a scan. Its start time distinguishes it from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: i32,
    parent: i32,
    state: u8,
    /// Clock ticks since boot.
    started: u64,
}

impl ProcessInfo {
    /// Whether a signal stopped the process (not a tracer).
    pub(crate) fn is_stopped(&self) -> bool {
        self.state == b'T'
    }

    /// Whether the process is dead but not yet reaped by its parent.
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Sends `signal` to this process and to no other one: the id may have been reused, and root could then
    /// signal an unrelated process. Errors are ignored: the process is dead, or may not be signalled (it
    /// changed its user).
    fn signal(&self, signal: i32) {
        let handle = pidfd_open(self.pid);
        // If the start time is the same after the pidfd was opened, the pidfd refers to this process.
        let is_same = read_process(self.pid).is_some_and(|now| now.started == self.started);
        if !is_same {
            return;
        }
        match handle {
            // SAFETY: a system call on a descriptor that is owned here; the null siginfo is allowed.
            Some(handle) => unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal, 0usize, 0u32);
            },
            // pidfd_open is missing (Linux < 5.3) or forbidden by a sandbox.
            // SAFETY: plain system call.
            None => unsafe {
                libc::kill(self.pid, signal);
            },
        }
    }
}

fn pidfd_open(pid: i32) -> Option<OwnedFd> {
    // SAFETY: plain system call; a result ≥ 0 is a new descriptor without another owner.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0u32);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Reads a process from `/proc` by its id; `None` if there is none.
pub(crate) fn read_process(pid: i32) -> Option<ProcessInfo> {
    parse_stat(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `pid (name) state ppid …`; the name may contain spaces and parentheses.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<ProcessInfo> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // `starttime` is field 22 of the line; state is field 3 and the parent field 4.
    let started = fields.nth(17)?.parse().ok()?;
    Some(ProcessInfo { pid, parent, state, started })
}

/// Scans `/proc` once and calls `found` for each descendant of this process as soon as it is recognised;
/// returns their number. `/proc` lists ids in ascending order, and children mostly have higher ids than their
/// parents, so one scan finds even most processes that were forked while it ran.
fn walk(mut found: impl FnMut(&ProcessInfo)) -> usize {
    let own = std::process::id().cast_signed();
    let mut family = HashSet::from([own]);
    let mut others = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(process) = read_process(pid) else { continue };
        if family.contains(&process.parent) {
            family.insert(pid);
            found(&process);
        } else {
            others.push(process);
        }
    }
    // Ids wrap around, so a child may have a lower id than its parent and come first in the scan.
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

/// Returns all descendants. One scan can miss a process whose parent dies during the scan, so the results of
/// several scans are merged until a scan finds no new process.
pub(crate) fn descendants() -> Vec<ProcessInfo> {
    /// Bounds the loop if the descendants never stop forking.
    const WALKS_MAX: usize = 8;
    let mut seen = HashSet::new();
    let mut all: Vec<ProcessInfo> = Vec::new();
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

/// Sends SIGTERM to all descendants, and SIGCONT to those that are stopped, so that they can react.
pub(crate) fn terminate_all() {
    for process in descendants() {
        process.signal(libc::SIGTERM);
        if process.is_stopped() {
            process.signal(libc::SIGCONT);
        }
    }
}

/// Sends SIGKILL to all descendants that can be found now. The caller must repeat this until none is left.
pub(crate) fn kill_all() {
    /// The largest number of scans without a pause, to catch up with processes that keep forking.
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

/// The result of one non-blocking `waitpid`.
pub(crate) enum Reaped {
    /// A child ended or changed: its id and wait status.
    Changed { pid: i32, status: i32 },
    /// This process has children, and none has changed state.
    Nothing,
    /// No child is left, and therefore no descendant.
    NobodyLeft,
}

/// Reads one child's change of state without waiting. Calls libc directly, since nix's `waitpid` can't
/// represent a death by a real-time signal.
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
/// (`CLOCK_BOOTTIME`, ns). Used by a wrapper whose guardian died, at a moment at which the system may refuse
/// a thread: so it needs none.
pub(crate) async fn end_all(kill_at: u64) {
    /// The polling interval: short compared with any grace, and cheap.
    const POLL_EVERY: Duration = Duration::from_millis(5);
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
        tokio::time::sleep(POLL_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_spaces_and_parentheses_is_parsed() {
        let tail = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 4242 19";
        for name in ["sh", "a b", "x) R 1 (y", ")))"] {
            let line = format!("77 ({name}) T 12 {tail}");
            let process = parse_stat(77, line.as_bytes()).unwrap();
            assert_eq!((process.parent, process.state, process.started), (12, b'T', 4242), "{name}");
        }
    }

    #[test]
    fn truncated_stat_line_is_refused() {
        for line in ["", "77 (sh", "77 (sh) S", "77 (sh) S 1 2 3", "77 (sh) S one 2"] {
            assert_eq!(parse_stat(77, line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn this_process_is_found_with_its_parent() {
        let own = read_process(std::process::id().cast_signed()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw());
        assert!(!own.is_stopped() && !own.is_zombie());
    }
}
