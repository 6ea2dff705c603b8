//! The protobuf schema of Lockkeeper, the code generated from it, and every conversion between it and the lock rules.
//!
//! Responsible for: what bytes mean. Nothing else in the project knows the wire; nothing here knows time, sockets or
//! files. Every bound of a field is checked by the conversion; how many items and names a frame has, before it is decoded.
//!
//! Reading order: the schema in `proto/lockkeeper/v1/`, then [`request`] (what a client asks), [`answer`] (what it
//! hears), [`entry`] (what the log keeps).

pub mod answer;
pub mod entry;
mod fields;
mod frame;
mod limits;
pub mod request;

pub use fields::{Malformed, mode_number};
pub use limits::{FRAME_BYTES_MAX, FRAME_ITEMS_MAX, FRAME_NAMES_MAX};

/// Generated: nested as the packages are, since the generated code refers to itself that way.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the schema documents it"
)]
mod lockkeeper {
    pub mod v1 {
        pub use crate::frame::ClientFrame;
        include!(concat!(env!("OUT_DIR"), "/lockkeeper.v1.rs"));
    }
    pub mod store {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/lockkeeper.store.v1.rs"));
        }
    }
    pub mod peer {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/lockkeeper.peer.v1.rs"));
        }
    }
}

/// What the nodes of a cluster say to each other, as `proto/lockkeeper/peer/v1/` documents it.
#[doc(inline)]
pub use lockkeeper::peer::v1 as peer;
/// What a node keeps on its disk, as `proto/lockkeeper/store/v1/` documents it.
#[doc(inline)]
pub use lockkeeper::store::v1 as store;
/// The public interface, as `proto/lockkeeper/v1/` documents it.
#[doc(inline)]
pub use lockkeeper::v1;

/// The public interface as a `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lockkeeper.v1.descriptors.bin"));

/// The port clients use unless told otherwise ("LOCK" on a phone).
pub const DEFAULT_PORT: u16 = 5625;

/// The port nodes use among themselves unless told otherwise.
pub const DEFAULT_PEER_PORT: u16 = 5626;
