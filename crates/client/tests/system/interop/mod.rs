//! Interoperation: Lockkeeper's locks and those of other projects' clients exclude each other on the same
//! servers.
//!
//! The peer is always the real library in a real process ([`peer`]), so that the tests do not depend on our
//! reading of its source. The requirements are written once ([`scenarios`]) and tested for each pair of a
//! peer and a URL. A new client needs one script in `peers/`, one module here, and a line in
//! xtask/src/foreign.rs. The scripts also run in `cargo xtask chaos compare`.
//!
//! `cargo xtask test` installs the clients; without them every test here fails with a message about that.

#[cfg(feature = "etcd")]
mod concurrency;
#[cfg(feature = "zookeeper")]
mod curator;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "zookeeper")]
mod kazoo;
#[cfg(feature = "redlock")]
mod node_redlock;
mod ours;
mod peer;
#[cfg(feature = "postgres")]
mod psql;
#[cfg(feature = "redis")]
mod redis_py;
mod scenarios;
#[cfg(any(feature = "dynamodb", feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod script;

/// Defines one test per scenario, with the scenario's name, in the world created by `start()`.
macro_rules! prove {
    ($start:expr => $($scenario:ident,)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() {
            crate::interop::scenarios::$scenario(&$start).await;
        }
    )+};
}
pub(crate) use prove;
