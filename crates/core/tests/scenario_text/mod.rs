//! Scenario texts: parses lines into commands, and formats the answers.
//!
//! Defines the language of `tests/scenarios/*.txt` and contains no lock rules: [`Stage`] passes every command
//! to the table and the oracle.

mod parse;
mod words;

use lockkeeper_core::{Command, OpenSession, Reply, SessionId};

use crate::oracle::Checked;
use crate::oracle::pair::Pair;
use parse::{Line, opening};

/// The table and the oracle, and the names of their sessions.
pub(crate) struct Stage {
    pair: Pair,
    /// Session ids with their names. A name whose session was opened again has two entries, and the last one
    /// counts.
    cast: Vec<(SessionId, String)>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self { pair: Pair::new(), cast: Vec::new() }
    }

    /// Runs one line and formats its answer.
    pub(crate) fn play(&mut self, line: &str) -> Result<String, String> {
        match Line::parse(line)? {
            Line::Open { name, open } => self.open(&name, open),
            Line::Of { session, make } => {
                let id = self.session(&session)?;
                self.apply(make(id))
            }
            Line::Plain(command) => self.apply(command),
            Line::CheckToken { name, token } => Ok(match self.pair.check_token(&name, token)? {
                Checked::Current => "current".to_owned(),
                Checked::NotCurrent(live) => words::not_current(&live),
                Checked::NeverIssued => "never issued".to_owned(),
            }),
            Line::Restart => self.pair.restart().map(|()| "same table".to_owned()),
            Line::Show => Ok(words::table(&self.pair.now, &|id| self.called(id))),
        }
    }

    fn apply(&mut self, command: Command) -> Result<String, String> {
        let (reply, effects) = self.pair.apply(&command)?;
        let called = |id| self.called(id);
        let mut parts = vec![words::reply(&reply, &called)];
        parts.extend(effects.iter().map(|effect| words::effect(effect, &called)));
        Ok(parts.join("; "))
    }

    fn open(&mut self, name: &str, open: OpenSession) -> Result<String, String> {
        let (reply, effects) = self.pair.apply(&Command::OpenSession(open))?;
        assert!(effects.is_empty(), "opening a session tells nobody anything");
        if let Reply::Opened { session } = reply
            && !self.cast.contains(&(session, name.to_owned()))
        {
            self.cast.push((session, name.to_owned()));
        }
        Ok(words::reply(&reply, &|id| self.called(id)))
    }

    /// The session with that name, opened at its first use.
    fn session(&mut self, name: &str) -> Result<SessionId, String> {
        let known = |stage: &Self| stage.cast.iter().rev().find(|(_, n)| n == name).map(|(id, _)| *id);
        if known(self).is_none() {
            self.open(name, opening(name))?;
        }
        known(self).ok_or_else(|| format!("session {name} could not be opened"))
    }

    fn called(&self, id: SessionId) -> String {
        self.cast
            .iter()
            .find(|(known, _)| *known == id)
            .map_or_else(|| id.to_string(), |(_, name)| name.clone())
    }
}
