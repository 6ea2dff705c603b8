//! The contract suite.

mod row;
mod session;
