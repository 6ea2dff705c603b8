//! A whole node in this process, on a free loopback port, called by the raw generated client.

mod attacks;
mod calls;
mod certified;
mod crowds;
mod harness;
mod http;
mod life;
mod protocol;
mod rates;
mod session_calls;
mod sessions;
mod traces;
