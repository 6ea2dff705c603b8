//! The contract suite, for both kinds of locks.

mod row;
mod session;
