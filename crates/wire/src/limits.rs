//! The limits of a frame. Those of the table are in [`lockkeeper_core::limits`].
//!
//! The client library splits its requests into frames below these limits; the service checks them before it
//! decodes a frame.

/// The largest frame either side accepts, in bytes: some ten thousand ordinary acquires.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The maximum number of items in a client's frame. An item of two bytes takes some 150 bytes once it is
/// decoded.
pub const FRAME_ITEMS_MAX: usize = 1 << 14;
/// The maximum number of lock names in a client's frame, over all items. A name of one byte takes some 50
/// bytes once it is decoded.
pub const FRAME_NAMES_MAX: usize = 1 << 16;
/// The maximum number of messages in a frame between nodes. A message of two bytes takes some 250 bytes once
/// it is decoded.
pub const PEER_FRAME_MESSAGES_MAX: usize = 1 << 14;
/// The maximum number of log entries in a frame between nodes, over all messages. An entry of two bytes takes
/// some 60 bytes once it is decoded. Nodes put all commands of a turn into one entry.
pub const PEER_FRAME_ENTRIES_MAX: usize = 1 << 18;
