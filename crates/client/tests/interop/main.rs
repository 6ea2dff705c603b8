//! Interoperation: our locks and those of other projects' clients, on the same servers, exclude each other.
//!
//! The other side is always the real library in a real process ([`peer`]), so that what is proved is not our reading of
//! its source. What must hold is written once ([`scenarios`]) and asked of each pair of a peer and a URL of ours. A
//! further client costs one script in `peers/`, one module here, and a line in xtask/src/foreign.rs.
//!
//! `cargo xtask test` installs the clients; without them every test here fails and says so.

#[cfg(feature = "redlock")]
mod node_redlock;
mod ours;
mod peer;
#[cfg(feature = "postgres")]
mod psql;
#[cfg(feature = "redis")]
mod redis_py;
mod scenarios;
#[cfg(feature = "redis")]
mod script;

/// One test per scenario, named after it, in the world that the module calls `start()` for.
macro_rules! prove {
    ($start:expr => $($scenario:ident,)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() {
            crate::scenarios::$scenario(&$start).await;
        }
    )+};
}
pub(crate) use prove;
