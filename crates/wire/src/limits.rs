//! The limits of a frame, beside those of the table ([`lockkeeper_core::limits`]).
//!
//! The library splits what it sends below them; the service checks them before it decodes a frame.

/// The largest frame either side accepts, in bytes: some ten thousand ordinary acquires.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
