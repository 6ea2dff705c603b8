//! The library over the lock services of others, on real servers: `cargo xtask test -p lockkeeper`. Plain `cargo test` leaves
//! it out.

mod dynamodb;
mod etcd;
mod interop;
mod once;
mod postgres;
mod postgres_row;
mod redis;
mod redlock;
mod traffic;
mod zookeeper;
