//! Advisory locks on real PostgreSQL servers: each known pitfall is a scenario.

#![cfg(feature = "postgres")]

mod cancel;
mod connect;
mod crash;
mod in_transaction;
mod keys;
mod loss;
mod pooler;
mod runtimes;
mod settings;
mod tokens;
mod world;
