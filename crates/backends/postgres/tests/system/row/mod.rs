//! Properties specific to lease rows in PostgreSQL, on a real server: one scenario per test. The promises
//! common to all backends are tested in the contract suite.

mod clocks;
mod connections;
mod faults;
mod growth;
mod holds;
mod pooler;
mod privileges;
mod support;
mod tokens;
mod waiters;
