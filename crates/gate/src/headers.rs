//! The headers that a proxy must and must not forward (RFC 9110, sections 7.6 and 7.8; RFC 9112, section 6).

use http::Version;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http_body::Body;
use percent_encoding::percent_decode_str;

use crate::client::ClientConnection;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Headers about one connection only.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Why a request's framing is refused: two parsers could disagree about where the request ends.
pub(crate) fn ambiguous_framing(parts: &Parts) -> Option<&'static str> {
    let headers = &parts.headers;
    let coded = headers.contains_key(TRANSFER_ENCODING);
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if headers.get_all(TRANSFER_ENCODING).iter().any(|value| !is_chunked(value)) {
        Some("it has a transfer coding other than `chunked`")
    } else if coded && headers.contains_key(CONTENT_LENGTH) {
        Some("it has both Content-Length and Transfer-Encoding")
    } else if coded && parts.version < Version::HTTP_11 {
        Some("it has Transfer-Encoding, which HTTP/1.0 does not know")
    } else if headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        Some("it has more than one Content-Length")
    } else if headers.get_all(HOST).iter().count() > 1 {
        Some("it has more than one Host")
    } else {
        None
    }
}

/// Whether the client wants to speak another protocol on this connection, which the gate could not guard.
pub(crate) fn wants_websocket(headers: &HeaderMap) -> bool {
    let mut upgrades = headers.get_all(UPGRADE).iter().filter_map(|value| value.to_str().ok());
    upgrades.any(|value| value.to_ascii_lowercase().contains("websocket"))
}

/// Headers that override the method in some servers and frameworks.
const METHOD_OVERRIDES: [&str; 8] = [
    "http-method-override",
    "method-override",
    "x-forwarded-method",
    "x-http-method",
    "x-http-method-override",
    "x-method",
    "x-method-override",
    "x-original-method",
];

/// Headers that override the path in some servers, or that name a second resource which the request changes
/// (`Destination` of `MOVE` and `COPY`).
const PATH_OVERRIDES: [&str; 12] = [
    "destination",
    "x-forwarded-path",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-http-destinationurl",
    "x-original-path",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-path",
    "x-rewrite-uri",
    "x-rewrite-url",
];

/// A header whose name has characters other than letters, digits and `-`. Many servers replace all of these
/// by one character (CGI: `_`), so the header could pass for one that the gate checks under its exact name
/// only.
pub(crate) fn foldable_name(headers: &HeaderMap) -> Option<&HeaderName> {
    headers
        .keys()
        .find(|name| !name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
}

/// The header or query parameter that may override the request's method at the upstream.
pub(crate) fn overrides_method(parts: &Parts) -> Option<String> {
    let header =
        other_than(&parts.headers, &METHOD_OVERRIDES, |value| value == parts.method.as_str().as_bytes());
    let parameter = || {
        let keys =
            parts.uri.query()?.split(['&', ';']).map(|pair| pair.split('=').next().unwrap_or_default());
        // PHP folds these characters to `_`, too.
        let folded = |key: &str| {
            let key: Vec<u8> = percent_decode_str(key).collect();
            String::from_utf8_lossy(&key).to_lowercase().replace(['_', '.', ' ', '+', '['], "-")
        };
        keys.map(folded)
            .any(|key| key == "-method" || METHOD_OVERRIDES.contains(&key.as_str()))
            .then_some("`_method` in the query")
    };
    header.map(|name| format!("`{name}`")).or_else(|| parameter().map(str::to_owned))
}

/// The header that names another path than the request.
pub(crate) fn names_other_path(parts: &Parts) -> Option<&'static str> {
    let own = parts.uri.path_and_query().map(|it| it.as_str().as_bytes());
    other_than(&parts.headers, &PATH_OVERRIDES, |value| Some(value) == own)
}

/// The first of these headers that has another value than the request's own.
fn other_than(
    headers: &HeaderMap,
    names: &[&'static str],
    is_own: impl Fn(&[u8]) -> bool,
) -> Option<&'static str> {
    names.iter().copied().find(|name| headers.get_all(*name).iter().any(|value| !is_own(value.as_bytes())))
}

/// Removes the headers that concern only the client's connection, and adds those that describe the client and
/// the length of the body.
pub(crate) fn to_upstream(parts: &mut Parts, client: &ClientConnection, body: &impl Body) {
    let trailers = parts.headers.get_all(TE).iter().any(|value| {
        value
            .to_str()
            .is_ok_and(|value| value.split(',').any(|it| it.trim().eq_ignore_ascii_case("trailers")))
    });
    remove_hop_by_hop(&mut parts.headers);
    // The HTTP server of the gate has answered `Expect`.
    parts.headers.remove(EXPECT);
    if trailers {
        parts.headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // The HTTP client sends a body of unknown length only with this header, if requests with the method
    // usually have no body.
    if !body.is_end_stream() && !parts.headers.contains_key(CONTENT_LENGTH) {
        parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    // HTTP/2 has the host in the URI.
    if !parts.headers.contains_key(HOST)
        && let Some(host) = parts.uri.authority().and_then(|it| HeaderValue::from_str(it.as_str()).ok())
    {
        parts.headers.insert(HOST, host);
    }
    append_list(&mut parts.headers, FORWARDED_FOR, &client.address.to_string());
    if let Some(host) = parts.headers.get(HOST).cloned() {
        parts.headers.entry(FORWARDED_HOST).or_insert(host);
    }
    parts.headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static(if client.is_tls {
        "https"
    } else {
        "http"
    }));
    append_list(&mut parts.headers, VIA, via(parts.version));
}

/// Removes the headers that concern only the upstream's connection.
pub(crate) fn to_client(version: Version, headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    append_list(headers, VIA, via(version));
}

fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2 lockkeeper",
        Version::HTTP_10 => "1.0 lockkeeper",
        _ => "1.1 lockkeeper",
    }
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // `Connection` must not be able to remove these headers.
        .filter(|name: &HeaderName| {
            *name != CONTENT_LENGTH && *name != HOST && !name.as_str().starts_with("fencing-")
        })
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Adds an element to the end of a list.
fn append_list(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(element.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(Request::builder().method(method).uri(path), |request, (name, value)| {
                request.header(*name, *value)
            });
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn names_that_servers_fold_are_found() {
        for name in
            ["x_http_method_override", "X-HTTP_Method-Override", "fencing.token", "content_length", "x!y"]
        {
            assert!(foldable_name(&request("GET", "/", &[(name, "1")]).headers).is_some(), "{name}");
        }
        assert!(foldable_name(&request("GET", "/", &[("X-Own-1", "1"), ("dnt", "1")]).headers).is_none());
    }

    #[test]
    fn headers_and_parameters_that_name_another_method_are_found() {
        for name in METHOD_OVERRIDES {
            assert!(overrides_method(&request("GET", "/", &[(name, "DELETE")])).is_some(), "{name}");
            assert!(overrides_method(&request("GET", "/", &[(name, "GET")])).is_none(), "{name}: its own");
            let both = [(name, "GET"), (name, "PUT")];
            assert!(overrides_method(&request("GET", "/", &both)).is_some(), "{name}: two values");
        }
        for query in [
            "_method=PUT",
            "a=1&_METHOD=PUT",
            "%5fmethod=PUT",
            ".method=PUT",
            "x_http_method_override=PUT",
            "a;_method",
        ] {
            assert!(overrides_method(&request("GET", &format!("/?{query}"), &[])).is_some(), "{query}");
        }
        for query in ["method=x", "a=_method", "payment_method=card", ""] {
            assert_eq!(overrides_method(&request("GET", &format!("/?{query}"), &[])), None, "{query}");
        }
    }

    #[test]
    fn headers_that_name_another_path_are_found() {
        for name in PATH_OVERRIDES {
            assert_eq!(names_other_path(&request("GET", "/a", &[(name, "/b")])), Some(name));
            assert_eq!(
                names_other_path(&request("GET", "/a?x=1", &[(name, "/a?x=1")])),
                None,
                "{name}: its own"
            );
        }
    }
}
