//! What this process uses of the machine, for metrics.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;

/// The use of the machine; `None`: this system does not say.
#[derive(Debug)]
pub(crate) struct ProcessUsage {
    /// The processor time so far.
    pub(crate) cpu: Duration,
    /// The memory in RAM, in bytes.
    pub(crate) memory: Option<u64>,
    /// The open files.
    pub(crate) files: Option<u64>,
    /// The most open files.
    pub(crate) files_max: Option<u64>,
}

impl ProcessUsage {
    /// The present use. Never waits for a disk: procfs is in memory.
    pub(crate) fn now() -> Self {
        let micros =
            |of: nix::sys::time::TimeVal| Duration::from_micros(of.num_microseconds().unsigned_abs());
        let usage = getrusage(UsageWho::RUSAGE_SELF);
        Self {
            cpu: usage.map_or(Duration::ZERO, |it| micros(it.user_time()) + micros(it.system_time())),
            memory: fs::read_to_string("/proc/self/status").ok().and_then(|status| resident(&status)),
            // Since Linux 6.2, the size of this directory is the number of open files; counting its entries
            // takes long with many connections.
            files: fs::metadata("/proc/self/fd").ok().map(|it| it.len()).filter(|count| *count > 0),
            files_max: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
        }
    }
}

/// The line `VmRSS` of `/proc/self/status`, in bytes.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// When this process was first asked for it, which a node does at its start: the time since 1970.
pub(crate) fn started() -> Duration {
    static STARTED: OnceLock<Duration> = OnceLock::new();
    *STARTED.get_or_init(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_of_this_process_is_known() {
        let usage = ProcessUsage::now();
        assert!(usage.memory.is_some_and(|bytes| bytes > 1 << 20), "{usage:?}");
        assert!(usage.files_max.is_some_and(|most| most >= 16), "{usage:?}");
        assert_eq!(resident("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!((resident("VmRSS:\t many kB"), resident("")), (None, None));
    }
}
