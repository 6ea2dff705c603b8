//! The library over the lock services of others, on real servers: `cargo xtask test -p lockkeeper`. Plain
//! `cargo test` leaves it out.

mod interop;
mod once;
