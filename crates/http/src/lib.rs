//! The lock service's HTTP/JSON interface.
//!
//! # Code map
//!
//! - `view/mod.rs`: locks, sessions and nodes in JSON, the same in HTTP answers, in the console and in
//!   `lockkeeper … --json`

pub mod view;
