//! `postgres:` on real servers: `cargo xtask test -p lockkeeper-postgres`. Plain `cargo test` leaves it out.

mod contract;
mod row;
mod session;
