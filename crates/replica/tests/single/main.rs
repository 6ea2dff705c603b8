//! A single-node cluster, driven turn by turn: responses to clients, and state kept over restarts.

mod crowds;
mod deadlines;
mod harness;
mod items;
mod requests;
mod snapshots;
mod watch;
