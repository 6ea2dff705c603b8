//! The program as users run it: real processes, exit codes, texts, files; its own service, no other server.

mod access;
mod advise;
mod bad_input;
mod cluster;
mod documents;
mod electing;
mod explain;
mod fencing;
mod forming;
mod grace;
#[allow(dead_code, reason = "shared with the tests of `system`")]
mod node;
mod once;
mod operators;
mod pages;
mod partitions;
mod running;
mod serving;
mod starting;
mod support;
mod tls;
mod waiting;
