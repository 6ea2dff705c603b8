//! Real servers of others for tests, each test its own: started on loopback, killed, stopped, started again.
//!
//! Responsible for how each program is started and ended, and for leaving nothing behind: a server is a child of the
//! test, dies with it however the test ends, and keeps its data, its log and its port to itself. May not know anything of
//! Lockkeeper.
//!
//! Whatever goes wrong here is a panic that says what to do: a test without its server must not look passed. A program
//! that is missing is named with its Debian package.
//!
//! Reading order: `program.rs` (what is started), `process.rs` (how it lives and dies), `port.rs`, `folder.rs`, then one
//! module for each server.

pub mod azurite;
mod cluster;
pub mod dynamodb;
mod folder;
pub mod network;
pub mod pgbouncer;
mod port;
pub mod postgres;
mod process;
mod program;
pub mod redis;
pub mod s3;
mod sentinel;
mod shim;
mod tls;
mod wait;

pub use azurite::Azurite;
pub use cluster::RedisCluster;
pub use dynamodb::DynamoDb;
pub use network::Network;
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::Postgres;
pub use program::{Line, Program, find};
pub use redis::Redis;
pub use s3::S3;
pub use sentinel::Sentinel;
pub use shim::{Clock, Number, Shim};
