//! The HTTP fence in front of an axum service, over real sockets.

mod contract;
#[cfg(target_os = "linux")]
mod ends;
mod rig;
mod section;
mod words;
