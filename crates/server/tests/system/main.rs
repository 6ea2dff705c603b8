//! Calls over HTTP and through followers, traces, and a node under all the load that the machine can make:
//! attacks and crowds. A plain `cargo test` leaves it out: `cargo xtask test -p lockkeeper-server`.

mod attacks;
mod certified;
mod crowds;
#[path = "../serve/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of `serve`")]
mod harness;
mod http;
mod session_calls;
mod traces;
