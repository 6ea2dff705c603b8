//! A whole node in this process, on a free loopback port, called by the raw generated client.

mod calls;
#[allow(dead_code, reason = "shared with the tests of `system`")]
mod harness;
mod life;
mod protocol;
mod rates;
mod sessions;
