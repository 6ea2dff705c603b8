//! Three real nodes as one cluster: what users see when one of them is killed, stopped, restarted, or robbed of its data.

mod data;
mod leader;
mod members;
mod nodes;
mod rolling;
mod stops;
