//! Three real nodes as one cluster, observed by clients while a node is killed, stopped, restarted,
//! disconnected, or deprived of its data or its disk.

mod cuts;
mod data;
mod digests;
mod full;
mod hostile;
mod leader;
mod members;
pub(crate) mod nodes;
mod rolling;
mod stops;
mod timeouts;
