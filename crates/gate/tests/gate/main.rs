//! The gate in front of real upstreams, over real sockets.

mod ends;
mod hostile;
mod order;
mod proxying;
mod rig;
mod shares;
mod tls;
mod tokens;
