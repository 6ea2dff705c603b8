//! The fuzz target `carrier`: the answers of our own service, in any order.

use std::time::Duration;

use lockkeeper_backend::{BootInstant, Call, Spec};
use lockkeeper_core::Seq;
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1;
use prost::Message;

use super::Carrier;

/// Feeds frames of answers, each with a length of two bytes before it, to the client's side of a stream with
/// three sessions.
///
/// # Panics
/// If the client's side panics.
pub fn run(mut bytes: &[u8]) {
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
        let session = carrier.add(spec, "label", Secret([number; 16]));
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

/// Valid inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
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
    let kept = v1::server_item::What::KeptAlive(v1::KeptAlive { id: 1, revoked: vec![2], recalled: vec![3] });
    let end = v1::server_item::What::StreamEnd(v1::StreamEnd { reason: 1, ..v1::StreamEnd::default() });
    vec![
        [frame(vec![item(opened(1)), item(opened(2))]), frame(vec![item(kept)]), frame(vec![item(end)])]
            .concat(),
    ]
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("carrier", seeds(), run);
}
