//! The program as its users meet it: real processes, exit codes, texts, files.

mod bad_input;
mod documents;
mod fencing;
mod operators;
mod running;
mod support;
mod waiting;
