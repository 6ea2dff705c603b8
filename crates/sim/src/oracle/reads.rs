//! An answer about a token must have been true at some moment between request and answer. Tokens are granted
//! in one order, and each ends once, so every answer can be compared with the history without regard to other
//! answers.

use std::collections::BTreeMap;

use lockkeeper_core::LockName;
use lockkeeper_replica::{Answer, AskId, Question};
use lockkeeper_wire::v1::TokenStatus;

use super::CheckResult;
use super::table::History;

/// Pending requests: name and token, and the applied index when the request was sent.
#[derive(Default)]
pub(crate) struct Reads {
    open: BTreeMap<AskId, (LockName, u64, u64)>,
}

impl Reads {
    pub(crate) fn asked(&mut self, ask: AskId, question: &Question, history: &History) {
        if let Question::CheckToken { name, token } = question {
            self.open.insert(ask, (name.clone(), *token, history.applied()));
        }
    }

    pub(crate) fn answered(&mut self, ask: AskId, answer: &Answer, history: &History) -> CheckResult {
        let (Some((name, token, before)), Answer::Checked(checked)) = (self.open.remove(&ask), answer) else {
            return Ok(());
        };
        let hold = history.hold(token).filter(|hold| hold.covers(&name));
        let was_granted = hold.is_some_and(|hold| hold.index <= before);
        let had_stopped = hold.is_some_and(|hold| hold.stopped.is_some_and(|stopped| stopped <= before));
        let has_stopped = hold.is_some_and(|hold| hold.stopped.is_some());
        let is_so = match checked.status() {
            TokenStatus::Current => hold.is_some() && !had_stopped,
            TokenStatus::NotCurrent => !was_granted || has_stopped,
            TokenStatus::NeverIssued => !was_granted,
            TokenStatus::Unspecified => false,
        };
        if is_so {
            return Ok(());
        }
        Err((
            "P2",
            format!(
                "token {token} at {name} is called {:?}; it was asked with entry {before} applied, and {hold:?}",
                checked.status()
            ),
        ))
    }
}
