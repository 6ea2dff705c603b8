//! Fences for Python programs: the rules, the requests and the errors are those of the Rust fences. Python's
//! own clients send them.

pub(crate) mod dynamodb;
pub(crate) mod http;
pub(crate) mod redis;
pub(crate) mod sqlite;

use lockkeeper_bindings::{CallError, fences};
use lockkeeper_fence::{Action, Section, Slot, postgres};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::options::token;

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
pub(crate) struct Asked<'py>(String, Bound<'py, PyAny>, String, Option<Slot>);

/// The number of a section's token.
///
/// # Errors
/// `InvalidOption`: it is none, such as a guard.
#[pyfunction]
pub(crate) fn fence_token(token: &Bound<'_, PyAny>) -> PyResult<u64> {
    token.extract().map_err(|_| {
        let (option, value) = ("token", token.repr().map_or_else(|_| String::new(), |text| text.to_string()));
        exception(CallError::Option {
            option,
            value,
            allowed: "give the number: `guard.token` of a fenced lock",
        })
    })
}

impl Asked<'_> {
    /// # Errors
    /// `InvalidOption`, `NotFenced`.
    fn parse(&self) -> PyResult<(Action, Section)> {
        let Self(action, token, mode, slot) = self;
        let action = fences::action(action).map_err(exception)?;
        let section = fences::section(mode, *slot, self::token(fence_token(token)?)?).map_err(exception)?;
        Ok((action, section))
    }
}
