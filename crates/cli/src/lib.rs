//! What the `lockkeeper` binary shares with its own tests. Not an interface for others: the library is the
//! package `lockkeeper`.

pub mod guardian;
