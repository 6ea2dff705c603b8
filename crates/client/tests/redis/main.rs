//! Properties specific to Redis, on a real server: one scenario per test. The promises of every backend are tested in
//! the contract suite; here are the known pitfalls of locks on Redis, among them flaws found in other implementations.

#![cfg(feature = "redis")]

mod connecting;
mod entries;
mod faults;
mod foreign;
mod loss;
mod permits;
#[path = "../contract/proxy.rs"]
mod proxy;
mod queue;
mod runtimes;
mod support;
mod switch;
mod tokens;
mod topology;
