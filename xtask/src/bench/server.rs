//! Resource usage of a system's server processes, read from `/proc`, so that the servers do no work for it.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

use crate::TaskResult;

/// The processes of a system: one, or one for each node.
pub(crate) struct ServerProcesses {
    pub(crate) pids: Vec<u32>,
}

impl ServerProcesses {
    /// CPU time used so far, user and system, in seconds.
    pub(crate) fn cpu_seconds(&self) -> TaskResult<f64> {
        self.pids.iter().map(|pid| cpu_seconds(*pid)).sum()
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> TaskResult<u64> {
        self.pids.iter().map(|pid| resident_bytes(*pid)).sum()
    }
}

fn cpu_seconds(pid: u32) -> TaskResult<f64> {
    let stat = read(pid, "stat")?;
    let ticks = ticks(&stat).ok_or_else(|| format!("/proc/{pid}/stat has no CPU time: {stat:?}"))?;
    let per_second =
        sysconf(SysconfVar::CLK_TCK).ok().flatten().ok_or("the system does not tell its tick")?;
    Ok(ticks as f64 / per_second as f64)
}

fn resident_bytes(pid: u32) -> TaskResult<u64> {
    let status = read(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("/proc/{pid}/status has no VmRSS"))? * 1024)
}

fn read(pid: u32, file: &str) -> TaskResult<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}; did the server end?"))
}

/// The sum of the fields `utime` and `stime` of `/proc/PID/stat`. The second field, the process name, may
/// contain spaces and brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_after_a_name_with_spaces_and_brackets() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 12345";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("42 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_memory_and_cpu_time() {
        let server = |pids: &[u32]| ServerProcesses { pids: pids.to_vec() };
        let this = std::process::id();
        let alone = server(&[this]).resident_bytes().unwrap();
        assert!(alone > 0);
        assert!(server(&[this, this]).resident_bytes().unwrap() > alone * 3 / 2, "two are counted as one");
        assert!(server(&[this]).cpu_seconds().unwrap() >= 0.0);
        assert!(server(&[this, u32::MAX]).cpu_seconds().is_err());
    }
}
