//! What fences of Python programs have from the Rust ones.

use lockkeeper_fence::postgres;
use pyo3::prelude::*;

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
