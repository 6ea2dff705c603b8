//! A cluster of one, turn by turn: what a client hears, and what a restart keeps.

mod crowds;
mod deadlines;
mod harness;
mod items;
mod requests;
mod snapshots;
mod watch;
