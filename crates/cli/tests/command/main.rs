//! Tests of the program as users run it: real processes, exit codes, texts, files.

mod access;
mod advise;
mod backups;
mod bad_input;
mod browser;
mod cluster;
mod dist;
mod documents;
mod electing;
mod explain;
mod fencing;
mod forming;
mod gate;
mod grace;
mod http;
mod metrics;
mod node;
mod once;
mod operators;
mod others;
mod pages;
mod partitions;
mod pitfalls;
mod running;
mod serving;
mod starting;
mod support;
mod tls;
mod torture;
#[cfg(feature = "otlp")]
mod traces;
mod waiting;
