//! `lockkeeper://`: our own service.

#[allow(unreachable_pub, reason = "public to the simulator only")]
pub(crate) mod carrier;
