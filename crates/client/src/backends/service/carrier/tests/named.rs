//! One rule per test, with a scripted peer.

use lockkeeper_backend::{AcquireRequest, LossCause};
use lockkeeper_core::{LockName, Seq};
use lockkeeper_wire::v1::client_item;

use super::*;

type Out = Vec<CarrierOutput<u32>>;

/// One session on one stream.
struct Line {
    carrier: Carrier<u32>,
    key: SessionKey,
    stream: StreamId,
    /// The pushes on streams, apart from the other outputs.
    streams: Vec<Push>,
}

const SECRET: Secret = Secret([7; 16]);
const ID: u64 = 3;

impl Line {
    fn with(spec: Spec) -> Self {
        let mut carrier = Carrier::new();
        let key = carrier.add(spec, "me", SECRET);
        let mut out = Vec::new();
        carrier.submit(at(100), key, Call::Open { fresh: true }, 0, &mut out);
        let stream = carrier.begin_stream(at(100));
        let mut line = Self { carrier, key, stream, streams: Vec::new() };
        assert!(matches!(line.sent()[..], [client_item::What::Open(_)]));
        line
    }

    /// A session opened and attached at second 100.
    fn open(spec: Spec) -> Self {
        let mut line = Self::with(spec);
        let out = line.hears(100, 0, opened(1));
        assert!(matches!(out[..], [CarrierOutput::Resolved(0, Ok(Answer::Opened))]), "{out:?}");
        line
    }

    fn submit(&mut self, secs: u64, call: Call, handle: u32) -> Out {
        let mut out = Vec::new();
        self.carrier.submit(at(secs), self.key, call, handle, &mut out);
        out
    }

    fn hears(&mut self, secs: u64, seq: u64, what: What) -> Out {
        let mut out = Vec::new();
        let item = v1::ServerItem { session: ID, seq, what: Some(what) };
        self.carrier.received(at(secs), self.stream, vec![item], &mut out);
        self.without_streams(out)
    }

    fn without_streams(&mut self, out: Out) -> Out {
        let (streams, rest) = out.into_iter().partition(|output| {
            matches!(output, CarrierOutput::Push(_, Push::Attached | Push::Detached { .. }))
        });
        let streams: Out = streams;
        self.streams.extend(streams.into_iter().filter_map(|output| match output {
            CarrierOutput::Push(_, push) => Some(push),
            _ => None,
        }));
        rest
    }

    fn sent(&mut self) -> Vec<client_item::What> {
        let items = self.carrier.take_frame(self.stream);
        items.into_iter().map(|item| item.what.expect("something")).collect()
    }

    fn wake(&mut self, secs: u64) -> Out {
        let mut out = Vec::new();
        self.carrier.wake(at(secs), &mut out);
        self.without_streams(out)
    }

    fn cut(&mut self, secs: u64) -> Out {
        let mut out = Vec::new();
        self.carrier.stream_lost(at(secs), self.stream, &mut out);
        self.without_streams(out)
    }

    fn reconnect(&mut self, secs: u64) {
        self.stream = self.carrier.begin_stream(at(secs));
    }
}

fn opened(attach: u64) -> What {
    What::Opened(v1::Opened { attach, secret_prefix: SECRET.prefix() })
}

fn attached(attach: u64) -> What {
    What::Attached(v1::Attached { attach, ..Default::default() })
}

fn kept_alive(id: u64) -> What {
    What::KeptAlive(v1::KeptAlive { id, ..Default::default() })
}

fn granted(token: u64) -> What {
    What::Granted(v1::Granted { token, ..Default::default() })
}

fn acquire(seq: u64) -> Call {
    let names = vec![LockName::parse("a").unwrap()];
    let request = AcquireRequest::exclusive(names);
    Call::Acquire { seq: Seq(seq), done_through: Seq(0), request: request.into(), wait_left: None }
}

fn finish(seq: u64, target: u64) -> Call {
    Call::Finish { seq: Seq(seq), target: Seq(target), done_through: Seq(0) }
}

fn seqs(sent: &[client_item::What]) -> Vec<u64> {
    let seq = |what: &client_item::What| match what {
        client_item::What::Acquire(it) => it.seq,
        client_item::What::Finish(it) => it.seq,
        other => panic!("{other:?}"),
    };
    sent.iter().map(seq).collect()
}

#[test]
fn a_lost_open_is_retried_with_the_same_secret_and_the_next_attach() {
    let mut line = Line::with(spec());
    assert!(line.cut(101).is_empty());
    line.reconnect(101);
    let [client_item::What::Open(again)] = &line.sent()[..] else { panic!() };
    assert_eq!((again.attach, &again.secret[..]), (2, &SECRET.0[..]));
    assert!(matches!(line.hears(101, 0, opened(2))[..], [CarrierOutput::Resolved(0, Ok(Answer::Opened))]));
}

#[test]
fn after_a_reconnect_unresolved_commands_follow_the_attach_in_order_of_seq() {
    let mut line = Line::open(spec());
    let _ = line.submit(100, acquire(1), 1);
    let _ = line.submit(100, acquire(2), 2);
    assert_eq!(seqs(&line.sent()), [1, 2]);
    let out = line.hears(100, 1, What::Queued(v1::Queued::default()));
    assert!(matches!(out[..], [CarrierOutput::Push(_, Push::Queued { .. })]));
    let _ = line.cut(101);
    let _ = line.submit(101, finish(4, 3), 4);
    line.reconnect(101);
    assert!(matches!(line.sent()[..], [client_item::What::Attach(v1::AttachSession { attach: 2, .. })]));
    assert!(line.hears(101, 0, attached(2)).is_empty());
    assert_eq!(seqs(&line.sent()), [1, 2, 4]);
    let out = line.hears(101, 1, granted(9));
    assert!(matches!(out[..], [CarrierOutput::Resolved(1, Ok(Answer::Granted(_)))]), "{out:?}");
}

/// A keep-alive extends the lease from the time of its call: an attach sent before the call does not cover it
/// (P5).
#[test]
fn an_attach_acknowledges_only_keep_alives_made_before_it() {
    let mut line = Line::open(spec());
    let _ = line.cut(101);
    let _ = line.submit(101, Call::KeepAlive, 1);
    line.reconnect(102);
    let _ = line.sent();
    let _ = line.submit(103, Call::KeepAlive, 2);
    let out = line.hears(103, 0, attached(2));
    assert!(matches!(out[..], [CarrierOutput::Resolved(1, Ok(Answer::KeptAlive))]), "{out:?}");
    let [client_item::What::KeepAlive(v1::KeepAlive { id })] = line.sent()[..] else { panic!() };
    let out = line.hears(103, 0, kept_alive(id));
    assert!(matches!(out[..], [CarrierOutput::Resolved(2, Ok(Answer::KeptAlive))]), "{out:?}");
}

#[test]
fn items_of_an_earlier_stream_are_ignored() {
    let mut line = Line::open(spec());
    let _ = line.submit(100, Call::KeepAlive, 1);
    let _ = line.submit(100, acquire(1), 2);
    let old = line.stream;
    let _ = line.cut(101);
    line.reconnect(101);
    let late =
        [kept_alive(2), granted(5)].map(|what| v1::ServerItem { session: ID, seq: 1, what: Some(what) });
    let mut out = Vec::new();
    line.carrier.received(at(101), old, late.into(), &mut out);
    assert!(out.is_empty(), "{out:?}");
}

#[test]
fn the_stream_of_a_silent_service_ends_after_a_sixth_of_the_ttl() {
    let mut line = Line::open(spec());
    let _ = line.submit(104, Call::KeepAlive, 1);
    assert_eq!(line.carrier.next_wake(), Some(at(102)), "the open's time; then it looks again");
    assert!(line.wake(102).is_empty());
    assert_eq!(line.carrier.next_wake(), Some(at(106)));
    let out = line.wake(106);
    let [
        CarrierOutput::EndStream(StreamEnding::Silent),
        CarrierOutput::Resolved(1, Err(CallError { sent: true, .. })),
    ] = out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!(line.carrier.stream(), None);
}

#[test]
fn an_unanswered_command_times_out_and_a_queued_acquire_does_not() {
    let mut line = Line::open(spec());
    let _ = line.submit(100, acquire(1), 1);
    let _ = line.hears(100, 1, What::Queued(v1::Queued::default()));
    let _ = line.submit(101, finish(3, 2), 3);
    let _ = line.sent();
    let _ = line.wake(102);
    assert!(line.hears(102, 0, kept_alive(1)).is_empty(), "the service lives");
    let out = line.wake(105);
    assert!(matches!(out[..], [CarrierOutput::Resolved(3, Err(CallError { sent: true, .. }))]), "{out:?}");
    assert!(line.wake(10_000).is_empty());
    let _ = line.cut(10_000);
    let _ = line.submit(10_000, finish(4, 2), 4);
    let out = line.wake(10_010);
    assert!(matches!(out[..], [CarrierOutput::Resolved(4, Err(CallError { sent: false, .. }))]), "{out:?}");
}

#[test]
fn a_finish_drops_the_handle_of_its_acquire() {
    let mut line = Line::open(spec());
    let _ = line.submit(100, acquire(1), 1);
    let _ = line.hears(100, 1, What::Queued(v1::Queued::default()));
    assert!(matches!(line.submit(100, finish(2, 1), 2)[..], [CarrierOutput::Dropped(1)]));
    assert!(line.hears(100, 1, granted(5)).is_empty(), "granted while the finish was on its way");
    let released = What::Finished(v1::Finished { end: v1::End::Released.into() });
    assert!(matches!(
        line.hears(100, 2, released)[..],
        [CarrierOutput::Resolved(2, Ok(Answer::Finished(_)))]
    ));
}

#[test]
fn unsolicited_items_become_pushes() {
    let mut line = Line::open(spec());
    let ended = What::Ended(v1::Finished { end: v1::End::Broken.into() });
    assert!(matches!(
        line.hears(100, 5, ended)[..],
        [CarrierOutput::Push(_, Push::Ended { seq: Seq(5), .. })]
    ));
    let revoked = What::Revoked(v1::Revoked { token: 3, ..v1::Revoked::default() });
    assert!(matches!(
        line.hears(100, 6, revoked)[..],
        [CarrierOutput::Push(_, Push::Revoked { seq: Seq(6), .. })]
    ));
    let _ = line.submit(101, Call::KeepAlive, 1);
    let out =
        line.hears(101, 0, What::KeptAlive(v1::KeptAlive { id: 2, revoked: vec![6], recalled: vec![] }));
    assert!(
        matches!(out[..], [CarrierOutput::Push(_, Push::Revoked { .. }), CarrierOutput::Resolved(1, Ok(_))]),
        "the bad news first: {out:?}"
    );
}

#[test]
fn a_session_that_is_gone_answers_everything_and_is_not_attached_again() {
    let mut line = Line::open(spec());
    let _ = line.submit(100, acquire(1), 1);
    let _ = line.submit(100, Call::KeepAlive, 2);
    let out = line.hears(100, 0, What::SessionGone(v1::SessionGone {}));
    let gone =
        out.iter().filter(|o| matches!(o, CarrierOutput::Resolved(_, Ok(Answer::SessionGone)))).count();
    let lost =
        |o: &CarrierOutput<u32>| matches!(o, CarrierOutput::Push(_, Push::Lost(LossCause::SessionEnded)));
    assert!(gone == 2 && out.iter().any(lost), "{out:?}");
    assert!(matches!(
        line.submit(101, Call::KeepAlive, 3)[..],
        [CarrierOutput::Resolved(3, Ok(Answer::SessionGone))]
    ));
    assert!(!line.carrier.wants_stream());
}

#[test]
fn a_close_is_answered_by_the_end_of_its_session() {
    let mut line = Line::open(spec());
    let _ = line.submit(100, Call::Close, 1);
    assert!(matches!(line.sent()[..], [client_item::What::Close(_)]));
    let out = line.hears(100, 0, What::SessionGone(v1::SessionGone {}));
    assert!(matches!(out[..], [CarrierOutput::Resolved(1, Ok(Answer::Closed))]), "{out:?}");
}

#[test]
fn a_refused_open_returns_the_reason_and_is_not_repeated() {
    let mut line = Line::with(spec());
    let refused =
        v1::Refused { text: "too many".into(), secret_prefix: SECRET.prefix(), ..Default::default() };
    let item = v1::ServerItem { session: 0, seq: 0, what: Some(What::Refused(refused)) };
    let mut out = Vec::new();
    line.carrier.received(at(100), line.stream, vec![item], &mut out);
    let [CarrierOutput::Resolved(0, Ok(Answer::Refused(error)))] = &out[..] else { panic!("{out:?}") };
    assert_eq!(error.message, "too many");
    assert!(!line.carrier.wants_stream());
}

#[test]
fn an_invalid_item_ends_the_stream_and_loses_no_call() {
    let bad: [(u64, What); 5] = [
        (1, granted(0)),
        (1, What::Finished(v1::Finished { end: 77 })),
        (1, What::Done(v1::Done {})),
        (0, kept_alive(99)),
        (0, attached(5)),
    ];
    for (seq, what) in bad {
        let mut line = Line::open(spec());
        let _ = line.submit(100, acquire(1), 1);
        let out = line.hears(100, seq, what.clone());
        assert!(matches!(out[..], [CarrierOutput::EndStream(StreamEnding::Garbage(_))]), "{what:?}: {out:?}");
        assert_eq!(line.carrier.seen().garbage, 1);
        line.reconnect(101);
        let _ = line.hears(101, 0, attached(2));
        let out = line.hears(101, 1, granted(5));
        assert!(matches!(out[..], [CarrierOutput::Resolved(1, Ok(_))]), "{out:?}");
    }
}

#[test]
fn attaches_and_ends_of_streams_are_pushed_and_whether_an_end_was_announced() {
    let mut line = Line::open(spec());
    assert!(line.cut(105).is_empty());
    line.reconnect(106);
    let told = v1::Attached { attach: 2, recalled: vec![9], ..v1::Attached::default() };
    let out = line.hears(107, 0, What::Attached(told));
    assert!(matches!(out[..], [CarrierOutput::Push(_, Push::Recalled { seq: Seq(9) })]), "{out:?}");
    assert!(
        matches!(
            line.streams[..],
            [Push::Attached, Push::Detached { at: ended, announced: false }, Push::Attached] if ended == at(105)
        ),
        "{:?}",
        line.streams
    );
    let mut line = Line::open(spec());
    let end = v1::StreamEnd {
        reason: StreamEndReason::NotLeader.into(),
        leader: "b:1".into(),
        term: 7,
        text: String::new(),
    };
    let out = line.hears(105, 0, What::StreamEnd(end));
    let [CarrierOutput::EndStream(StreamEnding::Announced { leader, term: 7, .. })] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(leader.as_deref(), Some("b:1"));
    assert!(
        matches!(line.streams[..], [Push::Attached, Push::Detached { announced: true, .. }]),
        "{:?}",
        line.streams
    );
}

/// An unreachable leader is detected a sixth of the ttl after its first late answer, long before the next
/// renewal.
#[test]
fn a_command_with_a_late_answer_is_followed_by_one_keep_alive() {
    let half = Duration::from_millis(500);
    let mut line = Line::open(spec());
    let _ = line.wake(102);
    let _ = line.submit(103, acquire(1), 1);
    let _ = line.submit(103, acquire(2), 2);
    let _ = line.sent();
    assert_eq!(line.carrier.next_wake(), Some(at(103) + half));
    let mut out = Vec::new();
    line.carrier.wake(at(103) + half, &mut out);
    assert!(out.is_empty());
    assert!(matches!(line.sent()[..], [client_item::What::KeepAlive(v1::KeepAlive { id: 1 })]));
    // The acknowledgement resolves no call: the carrier sent this keep-alive on its own.
    assert!(line.hears(104, 0, kept_alive(1)).is_empty());
    let _ = line.wake(105);
    assert!(line.sent().is_empty(), "it answers, and need not say so again");
    let _ = line.submit(105, acquire(3), 3);
    let _ = line.sent();
    let _ = line.wake(106);
    assert!(matches!(line.sent()[..], [client_item::What::KeepAlive(_)]));
    assert_eq!(line.wake(108).len(), 3, "silent: the stream is over, and two acquires with it");
    assert_eq!(line.carrier.seen().silent, 1);
}

#[test]
fn no_keep_alive_follows_a_command_that_is_answered_or_queued_or_already_covered() {
    let mut line = Line::open(spec());
    let _ = line.submit(103, acquire(1), 1);
    let _ = line.submit(103, acquire(2), 2);
    let _ = line.hears(103, 1, granted(5));
    let _ = line.hears(103, 2, What::Queued(v1::Queued::default()));
    let _ = line.sent();
    let _ = line.wake(104);
    assert!(line.sent().is_empty());
    let _ = line.submit(105, finish(3, 1), 3);
    let _ = line.submit(105, Call::KeepAlive, 4);
    let _ = line.sent();
    let _ = line.wake(106);
    assert!(line.sent().is_empty());
    assert!(matches!(line.wake(107)[0], CarrierOutput::EndStream(StreamEnding::Silent)));
}

#[test]
fn a_command_without_a_stream_causes_no_keep_alive() {
    let mut line = Line::open(spec());
    let _ = line.submit(103, acquire(1), 1);
    let _ = line.cut(103);
    let _ = line.wake(104);
    line.reconnect(105);
    let _ = line.hears(105, 0, attached(2));
    assert_eq!(seqs(&line.sent()[1..]), [1]);
    assert_eq!(line.carrier.next_wake(), Some(at(105) + Duration::from_millis(500)), "from its sending on");
}

#[test]
fn the_addresses_of_the_nodes_are_forwarded() {
    let mut line = Line::open(spec());
    let nodes = v1::Nodes { addresses: vec!["a:1".into(), "b:2".into()], at: 9 };
    let out = line.hears(101, 0, What::Nodes(nodes));
    let [CarrierOutput::Nodes(addresses)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(addresses[..], ["a:1", "b:2"]);
}

#[test]
fn a_frame_never_exceeds_the_limits_of_the_service() {
    // Each case exceeds another limit of one frame: bytes, names, items.
    for (count, names, length) in [(300, 64, 500), (2_000, 64, 2), (20_000, 1, 5)] {
        split_into_frames(count, names, length);
    }
}

fn split_into_frames(count: u64, names: usize, length: usize) {
    let mut line = Line::open(spec());
    let name = |number| LockName::parse(&format!("{number:0>length$}")).unwrap();
    let names: Vec<LockName> = (0..names).map(name).collect();
    for seq in 1..=count {
        let Call::Acquire { request, .. } = acquire(seq) else { panic!() };
        let request = AcquireRequest { names: names.clone(), ..(*request).clone() };
        let call =
            Call::Acquire { seq: Seq(seq), done_through: Seq(0), request: request.into(), wait_left: None };
        let _ = line.submit(100, call, seq as u32);
    }
    let (mut sent, mut frames) = (0, 0);
    while line.carrier.has_items() {
        let frame = v1::ClientFrame { items: line.carrier.take_frame(line.stream) };
        assert!(prost_len(&frame) <= lockkeeper_wire::FRAME_BYTES_MAX);
        assert!(frame.items.len() <= lockkeeper_wire::FRAME_ITEMS_MAX);
        let names: usize = frame.items.iter().map(names_of).sum();
        assert!(names <= lockkeeper_wire::FRAME_NAMES_MAX);
        sent += frame.items.len();
        frames += 1;
    }
    assert_eq!(sent as u64, count);
    assert!(frames > 1, "it was too much for one");
}

fn names_of(item: &v1::ClientItem) -> usize {
    match &item.what {
        Some(v1::client_item::What::Acquire(acquire)) => acquire.names.len(),
        _ => 0,
    }
}

fn prost_len(frame: &v1::ClientFrame) -> usize {
    prost::Message::encoded_len(frame)
}

/// A service that a crowd keeps busy answers late: who gives up in between makes it later still.
#[test]
fn patience_with_attaches_doubles_until_one_is_answered() {
    let mut line = Line::open(Spec { ttl: Some(Duration::from_secs(30)), ..spec() });
    line.cut(100);
    let mut now = 101;
    for (attach, limit) in [(2, 5), (3, 5), (4, 10), (5, 10)] {
        line.reconnect(now);
        assert!(matches!(line.sent()[0], client_item::What::Attach(_)), "attach {attach}");
        assert!(line.wake(now + limit - 1).is_empty(), "attach {attach}");
        let ended = line.wake(now + limit);
        assert!(matches!(ended[..], [CarrierOutput::EndStream(StreamEnding::Silent)]), "attach {attach}");
        now += limit + 1;
    }
    line.reconnect(now);
    line.hears(now + 9, 0, attached(6));
    // Whoever is attached counts on an answer in time, and the next attach begins anew.
    line.cut(now + 9);
    line.reconnect(now + 10);
    assert!(matches!(line.wake(now + 15)[0], CarrierOutput::EndStream(StreamEnding::Silent)));
}
