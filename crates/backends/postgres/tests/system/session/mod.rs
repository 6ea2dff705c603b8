//! Advisory locks on real PostgreSQL servers: each known pitfall is a scenario.

mod cancel;
mod connect;
mod crash;
mod in_transaction;
mod keys;
mod loss;
mod pooler;
mod proxy;
mod runtimes;
mod settings;
mod tokens;
mod world;
