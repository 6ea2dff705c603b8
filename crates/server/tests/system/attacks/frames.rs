//! HTTP/2, byte by byte: what a well-behaved library would not write.

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The header block of a call of the service, in HPACK without a table.
pub(super) fn call(name: &str) -> Vec<u8> {
    // `:method POST` and `:scheme http` from the static table.
    let mut block = vec![0x83, 0x86];
    let literal = |block: &mut Vec<u8>, name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend_from_slice(value.as_bytes());
    };
    literal(&mut block, &[0x04], &format!("/lockkeeper.v1.Lockkeeper/{name}"));
    literal(&mut block, &[0x01], "node");
    // The index 31 exceeds the prefix of four bits.
    literal(&mut block, &[0x0f, 31 - 15], "application/grpc");
    block
}

/// A gRPC message with its head.
pub(super) fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0], &u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}
