//! The pid file of a service, and the check that its pid still belongs to the process that we started.
//!
//! Responsible for never signalling a process that is not ours. The pid alone does not identify the process:
//! after a reboot, or after many other processes were started, another process may have it.

use std::path::Path;
use std::{fs, io};

/// The environment variable with the folder of the service, set for each service's process.
pub(crate) const MARK: &str = "LOCKKEEPER_SERVICE_FOLDER";

pub(crate) fn write(file: &Path, pid: u32) -> io::Result<()> {
    fs::write(file, format!("{pid}\n"))
}

/// The pid in `file`; `None` if the file is missing or contains no pid.
pub(crate) fn read(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Whether process `pid` exists and was started for `folder`.
///
/// Checks the process's environment, then its command line, because programs that set their title overwrite
/// one or the other. A zombie has neither.
pub(crate) fn is_ours(pid: u32, folder: &Path) -> bool {
    let folder = folder.as_os_str().as_encoded_bytes();
    let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let marked = [MARK.as_bytes(), b"=", folder].concat();
    let is_marked = read("environ").split(|byte| *byte == 0).any(|variable| variable == marked);
    is_marked || contains(&read("cmdline"), folder)
}

/// Whether process `pid` has ended with all its threads; true for a zombie. This is not the same as
/// `!is_ours`: an ending process loses its environment first, then its first thread, and its sockets only
/// with its last thread.
pub(crate) fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state follows the process name, which may contain any characters.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    threads <= 1 && state.is_none_or(|state| matches!(state, 'Z' | 'X'))
}

/// Whether `text` contains `folder` as a complete path or a path prefix: `…/redis` does not match
/// `…/redis-2`.
fn contains(text: &[u8], folder: &[u8]) -> bool {
    let ends_there =
        |after: Option<&u8>| after.is_none_or(|byte| !byte.is_ascii_alphanumeric() && !b"-_.".contains(byte));
    text.windows(folder.len())
        .enumerate()
        .any(|(start, found)| found == folder && ends_there(text.get(start + folder.len())))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A process that waits for input, and is killed at the end of the test.
    struct Sleeper(Child);

    impl Sleeper {
        fn start(change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
            let mut command = Command::new("sh");
            command.args(["-c", "read _"]).stdin(Stdio::piped()).env_remove(MARK);
            let sleeper = Self(change(&mut command).spawn().unwrap());
            // A process is visible before its arguments are. Its environment is visible last.
            let environment = format!("/proc/{}/environ", sleeper.pid());
            wait_until(|| fs::read(&environment).is_ok_and(|bytes| !bytes.is_empty()));
            sleeper
        }

        fn pid(&self) -> u32 {
            self.0.id()
        }
    }

    fn wait_until(holds: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < until, "waited for 10 s");
            std::thread::yield_now();
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_pid_file_is_read_back_and_a_damaged_one_yields_no_pid() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        assert_eq!(read(&file), None);
        write(&file, 4711).unwrap();
        assert_eq!(read(&file), Some(4711));
        for damaged in ["", "47 11", "-3", "99999999999"] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(read(&file), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_process_is_ours_by_environment_or_arguments() {
        let folder = Path::new("/var/services/redis");
        let marked = Sleeper::start(|command| command.env(MARK, folder));
        assert!(is_ours(marked.pid(), folder) && !has_ended(marked.pid()));
        assert!(!is_ours(marked.pid(), Path::new("/var/services/red")));
        let named = Sleeper::start(|command| command.args(["--dir", "/var/services/redis/data"]));
        assert!(is_ours(named.pid(), folder));
        let stranger = Sleeper::start(|command| command.args(["--dir", "/var/services/redis-2/data"]));
        assert!(!is_ours(stranger.pid(), folder));
    }

    #[test]
    fn a_zombie_is_not_ours() {
        let folder = Path::new("/var/services/redis");
        let mut sleeper = Sleeper::start(|command| command.env(MARK, folder));
        let pid = sleeper.pid();
        sleeper.0.kill().unwrap();
        wait_until(|| has_ended(pid));
        assert!(!is_ours(pid, folder));
        assert!(sleeper.0.wait().is_ok());
    }
}
