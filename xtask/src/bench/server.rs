//! What a server's process costs: read from `/proc`, so that it is asked of none of them.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

use crate::Outcome;

/// A server's process.
#[derive(Clone, Copy)]
pub(crate) struct Server {
    pub(crate) pid: u32,
}

impl Server {
    /// Seconds of CPU that it has used so far, in user and system mode together.
    pub(crate) fn cpu_seconds(self) -> Outcome<f64> {
        let stat = self.read("stat")?;
        let ticks =
            ticks(&stat).ok_or_else(|| format!("/proc/{}/stat has no CPU time: {stat:?}", self.pid))?;
        let per_second =
            sysconf(SysconfVar::CLK_TCK).ok().flatten().ok_or("the system does not tell its tick")?;
        Ok(ticks as f64 / per_second as f64)
    }

    /// Bytes of it that are in memory.
    pub(crate) fn resident_bytes(self) -> Outcome<u64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Ok(kib.ok_or_else(|| format!("/proc/{}/status has no VmRSS", self.pid))? * 1024)
    }

    fn read(self, file: &str) -> Outcome<String> {
        let path = format!("/proc/{}/{file}", self.pid);
        fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}; did the server end?"))
    }
}

/// The fields `utime` and `stime`, together. The second field, a program's name, may hold blanks and brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_name_with_blanks_and_brackets() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 12345";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("42 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_memory_and_cpu_time() {
        let this = Server { pid: std::process::id() };
        assert!(this.resident_bytes().unwrap() > 0);
        assert!(this.cpu_seconds().unwrap() >= 0.0);
        assert!(Server { pid: u32::MAX }.cpu_seconds().is_err());
    }
}
