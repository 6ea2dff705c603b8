//! The SQLite fence: its SQL, and its decision over the rows that Python's connection has read.

use lockkeeper_fence::resource::checked;
use lockkeeper_fence::sqlite_marks::{self as fence, Change};
use pyo3::prelude::*;

use super::Asked;
use crate::errors::{exception, not_fenced};
use crate::options::token;

/// The table, the statement before the check, and the one that reads the marks.
#[pyfunction]
pub(crate) fn sqlite_fence_sql() -> (&'static str, &'static str, &'static str) {
    (fence::SCHEMA_SQL, fence::LOCK, fence::READ)
}

/// A statement, and its numbers after the resource.
type Statement = (&'static str, Vec<i64>);

fn statement(change: Change) -> Statement {
    match change {
        Change::Put { slot, any, writer } => (fence::PUT, vec![slot, any, writer]),
        Change::Delete { slot } => (fence::DELETE, vec![slot]),
    }
}

/// Decides on a token by the rows of its resource. Returns the statements that write the new marks.
#[pyfunction]
pub(crate) fn sqlite_fence_pass(
    resource: &str,
    asked: Asked<'_>,
    rows: Vec<(i64, i64, i64)>,
) -> PyResult<Vec<Statement>> {
    checked(resource).map_err(exception)?;
    let (action, section) = asked.parse()?;
    let before = fence::marks(rows).map_err(|damaged| not_fenced(&damaged.text(resource)))?;
    let mut after = before.clone();
    let _ = after.check(action, section).map_err(exception)?;
    Ok(fence::changes(&before, &after).into_iter().map(statement).collect())
}

/// The rows after a reset.
#[pyfunction]
pub(crate) fn sqlite_fence_reset(to: u64) -> PyResult<Vec<Statement>> {
    Ok(vec![(fence::DELETE_ALL, vec![]), statement(fence::base(token(to)?))])
}
