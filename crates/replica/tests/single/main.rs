//! A single-node cluster, driven turn by turn: responses to clients, and the state after restarts.

mod cached;
mod calls;
mod crowds;
mod deadlines;
mod harness;
mod items;
mod quotas;
mod requests;
mod session_polls;
mod snapshots;
mod watch;
