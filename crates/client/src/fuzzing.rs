//! The fuzz targets `client` (URLs, and what the backends store) and `carrier` (the answers of our own service).

use std::time::Duration;

use lockkeeper_core::Seq;
use lockkeeper_wire::v1;
use prost::Message;

use crate::backend::Call;
use crate::backends::service::carrier::Carrier;
use crate::backends::{etcd, file, redis, zookeeper};
use crate::machine::Spec;
use crate::time::BootInstant;
use crate::url::Url;
use crate::{info, once};

/// Decodes `bytes`; the first one says as what.
///
/// # Panics
/// If a decoder breaks its promise.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 6 {
        0 => url(bytes),
        1 => file::fuzz(bytes),
        2 => redis::fuzz(bytes),
        3 => etcd::fuzz(bytes),
        4 => zookeeper::fuzz(bytes),
        _ => {
            once::fuzz(bytes);
            let _ = info::decode_meta(bytes);
        }
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

/// Feeds frames of answers, each with a length of two bytes before it, to the client's side of a stream with three
/// sessions.
///
/// # Panics
/// If the client's side panics.
pub fn carrier(mut bytes: &[u8]) {
    let mut carrier: Carrier<u32> = Carrier::new();
    let mut out = Vec::new();
    let mut now = BootInstant::from_nanos(1_000_000_000);
    let spec = Spec {
        ttl: Some(Duration::from_secs(15)),
        lock_delay: Duration::ZERO,
        linger: Duration::ZERO,
        renew: true,
    };
    for number in 1..=3 {
        let session = carrier.add(spec, "label", [number; 16]);
        carrier.submit(now, session, Call::Open { fresh: true }, u32::from(number), &mut out);
        let finish = Call::Finish { seq: Seq(2), target: Seq(1), done_through: Seq(0) };
        carrier.submit(now, session, finish, 10 + u32::from(number), &mut out);
    }
    let mut stream = carrier.begin_stream(now);
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (frame, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        bytes = rest;
        let _sent = carrier.take_frame(stream);
        let Ok(frame) = v1::ServerFrame::decode(frame) else { continue };
        carrier.received(now, stream, frame.items, &mut out);
        now = now + Duration::from_secs(1);
        carrier.wake(now, &mut out);
        if carrier.stream().is_none() {
            stream = carrier.begin_stream(now);
        }
        out.clear();
    }
}

/// Valid inputs of [`run`].
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
    seeds.extend(file::fuzz_seeds().into_iter().map(|seed| [vec![1], seed].concat()));
    seeds
}

/// Valid inputs of [`carrier`].
#[must_use]
pub fn carrier_seeds() -> Vec<Vec<u8>> {
    let item = |what| v1::ServerItem { session: 1, seq: 0, what: Some(what) };
    let frame = |items| {
        let bytes = v1::ServerFrame { items }.encode_to_vec();
        [&u16::try_from(bytes.len()).unwrap_or(0).to_le_bytes()[..], &bytes].concat()
    };
    let opened = |number: u8| {
        v1::server_item::What::Opened(v1::Opened {
            secret_prefix: u64::from_le_bytes([number; 8]),
            ..v1::Opened::default()
        })
    };
    let kept = v1::server_item::What::KeptAlive(v1::KeptAlive { id: 1, revoked: vec![2] });
    let end = v1::server_item::What::StreamEnd(v1::StreamEnd { reason: 1, ..v1::StreamEnd::default() });
    vec![
        [frame(vec![item(opened(1)), item(opened(2))]), frame(vec![item(kept)]), frame(vec![item(end)])]
            .concat(),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn inputs_of_the_fuzzer_keep_every_promise() {
        lockkeeper_corpus::replay("client", super::seeds(), super::run);
        lockkeeper_corpus::replay("carrier", super::carrier_seeds(), super::carrier);
    }
}
