//! Three real nodes as one cluster: what users see when one of them is killed, stopped, restarted, cut off, or
//! robbed of its data or its disk.

mod cuts;
mod data;
mod digests;
mod full;
mod hostile;
mod leader;
mod members;
mod nodes;
mod rolling;
mod stops;
mod timeouts;
