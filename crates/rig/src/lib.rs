//! Real third-party servers for tests, each owned by one test: started on loopback, killed, stopped, started
//! again.
//!
//! Responsible for the start and the end of each program, and for leaving nothing behind: a server is a child
//! of the test, is killed when the test ends for any reason, and has its own data, log and port. Must not
//! depend on Lockkeeper.
//!
//! A test whose server is missing or does not start must fail, and not be skipped: the start panics. The
//! panic for a missing program names its Debian package.
//!
//! Reading order: `program.rs` (command lines), `process.rs` (the lifecycle of a server), `port.rs`,
//! `folder.rs`, then one module for each server.
//!
//! When `kill`, `stop` or `wipe` returns, it has taken effect, on all processes of the server. For our own
//! processes there are networks of hosts whose paths can be cut (`network.rs`), a shim that changes the
//! clock and disk of one process, and disks whose power can be cut (`power.rs`). No package of the product
//! depends on this crate.

pub mod azurite;
mod cluster;
pub mod dynamodb;
pub mod etcd;
mod folder;
pub mod mariadb;
pub mod memcached;
pub mod network;
pub mod pgbouncer;
mod port;
pub mod postgres;
pub mod power;
mod process;
mod program;
pub mod prometheus;
mod proxy;
pub mod redis;
pub mod s3;
pub mod seaweedfs;
mod sentinel;
mod shim;
mod template;
mod tls;
mod wait;
pub mod zookeeper;

pub use azurite::Azurite;
pub use cluster::RedisCluster;
pub use dynamodb::DynamoDb;
pub use etcd::Etcd;
pub use mariadb::MariaDb;
pub use memcached::Memcached;
pub use network::Network;
pub use pgbouncer::PgBouncer;
pub use port::Port;
pub use postgres::Postgres;
pub use power::PowerDisk;
pub use program::{CommandLine, Program, find};
pub use prometheus::Prometheus;
pub use proxy::{Faults, Protocol, ServiceRefusal, Traffic};
pub use redis::Redis;
pub use s3::S3;
pub use seaweedfs::SeaweedFs;
pub use sentinel::{OneSentinel, Sentinel};
pub use shim::{COMPILER, Number, Shim, ShimClock};
pub use tls::{Authority, Issued};
pub use zookeeper::ZooKeeper;
