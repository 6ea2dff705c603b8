//! The lock service's HTTP interface: HTTP/JSON, its OpenAPI document, the pages for browsers, and
//! `/metrics`.
//!
//! Responsible for: each request is translated into one call of the service, which answers as the gRPC
//! port would: identities, permissions, quotas, the audit trail and forwarding to the leader are the
//! same. Contains no lock rule, and knows of the service only what `service.rs` asks for. Connections are
//! the transport's: the service passes each request to [`HttpInterface::answer`].
//!
//! # Code map
//!
//! - `service.rs`: the traits that the service implements
//! - `interface.rs`: the handlers by path, and what holds for all requests
//! - `call.rs`, `problem.rs`, `rejection.rs`, `body.rs`: what a handler gets, and errors
//! - `sessions.rs`, `keep_alive.rs`, `locks.rs`, `watch.rs`, `cluster.rs`, `audit.rs`, `metrics.rs`,
//!   `health.rs`: the handlers
//! - `openapi.rs`: the document, generated from the handlers
//! - `view/mod.rs`: locks, sessions and nodes in JSON, the same in answers, in the console and in
//!   `lockkeeper … --json`
//! - `pages.rs`: the console (`console/main.js` first) and the hazard player
//!
//! # Invariants
//!
//! - No check of a caller is here: the service makes them, for all interfaces alike.
//! - The pages contain no state of the service, and load nothing but their own files.

mod audit;
pub mod body;
mod call;
mod cluster;
mod health;
mod interface;
mod keep_alive;
mod locks;
mod metrics;
mod openapi;
mod pages;
mod problem;
mod rejection;
mod service;
mod sessions;
pub mod view;
mod watch;

pub use interface::HttpInterface;
pub use pages::{HazardPlayer, PageFile, TraceOfQuery};
pub use service::{Origin, Probe, ServiceCalls};
