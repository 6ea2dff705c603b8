//! The library over the lock services of others, on real servers: `cargo xtask test -p lockkeeper`. Plain `cargo test` leaves
//! it out.

mod dynamodb;
mod etcd;
mod interop;
mod once;
mod postgres;
mod postgres_row;
#[path = "../contract/proxy.rs"]
mod proxy;
mod redis;
mod redlock;
mod zookeeper;
