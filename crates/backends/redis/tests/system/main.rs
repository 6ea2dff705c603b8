//! Properties specific to Redis, on a real server: one scenario per test. The promises of every backend are
//! tested in the contract suite; here are the known pitfalls of locks on Redis, among them flaws found in
//! other implementations.

mod connecting;
mod contract;
mod entries;
mod faults;
mod foreign;
mod hostile;
mod loss;
mod permits;
mod queue;
mod refusals;
mod runtimes;
mod support;
mod switch;
mod tokens;
mod topology;
