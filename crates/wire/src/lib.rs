//! The protobuf schema of Lockkeeper, the code generated from it, and every conversion between it and the
//! lock rules.
//!
//! Responsible for the encoding of the messages between clients and nodes and among nodes, and of a node's
//! log records. The pieces of a snapshot are encoded by `lockkeeper_core::snapshot`, and the storage layer
//! adds checksums. This crate uses no time, sockets or files. The conversions refuse values that the types of
//! the lock rules can't represent, and requests of clients whose content exceeds a limit. The numbers of
//! items and names in a client's frame are checked before the frame is decoded.
//!
//! Reading order: the schema in `proto/lockkeeper/v1/`, then [`request`] (a client's requests), [`answer`]
//! (the service's answers), [`entry`] (commands in the log).
//!
//! # Invariants
//!
//! - A conversion checks every bound of a field, and the items of a frame are counted before any is decoded
//!   (`frame.rs`).
//! - The messages need no network stack; the gRPC service is behind the feature `grpc`.
//! - Beside this crate only the replica, the server, the client's service backend and the simulator name a
//!   generated type.
//! - The generated code is kept in the repository; `cargo xtask generate` makes it.

pub mod answer;
pub mod entry;
mod fields;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod limits;
pub mod request;
mod secret;
mod trace_context;

pub use fields::{Malformed, mode_number};
pub use frame::decode_peer_frame;
pub use limits::{
    FRAME_BYTES_MAX, FRAME_ITEMS_MAX, FRAME_NAMES_MAX, PEER_FRAME_ENTRIES_MAX, PEER_FRAME_MESSAGES_MAX,
};
pub use trace_context::TraceContext;

/// Generated code (`cargo xtask generate`), in the same modules as the protobuf packages, because its types
/// refer to each other by these paths.
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
        include!("generated/lockkeeper.v1.rs");
    }
    pub mod store {
        pub mod v1 {
            include!("generated/lockkeeper.store.v1.rs");
        }
    }
    pub mod peer {
        pub mod v1 {
            include!("generated/lockkeeper.peer.v1.rs");
        }
    }
}

/// The protocol between the nodes of a cluster, documented in `proto/lockkeeper/peer/v1/`.
#[doc(inline)]
pub use lockkeeper::peer::v1 as peer;
/// The on-disk state of a node, documented in `proto/lockkeeper/store/v1/`.
#[doc(inline)]
pub use lockkeeper::store::v1 as store;
/// The public interface, documented in `proto/lockkeeper/v1/`.
#[doc(inline)]
pub use lockkeeper::v1;

/// The public interface as a `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/lockkeeper.v1.descriptors.bin");

/// The metadata key by which a client asks a follower to relay its stream to the leader. The value is the
/// address of the leader that the client could not reach.
pub const RELAY_METADATA: &str = "lockkeeper-relay";

/// The default port for clients: the keys of "LOCK" on a phone.
pub const DEFAULT_PORT: u16 = 5625;

/// The default port for connections between nodes.
pub const DEFAULT_PEER_PORT: u16 = 5626;

/// The default port for HTTP/JSON.
pub const DEFAULT_HTTP_PORT: u16 = 5627;
