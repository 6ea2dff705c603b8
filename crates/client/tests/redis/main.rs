//! What is peculiar to Redis, on a real server: one scenario a test. What every backend promises is in the contract
//! suite; here are the pitfalls that locks on Redis are known for, among them the flaws that we found in others.

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
