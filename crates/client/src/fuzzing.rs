//! The fuzz target `client`: URLs, and what the backends store.

use lockkeeper_backend::Url;

#[cfg(feature = "service")]
pub use crate::backends::service::carrier::fuzzing as carrier;

/// Decodes `bytes`; the first one selects the decoder.
///
/// # Panics
/// If a decoder breaks its promise.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 7 {
        0 => url(bytes),
        #[cfg(feature = "file")]
        1 => lockkeeper_file::fuzz(bytes),
        #[cfg(feature = "redis")]
        2 => lockkeeper_redis::fuzz(bytes),
        #[cfg(feature = "etcd")]
        3 => lockkeeper_etcd::fuzz(bytes),
        #[cfg(feature = "zookeeper")]
        4 => lockkeeper_zookeeper::fuzz(bytes),
        #[cfg(any(feature = "file", feature = "redis"))]
        5 => crate::once::fuzz(bytes),
        _ => drop(lockkeeper_backend::decode_meta(bytes)),
    }
}

/// What a URL shows does not depend on its password.
fn url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(url) = text.parse::<Url>() else { return };
    if url.password.is_some() {
        let other: Url = "redis://user:another@host".parse().expect("a URL");
        let mut changed = url.clone();
        changed.password = other.password;
        assert_eq!(changed.to_string(), url.to_string());
    }
}

/// Valid inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let with = |what: u8, text: &str| [&[what], text.as_bytes()].concat();
    let mut seeds = vec![
        with(0, "redis://user:pa%40ss@[::1]:6379,b/3?min-ttl=5s&password-file=x"),
        with(0, "lockkeepers://a.example:5625,b?tls-ca=ca.pem"),
        with(0, "file:/var/lock/x"),
        with(2, "lockkeeper:ab:1:held:42:+10000:0:c\nowner\n\nmeta"),
        with(3, "locks/orders%2F42/lock/7"),
        with(4, "_c_0f-lock-0000000007"),
        with(5, "attempt\noutcome"),
    ];
    #[cfg(feature = "file")]
    seeds.push([vec![1], lockkeeper_file::fuzz_seed()].concat());
    seeds
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("client", seeds(), run);
}
