//! A process that runs another project's client. It reads one command per line, and writes one answer per
//! line.
//!
//! Responsible for the process and its lines; a failure panics with the latest command. Must not depend on
//! the meaning of the lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Only bounds the duration of a failing test: late answers are accepted.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Another project's client. Killed when dropped, as by a crash.
pub(crate) trait Peer {
    /// Acquires a lock if it is free, and returns the text by which Lockkeeper should show the holder.
    fn try_acquire(&mut self, name: &str, ttl: Duration) -> Option<String>;

    /// Starts waiting for a lock that is not free. Returns once the peer waits.
    fn starts_waiting(&mut self, name: &str, ttl: Duration);

    /// Returns once the peer has acquired the lock that it waits for.
    fn gets_it(&mut self);

    /// Whether the peer still holds the lock, by its own query to the server.
    fn still_holds(&mut self, name: &str, ttl: Duration) -> bool;

    /// Releases the lock. `false`: the peer reports that it no longer held the lock.
    fn release(&mut self, name: &str) -> bool;

    /// Ends the peer by `kill -9`.
    fn crash(self);

    /// The text by which Lockkeeper's errors name a holder of this kind; `holder` as returned by
    /// [`Peer::try_acquire`].
    fn in_errors(holder: &str) -> String {
        holder.to_owned()
    }

    /// As [`Peer::try_acquire`], for a lock that is free.
    fn takes(&mut self, name: &str, ttl: Duration) -> String {
        self.try_acquire(name, ttl).unwrap_or_else(|| panic!("{name} is free, and the peer does not get it"))
    }

    /// Whether the peer can acquire the lock. Releases it afterwards.
    fn finds_free(&mut self, name: &str, ttl: Duration) -> bool {
        self.try_acquire(name, ttl).is_some() && self.release(name)
    }
}

/// The process: reads commands from stdin, and writes answers to stdout.
pub(crate) struct Process {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    /// The latest command, for failure messages.
    asked: String,
}

impl Process {
    /// Starts the process. `package` installs its program.
    pub(crate) fn start(command: &mut Command, package: &str) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(|error| {
                let program = command.get_program().display();
                panic!("cannot start {program}: {error}; `cargo xtask test` installs {package}")
            });
        let commands = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (lines, answers) = mpsc::channel();
        // The thread ends with the process's output, or when the receiver is dropped.
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, commands, answers, asked: "nothing".to_owned() }
    }

    /// Sends a command.
    pub(crate) fn tell(&mut self, command: &str) {
        command.clone_into(&mut self.asked);
        let sent = writeln!(self.commands, "{command}").and_then(|()| self.commands.flush());
        sent.unwrap_or_else(|error| panic!("the peer does not read `{command}`: {error}"));
    }

    /// Waits for the next answer.
    pub(crate) fn answer(&mut self) -> String {
        match self.answers.recv_timeout(ANSWERS_WITHIN) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("the peer was asked `{}` and says nothing for {ANSWERS_WITHIN:?}", self.asked)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("the peer was asked `{}` and ended: {status:?}; stderr says why", self.asked)
            }
        }
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Ends the process by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .expect("our own child can be killed and waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already, and a panic may be in progress.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
