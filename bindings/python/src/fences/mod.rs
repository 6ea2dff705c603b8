//! Fences for Python programs: the rules, the requests and the errors are those of the Rust fences. Python's
//! own clients send them.

pub(crate) mod dynamodb;
pub(crate) mod http;
pub(crate) mod redis;
pub(crate) mod sqlite;

use lockkeeper_fence::{Action, ModeKind, Section, Slot, Token, postgres};
use pyo3::prelude::*;

use crate::errors;

/// The schema of the PostgreSQL fence.
#[pyfunction]
pub(crate) fn postgres_fence_sql() -> &'static str {
    postgres::SCHEMA_SQL
}

/// The rights that an application's role needs for it.
#[pyfunction]
pub(crate) fn postgres_fence_grants(role: &str) -> String {
    postgres::grants_sql(role)
}

/// What a section asks for: `enter`, `write` or `check_once`; its token, its mode, and its slot.
#[derive(FromPyObject)]
pub(crate) struct Asked(String, u64, String, Option<Slot>);

impl Asked {
    /// # Errors
    /// `InvalidOption`, `NotFenced`.
    fn parse(&self) -> PyResult<(Action, Section)> {
        let Self(action, token, mode, slot) = self;
        let actions = [Action::Enter, Action::Write, Action::CheckOnce];
        let action = actions.into_iter().find(|known| known.to_string() == *action);
        let action =
            action.ok_or_else(|| errors::invalid_option("action", &self.0, "it is the module's own"))?;
        let modes = [ModeKind::Exclusive, ModeKind::Shared, ModeKind::Permit];
        let kind = modes.into_iter().find(|known| known.to_string() == *mode).ok_or_else(|| {
            errors::invalid_option(
                "mode",
                mode,
                "give `exclusive`, `shared` or `permit`, as the lock is held",
            )
        })?;
        let token = self::token(*token)?;
        let section = Section::new(kind, *slot, token).map_err(|refused| errors::refused(&refused))?;
        Ok((action, section))
    }
}

pub(crate) fn token(number: u64) -> PyResult<Token> {
    Token::new(number).ok_or_else(|| {
        errors::invalid_option(
            "token",
            &number.to_string(),
            "give the token of the guard: 1 to 9007199254740991",
        )
    })
}
