//! Third-party programs: their paths, the users they may run as, and the packages to install if they are
//! missing.
//!
//! Responsible for command lines as plain values. Starts no server.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use crate::folder::UNPRIVILEGED;

/// A program and the Debian package that contains it.
#[derive(Clone, Copy)]
pub struct Program {
    /// The name of the executable.
    pub name: &'static str,
    /// The package's name.
    pub package: &'static str,
}

/// The program that runs another program under another user and with a parent-death signal.
pub(crate) const SETPRIV: Program = Program { name: "setpriv", package: "util-linux" };
/// The program that ends a client whose server does not answer.
pub(crate) const TIMEOUT: Program = Program { name: "timeout", package: "coreutils" };

impl Program {
    /// The path of the program.
    ///
    /// # Panics
    /// The program is missing; the text names its package, and the commands that install all packages.
    pub(crate) fn path(self) -> PathBuf {
        let Self { name, package } = self;
        find(name).unwrap_or_else(|| {
            panic!(
                "`{name}` is missing, and this test needs it: `apt-get install {package}`. `cargo xtask test` and \
                 `cargo xtask services up` install all that tests need"
            )
        })
    }
}

/// The path of the program `name`: in Debian's folder of the newest PostgreSQL, in PATH, or in one of the two
/// folders of system programs that an ordinary user's PATH often lacks. An absolute path is returned
/// unchanged if it exists.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    newest_postgres()
        .into_iter()
        .chain(env::split_paths(&path))
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// The folder of the newest PostgreSQL's programs. Debian installs several versions beside each other, none
/// of them in PATH.
fn newest_postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(Result::ok);
    let programs = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let folder = entry.path().join("bin");
        folder.join("postgres").is_file().then_some((version, folder))
    });
    programs.max().map(|(_, folder)| folder)
}

/// The command line of a server that runs in the foreground, with its settings.
pub struct CommandLine {
    command: Command,
    unprivileged: bool,
}

impl CommandLine {
    /// A program by its name or path, without arguments.
    #[must_use]
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(program), unprivileged: false }
    }

    /// Appends arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Appends a path as an argument.
    #[must_use]
    pub fn path(self, path: &Path) -> Self {
        self.args([path])
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Marks a server that refuses to run as root: if this process is root, the server runs as the user
    /// `postgres`.
    #[must_use]
    pub fn unprivileged(mut self) -> Self {
        self.unprivileged = true;
        self
    }

    /// The command for a server that outlives this process. Its pid is the server's.
    #[must_use]
    pub fn detached(&self) -> Command {
        self.through(&[])
    }

    /// The command for a server that gets `signal` when this process ends, in any way.
    ///
    /// The kernel sends the signal at the end of the *thread* that starts the server: see [`crate::process`].
    pub(crate) fn tied(&self, signal: Signal) -> Command {
        self.through(&["--pdeathsig", signal.as_str()])
    }

    /// The command, run by setpriv with these options; setpriv then replaces itself by the program. A change
    /// of user clears the parent-death signal, so one setpriv does both: it changes the user, and sets the
    /// signal last.
    fn through(&self, options: &[&str]) -> Command {
        let mut options = options.to_vec();
        let user = [format!("--reuid={UNPRIVILEGED}"), format!("--regid={UNPRIVILEGED}")];
        if self.unprivileged && geteuid().is_root() {
            options.extend([user[0].as_str(), user[1].as_str(), "--init-groups"]);
        }
        let mut command;
        if options.is_empty() {
            command = Command::new(self.command.get_program());
        } else {
            command = Command::new(SETPRIV.name);
            command.args(options).arg("--").arg(self.command.get_program());
        }
        command.args(self.command.get_args());
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }
}

/// Runs `program` to its end and returns its output without the final newline, or its error output.
///
/// Returns an error after 30 s (by `timeout`): a client of a stopped server would wait forever.
pub(crate) fn ask(program: Program, change: impl FnOnce(&mut Command)) -> Result<String, String> {
    let mut command = Command::new(TIMEOUT.path());
    command.args(["--kill-after=1", "30"]).arg(program.path());
    change(&mut command);
    let output = command.output().map_err(|error| format!("`{}` does not start: {error}", program.name))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\n').to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = [text(&output.stderr), text(&output.stdout)].join("\n");
    let late = if output.status.code() == Some(124) { ", no answer within 30 s" } else { "" };
    Err(format!("`{}` failed ({}{late}): {}", program.name, output.status, said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_path_and_one_that_does_not_exist_is_not() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-anywhere"), None);
    }

    #[test]
    fn an_absolute_path_is_found_only_if_it_exists() {
        assert_eq!(find("/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(find("/usr/share/no-such-file.jar"), None);
    }

    #[test]
    #[should_panic(
        expected = "`no-such-server` is missing, and this test needs it: `apt-get install some-package`. `cargo xtask test`"
    )]
    fn missing_program_is_named_with_its_package_and_install_command() {
        let _ = Program { name: "no-such-server", package: "some-package" }.path();
    }
}
