//! What scenarios do with locks: acquires, and the holds that they lead to.

use std::rc::Rc;

use super::history::Moment;
use super::log::{DueAnswerKind, Released, parsed};
use super::process::DriverProcess;
use super::protocol::{CommandError, DriverCommand, ErrorKind, Granted, LockMode, Was};
use super::{Outcome, Promise, ScenarioError, broken};

/// What to acquire.
#[derive(Clone)]
pub(super) struct Want {
    pub(super) names: Vec<String>,
    pub(super) mode: LockMode,
    pub(super) permits: Option<u32>,
    pub(super) subtree: bool,
    pub(super) wait_ms: Option<u64>,
    pub(super) is_election: bool,
    /// What an overlap with a later hold breaks.
    pub(super) promise: Promise,
}

impl Want {
    /// A lock alone, without end of waiting.
    pub(super) fn lock(name: String, promise: Promise) -> Self {
        Self {
            names: vec![name],
            mode: LockMode::Exclusive,
            permits: None,
            subtree: false,
            wait_ms: None,
            is_election: false,
            promise,
        }
    }

    /// Its first name.
    pub(super) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// The same of another lock.
    pub(super) fn named(self, name: String) -> Self {
        Self { names: vec![name], ..self }
    }

    pub(super) fn shared(self) -> Self {
        Self { mode: LockMode::Shared, ..self }
    }

    pub(super) fn permits(self, permits: u32) -> Self {
        Self { mode: LockMode::Permit, permits: Some(permits), ..self }
    }

    pub(super) fn also(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    pub(super) fn subtree(self) -> Self {
        Self { subtree: true, ..self }
    }

    pub(super) fn election(self) -> Self {
        Self { is_election: true, ..self }
    }

    pub(super) fn wait(self, wait_ms: u64) -> Self {
        Self { wait_ms: Some(wait_ms), ..self }
    }
}

/// An acquire that was sent.
pub(super) struct Asked {
    pub(super) driver: Rc<DriverProcess>,
    pub(super) id: u64,
    pub(super) hold: String,
    /// The command, for texts.
    pub(super) text: String,
}

impl Asked {
    /// Its answer.
    pub(super) async fn answer(self) -> Outcome<Result<GrantedHold, CommandError>> {
        let Self { driver, id, hold, text } = self;
        Ok(match driver.answer(id, &text).await? {
            Ok(granted) => {
                let granted: Granted = parsed(&granted).map_err(ScenarioError::Broken)?;
                Ok(GrantedHold { driver, hold, token: granted.token, valid_ms: granted.valid_ms })
            }
            Err(error) => Err(error),
        })
    }

    /// The hold; any error is a violation.
    pub(super) async fn granted(self) -> Outcome<GrantedHold> {
        let (name, text) = (self.driver.name.clone(), self.text.clone());
        match self.answer().await? {
            Ok(held) => Ok(held),
            Err(CommandError { kind, text: why }) => {
                broken(format!("{name} answers {kind:?} ({why}) to {text}, which is to be granted"))
            }
        }
    }

    /// The error, which must be one of `kinds`.
    pub(super) async fn refused(self, kinds: &[ErrorKind]) -> Outcome<ErrorKind> {
        let (name, text) = (self.driver.name.clone(), self.text.clone());
        match self.answer().await? {
            Err(error) if kinds.contains(&error.kind) => Ok(error.kind),
            Err(CommandError { kind, text: why }) => {
                broken(format!("{name} answers {kind:?} ({why}) to {text}, and not one of {kinds:?}"))
            }
            Ok(_) => broken(format!("{name} answers that it holds to {text}, and not one of {kinds:?}")),
        }
    }

    /// Whether it has no answer yet.
    pub(super) fn waits(&self) -> bool {
        self.driver.log.state().pending.contains_key(&self.id)
    }

    /// Abandons it.
    pub(super) async fn cancel(&self) -> Outcome {
        let answer = self.driver.call(DriverCommand::Cancel { acquire: self.id }).await?;
        answer.map(drop).or_else(|error| broken(format!("a cancel is refused: {error:?}")))
    }
}

/// A hold that was granted.
pub(super) struct GrantedHold {
    pub(super) driver: Rc<DriverProcess>,
    hold: String,
    pub(super) token: Option<u64>,
    pub(super) valid_ms: Option<u64>,
}

impl GrantedHold {
    /// Sends a `check`, and does not wait for its answer.
    pub(super) fn begin_check(&self) -> Outcome<u64> {
        let kind = DueAnswerKind::Check { hold: self.hold.clone() };
        self.driver.send(DriverCommand::Check { hold: self.hold.clone() }, kind)
    }

    /// Whether the client says that it may be used.
    pub(super) async fn end_check(&self, id: u64) -> Outcome<bool> {
        match self.driver.answer(id, "check").await? {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::Lost => Ok(false),
            Err(error) => broken(format!("{} answers {error:?} to `check`", self.driver.name)),
        }
    }

    /// As [`Self::end_check`], for a check that is sent now.
    pub(super) async fn check(&self) -> Outcome<bool> {
        let id = self.begin_check()?;
        self.end_check(id).await
    }

    /// It must be held.
    pub(super) async fn is_held(&self, when: &str) -> Outcome {
        match self.check().await? {
            true => Ok(()),
            false => broken(format!("{} has lost its hold: {when}", self.driver.name)),
        }
    }

    /// It must be lost, and its loss must be reported; returns when it was.
    pub(super) async fn is_lost(&self, when: &str) -> Outcome<Moment> {
        let told =
            self.driver.log.until(self.driver.record.patience, |log| log.lost.get(&self.hold).copied()).await;
        let Some(told) = told else {
            return broken(format!("{} has not reported its loss: {when}", self.driver.name));
        };
        match self.check().await? {
            false => Ok(told),
            true => broken(format!("{} says `lost`, then that it holds: {when}", self.driver.name)),
        }
    }

    /// Sends its release; [`Self::end_release`] waits for the answer.
    pub(super) fn begin_release(&self) -> Outcome<u64> {
        let grant = self.driver.log.state().grants.get(&self.hold).copied();
        if let Some(grant) = grant {
            self.driver.record.history().released(grant, self.driver.record.now());
        }
        let kind = DueAnswerKind::Release { hold: self.hold.clone() };
        self.driver.send(DriverCommand::Release { hold: self.hold.clone() }, kind)
    }

    /// The answer to the release, or its error.
    pub(super) async fn end_release(&self, id: u64) -> Outcome<Result<Was, ErrorKind>> {
        match self.driver.answer(id, "release").await? {
            Ok(ok) => Ok(Ok(parsed::<Released>(&ok).map_err(ScenarioError::Broken)?.was)),
            Err(error) => Ok(Err(error.kind)),
        }
    }

    /// Releases it; it must have been held.
    pub(super) async fn release(&self) -> Outcome {
        let id = self.begin_release()?;
        match self.end_release(id).await? {
            Ok(Was::Held) => Ok(()),
            other => broken(format!("{} answers {other:?} to the release of a hold", self.driver.name)),
        }
    }

    /// Releases it; its loss must be answered.
    pub(super) async fn release_lost(&self) -> Outcome {
        let id = self.begin_release()?;
        match self.end_release(id).await? {
            Ok(Was::Lost) => Ok(()),
            other => broken(format!("{} answers {other:?} to the release of a lost hold", self.driver.name)),
        }
    }

    /// Another release of it, which must do nothing.
    pub(super) async fn release_again(&self) -> Outcome {
        let id =
            self.driver.send(DriverCommand::Release { hold: self.hold.clone() }, DueAnswerKind::Other)?;
        match self.end_release(id).await? {
            Ok(Was::Released) | Err(ErrorKind::Refused) => Ok(()),
            other => broken(format!("{} answers {other:?} to a second release", self.driver.name)),
        }
    }
}
