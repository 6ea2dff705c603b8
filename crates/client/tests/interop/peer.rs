//! A process of another project's client, driven by one line a command.
//!
//! Responsible for the process and its lines: what can go wrong with it ends the test and says what was asked last. May
//! not know what the lines mean.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Only there so that a failure ends: an answer is waited for, whenever it comes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Another project's client. Killed when dropped, as by a crash.
pub(crate) trait Peer {
    /// Takes a lock if it is free. If it does: how we are to show its holder.
    fn try_acquire(&mut self, name: &str, ttl: Duration) -> Option<String>;

    /// Begins to wait for a lock that is not free. Returns when it has found that out.
    fn starts_waiting(&mut self, name: &str, ttl: Duration);

    /// Returns when it holds what it has waited for.
    fn gets_it(&mut self);

    /// Whether it still holds the lock, asked of the server in its own way.
    fn still_holds(&mut self, name: &str, ttl: Duration) -> bool;

    /// Gives the lock back. `false`: it says that the lock was not its own any more.
    fn release(&mut self, name: &str) -> bool;

    /// Ends it by `kill -9`.
    fn crash(self);

    /// How an error of ours is to name such a holder, so that people see that it is none of ours.
    fn in_errors(holder: &str) -> String {
        holder.to_owned()
    }

    /// As [`Peer::try_acquire`] of a lock that is free.
    fn takes(&mut self, name: &str, ttl: Duration) -> String {
        self.try_acquire(name, ttl).unwrap_or_else(|| panic!("{name} is free, and the peer does not get it"))
    }

    /// Whether the lock is free for it. Leaves it free then.
    fn finds_free(&mut self, name: &str, ttl: Duration) -> bool {
        self.try_acquire(name, ttl).is_some() && self.release(name)
    }
}

/// The process: its program reads commands from stdin, and writes answers to stdout.
pub(crate) struct Process {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    /// The last command, for the message of a failure.
    asked: String,
}

impl Process {
    /// Starts it. `package` is what brings its program.
    pub(crate) fn start(command: &mut Command, package: &str) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(|error| {
                let program = command.get_program().display();
                panic!("cannot start {program}: {error}; `cargo xtask test` installs {package}")
            });
        let commands = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (heard, answers) = mpsc::channel();
        // Ends with the process' output, or when nobody listens any more.
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if heard.send(line).is_err() {
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

    /// The next answer.
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

    /// A command and its answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .expect("our own child can be killed and waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, and a panic may be under way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
