//! Histories with a known verdict: bad ones of each kind, random good ones, and small ones beside a general
//! checker of linearizability.

mod bad;
mod general;
mod good;
mod play;
mod timeline;
