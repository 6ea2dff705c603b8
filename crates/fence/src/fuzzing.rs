//! The fuzz target `fence`: files and records of marks, the headers of a request, items of DynamoDB.

use ::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;

use crate::{dynamodb, format, http, object_store};

const HEADERS: [HeaderName; 4] = [http::TOKEN, http::RESOURCE, http::MODE, http::ACTION];

/// Decodes `bytes`; the first one selects the decoder.
///
/// # Panics
/// If a decoder breaks its promise.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 4 {
        0 => {
            if let Ok(marks) = format::decode(&checked(bytes)) {
                assert_eq!(format::decode(&format::encode(&marks)), Ok(marks));
            }
        }
        1 => object_store::fuzz_record(&Bytes::from(checked(bytes))),
        2 => {
            let mut map = HeaderMap::new();
            for (line, name) in bytes.split(|byte| *byte == b'\n').take(8).zip(HEADERS.iter().cycle()) {
                if let Ok(value) = HeaderValue::from_bytes(line) {
                    map.append(name, value);
                }
            }
            http::fuzz_headers(&map);
        }
        _ => {
            let Ok(json) = serde_json::from_slice(bytes) else { return };
            if let Some(item) = dynamodb::item_from_json(&json) {
                assert_eq!(dynamodb::item_from_json(&dynamodb::item_to_json(&item)).as_ref(), Some(&item));
            }
        }
    }
}

/// The bytes, followed by their checksum as in a mark file.
fn checked(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
    bytes.extend_from_slice(format!("check {sum:016x}\n").as_bytes());
    bytes
}

/// Valid inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let without_check = |bytes: &[u8]| {
        let end = bytes.windows(6).rposition(|window| window == b"check ").unwrap_or(bytes.len());
        bytes[..end].to_vec()
    };
    let marks = format::encode(&crate::rule::Marks::default());
    vec![
        [vec![0], without_check(&marks)].concat(),
        [vec![1], without_check(&object_store::fuzz_seed())].concat(),
        b"\x0242\norders/1\npermit 3\nenter\n".to_vec(),
        b"\x03{\"a\":{\"S\":\"x\"},\"b\":{\"N\":\"7\"},\"c\":{\"B\":\"AA==\"},\"d\":{\"BOOL\":true}}"
            .to_vec(),
    ]
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("fence", seeds(), run);
}
