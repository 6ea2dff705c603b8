//! Decoders, from within: where a right checksum must not make up for wrong content.
