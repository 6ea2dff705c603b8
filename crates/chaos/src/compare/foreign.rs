//! The client of another project, in a process of its own that reads one command a line and writes one
//! answer a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use lockkeeper::Token;
use lockkeeper_history::{EndedEvent, GrantedEvent, HistoryEvent, HistoryWriter, HoldEnd};

use super::rows::{ComparedRow, LockClient};
use super::section::{LOCK, now};
use crate::Result;
use crate::worker::SERVICE;

/// Between two attempts at a lock that is taken, where the client itself does not wait.
const RETRY: Duration = Duration::from_millis(20);

/// A lock of another project's client: its running program, with the pipes to it.
pub(crate) struct ForeignLock {
    row: &'static ComparedRow,
    history: HistoryWriter,
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    hold: u64,
}

impl ForeignLock {
    /// Starts the program.
    pub(crate) fn start(
        row: &'static ComparedRow,
        mut command: Command,
        history: HistoryWriter,
    ) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take().ok_or("a program without a pipe")?;
        let answers = BufReader::new(child.stdout.take().ok_or("a program without a pipe")?);
        let mut lock = Self { row, history, child, commands, answers, hold: 0 };
        if !lock.speaks_sql() && lock.answer()? != "ready" {
            return Err("the program does not say that it is ready".into());
        }
        Ok(lock)
    }

    fn speaks_sql(&self) -> bool {
        matches!(self.row.client, LockClient::Psql | LockClient::Mariadb)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(format!("the client has ended: {}", self.child.wait()?).into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        writeln!(self.commands, "{command}")?;
        self.commands.flush()?;
        self.answer()
    }

    /// Waits for the lock; returns its token, if the client gives one.
    pub(crate) fn acquire(&mut self) -> Result<Option<Token>> {
        let asked = now();
        match self.row.client {
            LockClient::Psql => {
                self.ask(&format!(
                    "select pg_advisory_lock(hashtextextended('{LOCK}', 0))::text || 'held';"
                ))?;
            }
            LockClient::Mariadb => while self.ask(&format!("select get_lock('{LOCK}', 1);"))? != "1" {},
            _ => {
                let ttl = super::rows::TTL_MS;
                let mut answer = self.ask(&format!("acquire {LOCK} {ttl}"))?;
                while !answer.starts_with("held") {
                    if answer == "busy" {
                        thread::sleep(RETRY);
                        answer = self.ask(&format!("acquire {LOCK} {ttl}"))?;
                    } else {
                        answer = self.answer()?;
                    }
                }
            }
        }
        let at = now();
        let token = match self.row.has_token {
            true => Some(self.ask(&format!("token {LOCK}"))?.parse::<u64>()?),
            false => None,
        };
        self.hold = self.history.next_hold();
        let (hold, service, locks) = (self.hold, SERVICE.to_owned(), vec![LOCK.to_owned()]);
        let event = GrantedEvent { hold, service, locks, token, asked, ..GrantedEvent::default() };
        self.history.write(at, HistoryEvent::Granted(event));
        token.map(|token| Token::new(token).ok_or_else(|| "a token is at least 1".into())).transpose()
    }

    /// Releases the lock. The client counts on it until then.
    pub(crate) fn release(&mut self) -> Result {
        let until = now();
        let answer = match self.row.client {
            LockClient::Psql => {
                self.ask(&format!("select pg_advisory_unlock(hashtextextended('{LOCK}', 0));"))
            }
            LockClient::Mariadb => self.ask(&format!("select release_lock('{LOCK}');")),
            _ => self.ask(&format!("release {LOCK}")),
        };
        let is_released = answer.as_ref().is_ok_and(|it| ["t", "1", "released"].contains(&it.as_str()));
        let how = if is_released { HoldEnd::Released } else { HoldEnd::Lost };
        self.history.write(now(), HistoryEvent::Ended(EndedEvent { hold: self.hold, until, how }));
        answer.map(drop)
    }
}

impl Drop for ForeignLock {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
