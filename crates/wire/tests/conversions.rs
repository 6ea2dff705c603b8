//! What is written is read again as it was, and bytes that nobody wrote are an error, never a panic.

use lockkeeper_core::{Acquire, Break, Command, IfBusy, LockName, Mode, OpenSession, Seq, SessionId, Token};
use lockkeeper_wire::entry::{decode_batch, encode_batch};
use lockkeeper_wire::request::{Open, Request};
use lockkeeper_wire::{store, v1};
use proptest::prelude::*;
use prost::Message;

fn name() -> impl Strategy<Value = LockName> {
    "[a-z]{1,8}(/[a-z0-9é]{1,8}){0,3}".prop_map(|name| name.parse().expect("a legal name"))
}

fn token() -> impl Strategy<Value = Token> {
    (1..1u64 << 53).prop_map(|token| Token::new(token).expect("in range"))
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Shared),
        any::<Option<u32>>().prop_map(|of| Mode::Permit { of }),
    ]
}

fn acquire() -> impl Strategy<Value = Acquire> {
    let if_busy = prop_oneof![
        Just(IfBusy::Fail),
        any::<Option<u64>>().prop_map(|at_most_ms| IfBusy::Wait { at_most_ms }),
    ];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let names = prop::collection::vec(name(), 0..5);
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    (numbers, names, mode(), any::<bool>(), if_busy, bytes.clone(), bytes).prop_map(
        |((session, seq, done_through, keep_closed_ms), names, mode, subtree, if_busy, value, meta)| {
            Acquire {
                session: SessionId(session),
                seq: Seq(seq),
                done_through: Seq(done_through),
                names,
                mode,
                subtree,
                if_busy,
                keep_closed_ms,
                value: value.into(),
                meta: meta.into(),
            }
        },
    )
}

/// What a session may send.
fn own_command() -> impl Strategy<Value = Command> {
    let of = (any::<u64>().prop_map(SessionId), any::<u64>().prop_map(Seq), any::<u64>().prop_map(Seq));
    let done = any::<u64>().prop_map(Seq);
    prop_oneof![
        acquire().prop_map(Command::Acquire),
        (of.clone(), done.clone()).prop_map(|((session, seq, target), done_through)| Command::Finish {
            session,
            seq,
            target,
            done_through
        }),
        (of.clone(), done.clone()).prop_map(|((session, seq, target), done_through)| Command::Downgrade {
            session,
            seq,
            target,
            done_through
        }),
        (of, done, prop::collection::vec(any::<u8>(), 0..40)).prop_map(
            |((session, seq, target), done_through, value)| Command::SetValue {
                session,
                seq,
                target,
                value: value.into(),
                done_through
            }
        ),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let session = any::<u64>().prop_map(SessionId);
    let text = "[a-zß ]{0,20}";
    prop_oneof![
        own_command(),
        session.clone().prop_map(|session| Command::CloseSession { session }),
        session.clone().prop_map(|session| Command::ExpireSession { session }),
        (session, any::<u64>())
            .prop_map(|(session, target)| Command::TimeOut { session, target: Seq(target) }),
        token().prop_map(|token| Command::EndDelay { token }),
        token().prop_map(|token| Command::EndRevoked { token }),
        (name(), any::<Option<u32>>()).prop_map(|(name, limit)| Command::SetLimit { name, limit }),
        (name(), token(), text, text, any::<bool>()).prop_map(|(name, token, reason, by, now)| {
            Command::Break(Break { name, token, reason: reason.into(), by: by.into(), now })
        }),
        any::<u64>().prop_map(|above| Command::RaiseTokens { above }),
        any::<u32>().prop_map(|version| Command::RaiseRules { version }),
        (any::<[u8; 32]>(), any::<[u64; 3]>(), text).prop_map(
            |(secret_hash, [ttl, delay, linger], label)| {
                Command::OpenSession(OpenSession {
                    secret_hash,
                    ttl_ms: ttl,
                    lock_delay_ms: delay,
                    linger_ms: linger,
                    label: label.into(),
                })
            }
        ),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        own_command().prop_map(|command| {
            let (session, seq) = match &command {
                Command::Acquire(it) => (it.session, it.seq),
                Command::Finish { session, seq, .. }
                | Command::SetValue { session, seq, .. }
                | Command::Downgrade { session, seq, .. } => (*session, *seq),
                other => panic!("not a session's own: {other:?}"),
            };
            Request::Command { session, seq, command }
        }),
        any::<u64>().prop_map(|session| {
            let session = SessionId(session);
            Request::Command { session, seq: Seq(0), command: Command::CloseSession { session } }
        }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(session, id)| Request::KeepAlive { session: SessionId(session), id }),
        (any::<u64>(), any::<[u8; 16]>(), any::<u64>()).prop_map(|(session, secret, attach)| {
            Request::Attach { session: SessionId(session), secret, attach }
        }),
        (any::<[u8; 16]>(), any::<[u64; 4]>(), "[a-z]{0,20}").prop_map(
            |(secret, [ttl_ms, lock_delay_ms, linger_ms, attach], label)| Request::Open(Open {
                secret,
                ttl_ms,
                lock_delay_ms,
                linger_ms,
                label,
                attach
            })
        ),
    ]
}

proptest! {
    #[test]
    fn a_log_entry_is_read_as_it_was_written(commands in prop::collection::vec(command(), 0..8)) {
        let bytes = encode_batch(commands.iter());
        prop_assert_eq!(decode_batch(&bytes), Ok(commands));
    }

    #[test]
    fn a_request_is_read_as_it_was_written(request in request()) {
        let bytes = v1::ClientItem::from(request.clone()).encode_to_vec();
        let item = v1::ClientItem::decode(&bytes[..]).expect("our own bytes");
        prop_assert_eq!(Request::try_from(item), Ok(request));
    }

    #[test]
    fn bytes_that_nobody_wrote_are_an_error_at_worst(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_batch(&bytes);
        let _ = store::Record::decode(&bytes[..]);
        if let Ok(frame) = v1::ClientFrame::decode(&bytes[..]) {
            frame.items.into_iter().for_each(|item| drop(Request::try_from(item)));
        }
    }

    #[test]
    fn a_damaged_frame_is_an_error_at_worst(
        requests in prop::collection::vec(request(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let frame = v1::ClientFrame { items: requests.into_iter().map(v1::ClientItem::from).collect() };
        let mut bytes = frame.encode_to_vec();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(frame) = v1::ClientFrame::decode(&bytes[..]) {
            frame.items.into_iter().for_each(|item| drop(Request::try_from(item)));
        }
    }
}

/// The item of a session, with this body.
fn item(what: v1::client_item::What) -> Result<Request, lockkeeper_wire::Malformed> {
    Request::try_from(v1::ClientItem { session: 1, what: Some(what) })
}

#[test]
fn a_field_out_of_bounds_is_named_with_its_value_and_its_limit() {
    use v1::client_item::What;
    let acquire = |change: fn(&mut v1::Acquire)| {
        let mut acquire = v1::Acquire {
            names: vec!["a".into()],
            mode: v1::Mode::Exclusive.into(),
            ..v1::Acquire::default()
        };
        change(&mut acquire);
        item(What::Acquire(acquire)).unwrap_err().to_string()
    };
    let attach = |secret: Vec<u8>| item(What::Attach(v1::AttachSession { secret, attach: 1 }));
    assert_eq!(acquire(|it| it.mode = 9), "malformed message: mode 9 is unknown");
    assert_eq!(
        acquire(|it| it.names = vec!["a".into(); 100]),
        "malformed message: a request has 100 names, at most 64 are allowed"
    );
    assert!(acquire(|it| it.names = vec!["a//b".into()]).contains("segment"));
    assert_eq!(
        acquire(|it| it.value = vec![0; 100_000]),
        "malformed message: `value` has 100000 bytes, at most 4096 are allowed"
    );
    assert_eq!(
        attach(vec![1; 3]).unwrap_err().to_string(),
        "malformed message: a session's secret has 3 bytes, it must have 16"
    );
}

#[test]
fn what_is_a_little_over_a_limit_is_left_to_the_table_which_keeps_its_answer() {
    use v1::client_item::What;
    let acquire = v1::Acquire {
        names: vec!["a".into(); 65],
        mode: v1::Mode::Exclusive.into(),
        value: vec![0; 5_000],
        ..v1::Acquire::default()
    };
    assert!(item(What::Acquire(acquire)).is_ok(), "refused by the table, under its own seq (R6)");
}
