//! `mysql:` on real servers of MariaDB: `cargo xtask test -p lockkeeper-mysql`. Plain `cargo test` leaves it
//! out.

mod contract;
