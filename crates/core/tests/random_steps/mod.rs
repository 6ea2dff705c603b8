//! Random commands. They are generated as steps, such as "finish the third live request", and become commands
//! when they run, by the table's state at that time. So most commands have an effect, also in a history that
//! proptest has shortened.
//!
//! This module only chooses commands; it contains no expectation about the results.

use lockkeeper_core::snapshot::{Phase, SessionState};
use lockkeeper_core::{
    Acquire, Break, Command, IfBusy, LockName, Mode, ModeKind, OpenSession, Seq, SessionId, Snapshot, Token,
    WallTime,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A few names, some below others; `ab` begins with the text `a` but is not below it.
pub(crate) const NAMES: [&str; 6] = ["a", "a/b", "a/b/c", "b", "ab", "a/d"];

/// A step of a random history.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Open {
        secret: u8,
        /// The length of the identity.
        identity: usize,
        lock_delay_ms: u64,
        fault: u8,
    },
    End {
        session: u8,
        expire: bool,
    },
    TimeOut {
        session: u8,
        target: Target,
    },
    EndDelay(TokenPick),
    EndRevoked(TokenPick),
    Acquire {
        by: By,
        asked: Asked,
    },
    Finish {
        by: By,
        target: Target,
    },
    SetValue {
        by: By,
        target: Target,
        bytes: usize,
    },
    Downgrade {
        by: By,
        target: Target,
    },
    Settle {
        by: By,
        target: Target,
    },
    SetLimit {
        name: &'static str,
        limit: Option<u32>,
    },
    Break {
        name: &'static str,
        token: TokenPick,
        now: bool,
        reason_bytes: usize,
    },
    RaiseTokens(RaisePick),
    RaiseRules(u32),
    SetClock(u64),
    /// A delayed duplicate: an exact copy of an earlier command of the history.
    Again(usize),
    Restart,
    CheckToken {
        name: &'static str,
        token: TokenPick,
    },
}

/// Session, seq and `done_through` of a command.
#[derive(Clone, Debug)]
pub(crate) struct By {
    session: u8,
    seq: SeqPick,
    done: DonePick,
}

#[derive(Clone, Debug)]
enum SeqPick {
    Next,
    Gap,
    Old(u64),
}

#[derive(Clone, Debug)]
enum DonePick {
    Nothing,
    Behind(u64),
    TooFar,
}

#[derive(Clone, Debug)]
pub(crate) enum Target {
    Live(u8),
    Behind(u64),
    Ahead(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TokenPick {
    Live(u8),
    Behind(u64),
    Ahead,
}

#[derive(Clone, Debug)]
pub(crate) enum RaisePick {
    Up(u64),
    Exactly(u64),
}

/// The content of an acquire.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    names: Vec<&'static str>,
    mode: Mode,
    subtree: bool,
    if_busy: IfBusy,
    keep_closed_ms: u64,
    value_bytes: usize,
    meta_bytes: usize,
    spare_tokens: u32,
    /// Whether the caller declares the table's latest tokens as held: the number of them.
    holding: usize,
}

pub(crate) fn asked() -> impl Strategy<Value = Asked> {
    let names = prop_oneof![
        60 => vec(prop::sample::select(NAMES.as_slice()), 1..=1),
        30 => vec(prop::sample::select(NAMES.as_slice()), 2..=4),
        1 => vec(prop::sample::select(NAMES.as_slice()), 0..=0),
        1 => vec(prop::sample::select(NAMES.as_slice()), 64..=65),
    ];
    let mode = prop_oneof![
        3 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        3 => prop::sample::select([Some(1), Some(2), Some(2), Some(2), Some(3), None, Some(0), Some(65_537)].as_slice())
            .prop_map(|of| Mode::Permit { of }),
    ];
    let if_busy = prop_oneof![
        2 => Just(IfBusy::Fail),
        4 => Just(IfBusy::WAIT),
        3 => Just(IfBusy::Wait { at_most_ms: Some(7000), waiters_max: None }),
        1 => Just(IfBusy::Wait { at_most_ms: Some(0), waiters_max: None }),
        2 => (0..3_u32).prop_map(|most| IfBusy::Wait { at_most_ms: None, waiters_max: Some(most) }),
    ];
    let keep_closed =
        prop_oneof![6 => Just(0), 3 => Just(3000), 1 => Just(86_400_000), 1 => Just(86_400_001)];
    let value = prop_oneof![8 => Just(0), 2 => Just(3), 1 => Just(4096), 1 => Just(4097)];
    let meta = prop_oneof![8 => Just(0), 2 => Just(3), 1 => Just(1024), 1 => Just(1025)];
    let spare = prop_oneof![6 => Just(0), 5 => 1..4_u32, 1 => Just(1_024)];
    let holding = prop_oneof![8 => Just(0), 4 => 1..4_usize, 1 => Just(17)];
    let subtree = prop::bool::weighted(0.3);
    (names, mode, subtree, if_busy, keep_closed, value, meta, spare, holding).prop_map(
        |(names, mode, subtree, if_busy, keep_closed_ms, value_bytes, meta_bytes, spare_tokens, holding)| {
            Asked {
                names,
                // Only a part of the requests that can't be cached ask for it.
                spare_tokens: if meta_bytes == 3 || (mode == Mode::Exclusive && keep_closed_ms == 0) {
                    spare_tokens
                } else {
                    0
                },
                holding,
                mode,
                // A permit request with a subtree is always refused, so only the few with a value of 3 bytes
                // keep the flag.
                subtree: subtree && (!matches!(mode, Mode::Permit { .. }) || value_bytes == 3),
                if_busy,
                keep_closed_ms,
                value_bytes,
                meta_bytes,
            }
        },
    )
}

fn by() -> impl Strategy<Value = By> {
    let seq =
        prop_oneof![8 => Just(SeqPick::Next), 1 => Just(SeqPick::Gap), 2 => (0..5u64).prop_map(SeqPick::Old)];
    let done = prop_oneof![
        4 => Just(DonePick::Nothing),
        4 => (0..5u64).prop_map(DonePick::Behind),
        1 => Just(DonePick::TooFar),
    ];
    (0..4u8, seq, done).prop_map(|(session, seq, done)| By { session, seq, done })
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        6 => (0..6u8).prop_map(Target::Live),
        3 => (0..6u64).prop_map(Target::Behind),
        1 => (1..3u64).prop_map(Target::Ahead),
    ]
}

fn token_pick() -> impl Strategy<Value = TokenPick> {
    prop_oneof![
        8 => (0..8u8).prop_map(TokenPick::Live),
        2 => (0..6u64).prop_map(TokenPick::Behind),
        1 => Just(TokenPick::Ahead),
    ]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let name = || prop::sample::select(NAMES.as_slice());
    let limit =
        prop::sample::select([None, None, Some(0), Some(1), Some(2), Some(3), Some(65_537)].as_slice());
    let raise = prop_oneof![
        6 => (0..4u64).prop_map(RaisePick::Up),
        1 => prop::sample::select(
            [0, 1 << 52, (1 << 52) + 1, (1 << 53) - 3, (1 << 53) - 1, 1 << 53].as_slice()
        ).prop_map(RaisePick::Exactly),
    ];
    prop_oneof![
        6 => (0..4u8, 0..3usize, prop::sample::select([0, 4000].as_slice()), 0..20u8)
            .prop_map(|(secret, identity, lock_delay_ms, fault)| Step::Open { secret, identity, lock_delay_ms, fault }),
        2 => (0..4u8, any::<bool>()).prop_map(|(session, expire)| Step::End { session, expire }),
        4 => (0..4u8, target()).prop_map(|(session, target)| Step::TimeOut { session, target }),
        4 => token_pick().prop_map(Step::EndDelay),
        3 => token_pick().prop_map(Step::EndRevoked),
        40 => (by(), asked()).prop_map(|(by, asked)| Step::Acquire { by, asked }),
        20 => (by(), target()).prop_map(|(by, target)| Step::Finish { by, target }),
        3 => (by(), target(), prop::sample::select([0, 5, 4096, 4097].as_slice()))
            .prop_map(|(by, target, bytes)| Step::SetValue { by, target, bytes }),
        5 => (by(), target()).prop_map(|(by, target)| Step::Downgrade { by, target }),
        5 => (by(), target()).prop_map(|(by, target)| Step::Settle { by, target }),
        5 => (name(), limit).prop_map(|(name, limit)| Step::SetLimit { name, limit }),
        6 => (name(), token_pick(), any::<bool>(), prop::sample::select([0, 0, 0, 5, 257].as_slice()))
            .prop_map(|(name, token, now, reason_bytes)| Step::Break { name, token, now, reason_bytes }),
        1 => raise.prop_map(Step::RaiseTokens),
        1 => (0..6u32).prop_map(Step::RaiseRules),
        4 => (0..9u64).prop_map(Step::SetClock),
        8 => any::<usize>().prop_map(Step::Again),
        1 => Just(Step::Restart),
        4 => (name(), token_pick()).prop_map(|(name, token)| Step::CheckToken { name, token }),
    ]
}

/// Steps that accumulate waiters of all kinds, with an occasional step that may grant several of them.
pub(crate) fn crowding_step() -> impl Strategy<Value = Step> {
    let next = || (0..3u8).prop_map(|session| By { session, seq: SeqPick::Next, done: DonePick::Behind(0) });
    let waits = asked().prop_map(|asked| {
        let mode = match asked.mode {
            Mode::Permit { .. } => Mode::Permit { of: Some(2) },
            mode => mode,
        };
        let sensible = Asked {
            mode,
            // Half of those that ask for a cached hold don't wait.
            if_busy: if asked.spare_tokens == 1 {
                IfBusy::Fail
            } else {
                IfBusy::Wait { at_most_ms: Some(7000), waiters_max: None }
            },
            value_bytes: 0,
            ..asked
        };
        Asked { subtree: sensible.subtree && mode.kind() != ModeKind::Permit, meta_bytes: 0, ..sensible }
    });
    let live = || (0..40u8).prop_map(Target::Live);
    let token = || (0..40u8).prop_map(TokenPick::Live);
    prop_oneof![
        45 => (next(), waits).prop_map(|(by, asked)| Step::Acquire { by, asked }),
        20 => (next(), live()).prop_map(|(by, target)| Step::Finish { by, target }),
        8 => (next(), live()).prop_map(|(by, target)| Step::Downgrade { by, target }),
        8 => (next(), live()).prop_map(|(by, target)| Step::Settle { by, target }),
        6 => (0..3u8, live()).prop_map(|(session, target)| Step::TimeOut { session, target }),
        8 => token().prop_map(Step::EndDelay),
        2 => token().prop_map(Step::EndRevoked),
        3 => (prop::sample::select(NAMES.as_slice()), token(), any::<bool>())
            .prop_map(|(name, token, now)| Step::Break { name, token, now, reason_bytes: 0 }),
        4 => (prop::sample::select(NAMES.as_slice()), prop::sample::select([None, Some(1), Some(2), Some(4)].as_slice()))
            .prop_map(|(name, limit)| Step::SetLimit { name, limit }),
        1 => Just(Step::Restart),
        2 => (prop::sample::select(NAMES.as_slice()), token())
            .prop_map(|(name, token)| Step::CheckToken { name, token }),
    ]
}

/// As [`crowding_step`], mostly with permits of many at a few names, so that most wait for others to be
/// passed; and sessions end.
pub(crate) fn permit_step() -> impl Strategy<Value = Step> {
    let permits = (0..3u8, vec(prop::sample::select(["a", "b", "ab"].as_slice()), 1..=3)).prop_map(
        |(session, names)| {
            let by = By { session, seq: SeqPick::Next, done: DonePick::Behind(0) };
            let mode = Mode::Permit { of: Some(6) };
            let if_busy = IfBusy::WAIT;
            let asked = Asked {
                names,
                mode,
                subtree: false,
                if_busy,
                keep_closed_ms: 0,
                value_bytes: 0,
                meta_bytes: 0,
                spare_tokens: 0,
                holding: 0,
            };
            Step::Acquire { by, asked }
        },
    );
    prop_oneof![
        6 => permits,
        4 => crowding_step(),
        1 => (0..3u8, any::<bool>()).prop_map(|(session, expire)| Step::End { session, expire }),
        1 => (0..3u8, prop::sample::select([0, 4000].as_slice())).prop_map(|(secret, lock_delay_ms)| Step::Open {
            secret,
            identity: 0,
            lock_delay_ms,
            fault: u8::MAX,
        }),
    ]
}

/// As [`crowding_step`], mostly with waits without limit that declare holds, of sessions of two identities.
pub(crate) fn declaring_step() -> impl Strategy<Value = Step> {
    let waits = (0..4u8, asked(), 0..4_usize, any::<bool>()).prop_map(|(session, asked, holding, shared)| {
        let by = By { session, seq: SeqPick::Next, done: DonePick::Behind(0) };
        let mode = match (asked.mode, shared) {
            (Mode::Permit { .. }, _) => Mode::Permit { of: Some(2) },
            (_, true) => Mode::Shared,
            (_, false) => Mode::Exclusive,
        };
        let (keep_closed_ms, value_bytes, meta_bytes) = (0, 0, 0);
        let spare_tokens = if mode == Mode::Exclusive { asked.spare_tokens % 3 } else { 0 };
        let subtree = asked.subtree && mode.kind() != ModeKind::Permit;
        let plain = Asked { mode, subtree, keep_closed_ms, value_bytes, meta_bytes, spare_tokens, ..asked };
        Step::Acquire { by, asked: Asked { if_busy: IfBusy::WAIT, holding, ..plain } }
    });
    prop_oneof![
        10 => waits,
        4 => crowding_step(),
        1 => (0..4u8, 0..2usize).prop_map(|(secret, identity)| Step::Open {
            secret,
            identity,
            lock_delay_ms: 4000,
            fault: u8::MAX,
        }),
        1 => (0..4u8, any::<bool>()).prop_map(|(session, expire)| Step::End { session, expire }),
    ]
}

/// The steps that open three sessions for [`crowding_step`].
pub(crate) fn openings() -> impl Iterator<Item = Step> {
    (0..3).map(|secret| Step::Open { secret, identity: 0, lock_delay_ms: 0, fault: u8::MAX })
}

/// One of the live sessions, or rarely the last assigned session id, live or not.
fn pick_session(pick: u8, now: &Snapshot) -> (SessionId, Option<&SessionState>) {
    let session = now.sessions.get(pick as usize % (now.sessions.len() + usize::from(pick == 3)).max(1));
    (session.map_or(SessionId(now.last_session), |session| session.id), session)
}

fn pick_target(pick: &Target, session: SessionId, state: Option<&SessionState>, now: &Snapshot) -> Seq {
    let highest = state.map_or(0, |state| state.highest.0);
    let own: Vec<Seq> = now
        .requests
        .iter()
        .filter_map(|r| r.owner)
        .filter(|(s, _)| *s == session)
        .map(|(_, seq)| seq)
        .collect();
    match pick {
        Target::Live(pick) if !own.is_empty() => own[*pick as usize % own.len()],
        Target::Live(pick) => Seq(highest.saturating_sub(u64::from(*pick))),
        Target::Behind(by) => Seq(highest.saturating_sub(*by)),
        Target::Ahead(by) => Seq(highest + by),
    }
}

/// The token that a step selects, as a number, since it may be one that was never issued.
pub(crate) fn token(pick: TokenPick, now: &Snapshot) -> u64 {
    let live: Vec<u64> = now
        .requests
        .iter()
        .filter_map(|r| match r.phase {
            Phase::Waiting { .. } => None,
            Phase::Held { token, .. } | Phase::Revoked { token, .. } | Phase::Closed { token, .. } => {
                Some(token.get())
            }
        })
        .collect();
    match pick {
        TokenPick::Live(pick) if !live.is_empty() => live[pick as usize % live.len()],
        TokenPick::Live(pick) => now.last_token.saturating_sub(u64::from(pick)),
        TokenPick::Behind(by) => now.last_token.saturating_sub(by),
        TokenPick::Ahead => now.last_token + 1,
    }
}

fn legal_token(pick: TokenPick, now: &Snapshot) -> Token {
    Token::new(token(pick, now)).unwrap_or(Token::MIN)
}

fn numbers(by: &By, now: &Snapshot) -> (SessionId, Seq, Seq) {
    let (session, state) = pick_session(by.session, now);
    let highest = state.map_or(0, |state| state.highest.0);
    let seq = match by.seq {
        SeqPick::Next => highest + 1,
        SeqPick::Gap => highest + 2,
        SeqPick::Old(back) => highest.saturating_sub(back),
    };
    let done = match by.done {
        DonePick::Nothing => 0,
        DonePick::Behind(back) => highest.saturating_sub(back),
        DonePick::TooFar => highest + 1,
    };
    (session, Seq(seq), Seq(done))
}

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("a legal name")
}

/// The command for an acquire with this content.
pub(crate) fn acquire(session: SessionId, seq: Seq, done_through: Seq, asked: &Asked) -> Command {
    Command::Acquire(Acquire {
        session,
        seq,
        done_through,
        names: asked.names.iter().map(|text| name(text)).collect(),
        mode: asked.mode,
        subtree: asked.subtree,
        if_busy: asked.if_busy,
        keep_closed_ms: asked.keep_closed_ms,
        value: vec![b'v'; asked.value_bytes].into(),
        meta: vec![b'm'; asked.meta_bytes].into(),
        spare_tokens: asked.spare_tokens,
        holding: Box::default(),
    })
}

/// The command of a step in the current state. `None` for a step that is no command, and for a duplicate
/// while there is no earlier command.
pub(crate) fn command(step: Step, now: &Snapshot, history: &[Command]) -> Option<Command> {
    Some(match step {
        Step::Open { secret, identity, lock_delay_ms, fault } => Command::OpenSession(OpenSession {
            secret_hash: [secret; 32],
            ttl_ms: if fault == 0 { 999 } else { 10_000 },
            lock_delay_ms: if fault == 1 { 3_600_001 } else { lock_delay_ms },
            linger_ms: if fault == 2 { 10_001 } else { 1000 },
            label: "x".repeat(if fault == 3 { 257 } else { 4 }).into(),
            identity: "i".repeat(if fault == 4 { 257 } else { identity }).into(),
        }),
        Step::End { session, expire } => {
            let (session, _) = pick_session(session, now);
            if expire { Command::ExpireSession { session } } else { Command::CloseSession { session } }
        }
        Step::TimeOut { session, target } => {
            let (session, state) = pick_session(session, now);
            Command::TimeOut { session, target: pick_target(&target, session, state, now) }
        }
        Step::EndDelay(pick) => Command::EndDelay { token: legal_token(pick, now) },
        Step::EndRevoked(pick) => Command::EndRevoked { token: legal_token(pick, now) },
        Step::Acquire { by, asked } => {
            let (session, seq, done_through) = numbers(&by, now);
            let mut command = acquire(session, seq, done_through, &asked);
            if let Command::Acquire(it) = &mut command {
                let picks = (0..asked.holding).map(|pick| TokenPick::Live(pick as u8 * 3 + by.session));
                it.holding = picks.map(|pick| legal_token(pick, now)).collect();
            }
            command
        }
        Step::Finish { by, target } => {
            let (session, seq, done_through) = numbers(&by, now);
            let target = pick_target(&target, session, pick_session(by.session, now).1, now);
            Command::Finish { session, seq, target, done_through }
        }
        Step::SetValue { by, target, bytes } => {
            let (session, seq, done_through) = numbers(&by, now);
            let target = pick_target(&target, session, pick_session(by.session, now).1, now);
            Command::SetValue { session, seq, target, value: vec![b'w'; bytes].into(), done_through }
        }
        Step::Downgrade { by, target } => {
            let (session, seq, done_through) = numbers(&by, now);
            let target = pick_target(&target, session, pick_session(by.session, now).1, now);
            Command::Downgrade { session, seq, target, done_through }
        }
        Step::Settle { by, target } => {
            let (session, seq, done_through) = numbers(&by, now);
            let target = pick_target(&target, session, pick_session(by.session, now).1, now);
            Command::Settle { session, seq, target, done_through }
        }
        Step::SetLimit { name: text, limit } => Command::SetLimit { name: name(text), limit },
        Step::Break { name: text, token, now: at_once, reason_bytes } => Command::Break(Break {
            name: name(text),
            token: legal_token(token, now),
            reason: "r".repeat(reason_bytes).into(),
            by: "olga".into(),
            now: at_once,
        }),
        Step::RaiseTokens(RaisePick::Up(by)) => Command::RaiseTokens { above: now.last_token + by },
        Step::RaiseTokens(RaisePick::Exactly(above)) => Command::RaiseTokens { above },
        Step::RaiseRules(version) => Command::RaiseRules { version },
        Step::SetClock(now) => Command::SetClock { now: WallTime(now) },
        Step::Again(pick) if !history.is_empty() => history[pick % history.len()].clone(),
        Step::Again(_) | Step::Restart | Step::CheckToken { .. } => return None,
    })
}
