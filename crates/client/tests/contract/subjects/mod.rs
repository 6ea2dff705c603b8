//! The backends under test: one module each.

#[cfg(feature = "dynamodb")]
pub(crate) mod dynamodb;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod file;
pub(crate) mod memory;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "postgres")]
pub(crate) mod postgres_row;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
pub(crate) mod service;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;
