//! The fuzz target `gate`: files of rules, and the framing of requests.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Version};
use http_body_util::Empty;

use crate::client::ClientConnection;
use crate::headers;
use crate::rules::Rules;

/// Decodes `bytes`; the first one selects the decoder.
///
/// # Panics
/// If a decoder breaks its promise.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    if what % 2 == 0 {
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = Rules::parse(text);
        }
        return;
    }
    let mut map = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(&value[1..])) {
            map.append(name, value);
        }
    }
    let _ = (headers::wants_websocket(&map), headers::foldable_name(&map));
    let (mut parts, body) = Request::new(Empty::<bytes::Bytes>::new()).into_parts();
    parts.headers = map;
    let _ = headers::ambiguous_framing(&parts);
    let _ = (headers::overrides_method(&parts), headers::names_other_path(&parts));
    let client = ClientConnection::new(IpAddr::V4(Ipv4Addr::LOCALHOST), false);
    headers::to_upstream(&mut parts, &client, &body);
    assert!(!parts.headers.contains_key(http::header::CONNECTION), "it is about one connection");
    headers::to_client(Version::HTTP_11, &mut parts.headers);
}

/// Valid inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let rules = "\0[[rule]]\npath = \"/orders/{id}\"\nresource = \"orders/{id}\"\n";
    let headers =
        "\x01host: a\nconnection: close, x-a\nx-a: 1\nvia: 1.1 b\ncontent-length: 5\nte: trailers\n";
    vec![rules.as_bytes().to_vec(), headers.as_bytes().to_vec()]
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("gate", seeds(), run);
}
