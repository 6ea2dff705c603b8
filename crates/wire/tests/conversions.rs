//! Encoded values decode unchanged. Arbitrary and damaged bytes never cause a panic.

use lockkeeper_core::validate::{AcquireContent, SessionContent};
use lockkeeper_core::{
    Acquire, Break, Command, IfBusy, LockName, Mode, OpenSession, Rejection, Seq, SessionId, Token, limits,
};
use lockkeeper_wire::entry::{decode_batch, encode_batch};
use lockkeeper_wire::request::{ItemError, Open, Request, Secret, requests};
use lockkeeper_wire::store;
use lockkeeper_wire::v1::{self, client_item::What, server_item};
use proptest::prelude::*;
use prost::Message;

fn name() -> impl Strategy<Value = LockName> {
    "[a-z]{1,8}(/[a-z0-9é]{1,8}){0,3}".prop_map(|name| name.parse().expect("a legal name"))
}

fn token() -> impl Strategy<Value = Token> {
    (1..1u64 << 53).prop_map(|token| Token::new(token).expect("in range"))
}

/// Mostly allowed values; one in ten is arbitrary.
fn mostly<T: Arbitrary + Clone>(allowed: impl Strategy<Value = T>) -> impl Strategy<Value = T> {
    prop_oneof![9 => allowed, 1 => any::<T>()]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Shared),
        prop::option::of(mostly(1..=limits::PERMITS_MAX)).prop_map(|of| Mode::Permit { of }),
    ]
}

fn acquire() -> impl Strategy<Value = Acquire> {
    let if_busy = prop_oneof![
        Just(IfBusy::Fail),
        any::<(Option<u64>, Option<u32>)>()
            .prop_map(|(at_most_ms, waiters_max)| IfBusy::Wait { at_most_ms, waiters_max }),
    ];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), mostly(0..=limits::KEEP_CLOSED_MS_MAX));
    let names = prop_oneof![9 => prop::collection::vec(name(), 1..5), 1 => Just(Vec::new())];
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    let holding = prop::collection::vec(1..=limits::TOKEN_MAX, 0..4);
    let cached = (mostly(0..=u64::from(limits::SPARE_TOKENS_MAX)), holding);
    (numbers, names, mode(), any::<bool>(), if_busy, bytes.clone(), bytes, cached).prop_map(
        |(numbers, names, mode, subtree, if_busy, value, meta, (spare_tokens, holding))| {
            let (session, seq, done_through, keep_closed_ms) = numbers;
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
                spare_tokens: spare_tokens as u32,
                holding: holding.into_iter().filter_map(Token::new).collect(),
            }
        },
    )
}

/// Commands that a client may send for a session.
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
        (of.clone(), done.clone()).prop_map(|((session, seq, target), done_through)| Command::Settle {
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
        (any::<[u8; 32]>(), any::<[u64; 3]>(), text, text).prop_map(
            |(secret_hash, [ttl, delay, linger], label, identity)| {
                Command::OpenSession(OpenSession {
                    secret_hash,
                    ttl_ms: ttl,
                    lock_delay_ms: delay,
                    linger_ms: linger,
                    label: label.into(),
                    identity: identity.into(),
                })
            }
        ),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let durations = (
        mostly(limits::TTL_MS_MIN..=limits::TTL_MS_MAX),
        mostly(0..=limits::LOCK_DELAY_MS_MAX),
        mostly(0..=limits::TTL_MS_MIN),
    );
    prop_oneof![
        own_command().prop_map(|command| {
            let (session, seq) = match &command {
                Command::Acquire(it) => (it.session, it.seq),
                Command::Finish { session, seq, .. }
                | Command::SetValue { session, seq, .. }
                | Command::Downgrade { session, seq, .. }
                | Command::Settle { session, seq, .. } => (*session, *seq),
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
            Request::Attach { session: SessionId(session), secret: Secret(secret), attach }
        }),
        (any::<[u8; 16]>(), durations, any::<u64>(), "[a-z]{0,20}").prop_map(
            |(secret, (ttl_ms, lock_delay_ms, linger_ms), attach, label)| Request::Open(Open {
                secret: Secret(secret),
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
    fn log_entry_round_trips(commands in prop::collection::vec(command(), 0..8)) {
        let bytes = encode_batch(commands.iter());
        prop_assert_eq!(decode_batch(&bytes), Ok(commands));
    }

    #[test]
    fn request_round_trips(request in request()) {
        let bytes = v1::ClientItem::from(request.clone()).encode_to_vec();
        let item = v1::ClientItem::decode(&bytes[..]).expect("our own bytes");
        match (Request::try_from(item), check(&request)) {
            (Ok(read), Ok(())) => prop_assert_eq!(read, request),
            (Err(error), Err(rejection)) => {
                prop_assert!(error.to_string().contains(&rejection.to_string()), "{}", error);
            }
            (read, checked) => prop_assert!(false, "{:?}, {:?}", read, checked),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_batch(&bytes);
        let _ = store::Record::decode(&bytes[..]);
        if let Ok(frame) = v1::ClientFrame::decode(&bytes[..]) {
            frame.items.into_iter().for_each(|item| drop(Request::try_from(item)));
        }
    }

    #[test]
    fn damaged_frame_never_panics(
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

/// Checks the limits of the request's content.
fn check(request: &Request) -> Result<(), Rejection> {
    match request {
        Request::Open(open) => {
            let open = open.session([0; 32], "somebody");
            SessionContent::from(&open).check()
        }
        Request::Command { command: Command::Acquire(acquire), .. } => AcquireContent::from(acquire).check(),
        _ => Ok(()),
    }
}

/// Decodes an item of session 1 with this body.
fn item(what: What) -> Result<Request, ItemError> {
    Request::try_from(v1::ClientItem { session: 1, what: Some(what) })
}

fn acquire_with(change: fn(&mut v1::Acquire)) -> What {
    let mut acquire = v1::Acquire {
        seq: 7,
        names: vec!["a".into()],
        mode: v1::Mode::Exclusive.into(),
        ..v1::Acquire::default()
    };
    change(&mut acquire);
    What::Acquire(acquire)
}

#[test]
fn a_command_over_a_limit_is_refused_with_its_value_and_its_limit() {
    let cases = [
        (acquire_with(|it| it.mode = 9), "mode 9 is unknown"),
        (acquire_with(|it| it.names.clear()), "the request has 0 names, 1 to 64 are allowed"),
        (acquire_with(|it| it.names = vec!["a".into(); 65]), "the request has 65 names, 1 to 64 are allowed"),
        (acquire_with(|it| it.names = vec![String::new(); 9999]), "the request has 9999 names"),
        (acquire_with(|it| it.names = vec!["a//b".into()]), "\"a//b\" has an empty segment at byte 2"),
        (acquire_with(|it| it.names = vec!["x".repeat(513)]), "has 513 bytes, at most 512 are allowed"),
        (acquire_with(|it| it.value = vec![0; 4097]), "the value has 4097 bytes, at most 4096 are allowed"),
        (
            acquire_with(|it| it.meta = vec![0; 1025]),
            "the meta data have 1025 bytes, at most 1024 are allowed",
        ),
        (
            acquire_with(|it| it.keep_closed_ms = 86_400_001),
            "keep_closed is 86400001 ms, at most 86400000 ms",
        ),
        (
            acquire_with(|it| (it.mode, it.permits) = (v1::Mode::Permit.into(), Some(65_537))),
            "65537 permits were asked for, 1 to 65536 are allowed",
        ),
        (
            What::SetValue(v1::SetValue { seq: 7, value: vec![0; 4097], ..v1::SetValue::default() }),
            "the value has 4097 bytes, at most 4096 are allowed",
        ),
    ];
    for (what, text) in cases {
        match item(what) {
            Err(ItemError::Refused { session: 1, seq: 7, refused }) => {
                assert_eq!(refused.code(), v1::RefusedCode::Invalid);
                assert!(refused.text.contains(text), "{text}: {}", refused.text);
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_session_over_a_limit_is_refused_by_the_prefix_of_its_secret() {
    let open = v1::OpenSession {
        secret: (1..=16).collect(),
        ttl_ms: 5_000,
        label: "x".repeat(257),
        attach: 1,
        ..v1::OpenSession::default()
    };
    let (_, refusals) =
        requests(vec![v1::ClientItem { session: 0, what: Some(What::Open(open)) }]).expect("an answer");
    let [v1::ServerItem { session: 0, seq: 0, what: Some(server_item::What::Refused(refused)) }] =
        &refusals[..]
    else {
        panic!("{refusals:?}")
    };
    assert_eq!(refused.secret_prefix, u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(refused.text, "`label` has 257 bytes, at most 256 are allowed");
}

/// A refusal without session and seq would be taken for the answer to another request, so the whole frame is
/// malformed.
#[test]
fn an_item_that_names_no_command_is_malformed() {
    let attach = What::Attach(v1::AttachSession { secret: vec![1; 3], attach: 1 });
    let error = item(attach).unwrap_err();
    assert_eq!(error.to_string(), "malformed message: a session's secret has 3 bytes, it must have 16");
    let nameless = [
        v1::ClientItem { session: 1, what: None },
        v1::ClientItem { session: 0, what: Some(acquire_with(|it| it.mode = 9)) },
        v1::ClientItem { session: 1, what: Some(acquire_with(|it| (it.seq, it.mode) = (0, 9))) },
    ];
    for item in nameless {
        assert!(matches!(Request::try_from(item.clone()), Err(ItemError::Malformed(_))), "{item:?}");
    }
}
