//! The fences on the stores of others, on real servers: `cargo xtask test -p lockkeeper-fence`. Plain `cargo
//! test` leaves it out.

mod dynamodb;
mod http;
mod mysql;
mod object_store;
mod postgres;
mod redis;
mod sqlite;
#[path = "../suite/mod.rs"]
mod suite;
