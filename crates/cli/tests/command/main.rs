//! The program as users run it: real processes, exit codes, texts, files; its own service, no other server.

mod advise;
mod bad_input;
mod documents;
mod ending;
mod explain;
mod fencing;
mod jobs;
mod limits;
#[allow(dead_code, reason = "shared with the tests of `system`")]
mod node;
mod once;
mod operators;
mod pages;
mod running;
mod starting;
#[allow(dead_code, reason = "shared with the tests of `system`")]
mod support;
mod verify;
mod waiting;
