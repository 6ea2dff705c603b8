//! Tests of the program as users run it: real processes, exit codes, texts, files.

mod access;
mod advise;
mod backups;
mod bad_input;
mod cluster;
mod dist;
mod documents;
mod electing;
mod fencing;
mod forming;
mod gate;
mod grace;
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
mod waiting;
