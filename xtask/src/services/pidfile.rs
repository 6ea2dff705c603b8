//! Whose a process is: the pid file, and the check that its pid still means the process that we started.
//!
//! Responsible for never letting us signal a stranger. A pid alone is not enough: after a reboot, or after enough other
//! processes, it names somebody else.

use std::path::Path;
use std::{fs, io};

/// The variable in the environment of each service that names its folder.
pub(crate) const MARK: &str = "LOCKKEEPER_SERVICE_FOLDER";

pub(crate) fn write(file: &Path, pid: u32) -> io::Result<()> {
    fs::write(file, format!("{pid}\n"))
}

/// The pid in `file`; `None` if there is no such file, or no pid in it.
pub(crate) fn read(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Whether process `pid` lives and was started for `folder`.
///
/// By its environment, else by its command line: some programs overwrite the one, some the other, when they set their
/// title. A process that has ended but wasn't waited for has neither.
pub(crate) fn is_ours(pid: u32, folder: &Path) -> bool {
    let folder = folder.as_os_str().as_encoded_bytes();
    let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let marked = [MARK.as_bytes(), b"=", folder].concat();
    let is_marked = read("environ").split(|byte| *byte == 0).any(|variable| variable == marked);
    is_marked || contains(&read("cmdline"), folder)
}

/// Whether process `pid` has ended, all its threads included: also if nobody has waited for it yet. Not the same as not
/// being ours: a process loses its environment first, then its first thread, and its sockets with its last.
pub(crate) fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state comes after the program's name, which may hold anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    threads <= 1 && state.is_none_or(|state| matches!(state, 'Z' | 'X'))
}

/// Whether `folder` occurs in `text` as a whole path or as the beginning of one: not `…/redis-2` for `…/redis`.
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

    /// A process that waits for its end, and is ended with the test.
    struct Sleeper(Child);

    impl Sleeper {
        fn start(change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
            let mut command = Command::new("sh");
            command.args(["-c", "read _"]).stdin(Stdio::piped()).env_remove(MARK);
            let sleeper = Self(change(&mut command).spawn().unwrap());
            // It is there before its arguments are; its environment comes last.
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
    fn a_pid_file_is_read_back_and_a_damaged_one_names_nobody() {
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
    fn a_process_is_ours_by_its_mark_or_by_its_arguments_and_a_stranger_is_not() {
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
    fn a_process_that_has_ended_is_nobodys_even_before_it_was_waited_for() {
        let folder = Path::new("/var/services/redis");
        let mut sleeper = Sleeper::start(|command| command.env(MARK, folder));
        let pid = sleeper.pid();
        sleeper.0.kill().unwrap();
        wait_until(|| has_ended(pid));
        assert!(!is_ours(pid, folder));
        assert!(sleeper.0.wait().is_ok());
    }
}
