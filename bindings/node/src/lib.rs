//! The native module of the npm package `lockkeeper`: the Rust library's locks, for `lib/index.cjs`, which is
//! the API.
//!
//! Responsible for: calls never block the event loop, and renewals never need it; a cancelled call abandons
//! its request; a thread that ends (a worker) gives up its holds; and no lock is released because an object
//! of JavaScript is garbage.
//!
//! - `bridge.rs`: how calls run, and how their results reach an event loop
//! - `locks.rs`, `holds.rs`, `recipes.rs`, `records.rs`, `inspect.rs`: what can be called
//! - `options.rs`: the options of a lock
//! - `errors.rs`: errors, for `lib/errors.cjs`
//! - `fences/`: the Rust fences on the connections of JavaScript
#![allow(unreachable_pub, reason = "napi exports `pub` items only")]

mod bridge;
mod errors;
mod fences;
mod holds;
mod inspect;
mod locks;
mod options;
mod recipes;
mod records;
