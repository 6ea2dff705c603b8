//! The limits of a frame, beside those of the table ([`lockkeeper_core::limits`]).
//!
//! The library splits what it sends below them; the service checks them before it decodes a frame.

/// The largest frame either side accepts, in bytes: some ten thousand ordinary acquires.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Most items in a client's frame. An item of two bytes takes some 150 once it is decoded.
pub const FRAME_ITEMS_MAX: usize = 1 << 14;
/// Most names of locks in a client's frame, all items together. A name of one byte takes some 50 once it is decoded.
pub const FRAME_NAMES_MAX: usize = 1 << 16;
