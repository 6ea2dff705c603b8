//! The contract suite.

mod row;
mod session;

pub(crate) use row::SHEDLOCK;
pub(crate) use session::SESSION_SCHEMA_SQL;
