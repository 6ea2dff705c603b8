//! The commands that the exhaustive search tries in each state.
//!
//! The list of commands, the alphabet, is small; exhaustive.rs gives the omissions and their reasons.

use lockkeeper_core::snapshot::{Phase, SessionState};
use lockkeeper_core::{
    Acquire, Break, Command, Effects, IfBusy, LockName, Mode, OpenSession, Seq, SessionId, Snapshot, Table,
    Token,
};

const FAIL: IfBusy = IfBusy::Fail;
const WAIT: IfBusy = IfBusy::WAIT;
const WAIT_7S: IfBusy = IfBusy::Wait { at_most_ms: Some(7000), waiters_max: None };
const WAIT_SECOND: IfBusy = IfBusy::Wait { at_most_ms: None, waiters_max: Some(1) };
const PERMIT_1: Mode = Mode::Permit { of: Some(1) };
const PERMIT_2: Mode = Mode::Permit { of: Some(2) };
const KEEP_CLOSED_MS: u64 = 3000;

/// Names, mode, subtree, `keep_closed`, and the `if_busy` of each session.
type Letter = (&'static [&'static str], Mode, bool, bool, [IfBusy; 2]);

const ACQUIRES: [Letter; 6] = [
    (&["a"], Mode::Exclusive, true, false, [WAIT, WAIT_7S]),
    (&["a/b"], Mode::Exclusive, false, true, [FAIL, WAIT]),
    (&["a"], Mode::Shared, true, true, [FAIL, WAIT_7S]),
    (&["a/b"], Mode::Shared, false, false, [WAIT_7S, FAIL]),
    (&["a"], PERMIT_1, false, true, [WAIT_7S, FAIL]),
    (&["a/b", "a"], PERMIT_2, false, false, [WAIT, WAIT_SECOND]),
];

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("a legal name")
}

fn open(secret: u8, lock_delay_ms: u64) -> Command {
    Command::OpenSession(OpenSession {
        secret_hash: [secret; 32],
        ttl_ms: 10_000,
        lock_delay_ms,
        linger_ms: 0,
        label: "".into(),
        identity: "".into(),
    })
}

/// The initial state: two open sessions.
pub(crate) fn start() -> Snapshot {
    let mut table = Table::new(1);
    for command in [open(1, 4000), open(2, 0)] {
        let _opened = table.apply(command, &mut Effects::new());
    }
    table.snapshot()
}

/// All commands to try in a state.
pub(crate) fn commands(now: &Snapshot) -> Vec<Command> {
    let mut all = Vec::new();
    for session in &now.sessions {
        of_session(session, now, &mut all);
    }
    of_leader(now, &mut all);
    of_operator(now, &mut all);
    all.push(open(1, 4000));
    all.push(open(2, 0));
    all
}

fn acquire(session: SessionId, seq: Seq, done_through: Seq, letter: Letter) -> Command {
    let (names, mode, subtree, keep_closed, if_busy) = letter;
    Command::Acquire(Acquire {
        session,
        seq,
        done_through,
        names: names.iter().map(|text| name(text)).collect(),
        mode,
        subtree,
        if_busy: if_busy[usize::from(session.0.is_multiple_of(2))],
        keep_closed_ms: if keep_closed { KEEP_CLOSED_MS } else { 0 },
        value: Box::default(),
        meta: Box::default(),
        // One session asks for cached holds of the subtree.
        spare_tokens: u32::from(subtree && mode == Mode::Exclusive && !session.0.is_multiple_of(2)),
        holding: Box::default(),
    })
}

fn of_session(state: &SessionState, now: &Snapshot, all: &mut Vec<Command>) {
    let session = state.id;
    let (seq, none) = (Seq(state.highest.0 + 1), Seq(0));
    all.extend(ACQUIRES.iter().map(|letter| acquire(session, seq, none, *letter)));
    // An acquire with seq 1, which confirms all answers. It is a repetition unless the session has sent
    // nothing yet.
    all.push(acquire(session, Seq(1), state.highest, ACQUIRES[0]));
    // Finishes every target: live, ended, refused, dropped, and one never seen.
    for target in 1..=seq.0 + 1 {
        let target = Seq(target);
        if target != seq {
            all.push(Command::Finish { session, seq, target, done_through: none });
        }
    }
    for request in &now.requests {
        let Some((_, target)) = request.owner.filter(|(owner, _)| *owner == session) else { continue };
        all.push(Command::Downgrade { session, seq, target, done_through: none });
        if request.caching.is_held() {
            all.push(Command::Settle { session, seq, target, done_through: none });
        }
        all.push(Command::SetValue { session, seq, target, value: b"v"[..].into(), done_through: none });
        if matches!(request.phase, Phase::Waiting { .. }) {
            all.push(Command::TimeOut { session, target });
        }
    }
    all.push(Command::CloseSession { session });
    all.push(Command::ExpireSession { session });
}

/// Commands of the leader: those that name a token, with every token of a hold or closed hold, applicable or
/// not; and the expiry of a session that never existed.
fn of_leader(now: &Snapshot, all: &mut Vec<Command>) {
    for token in live_tokens(now) {
        all.push(Command::EndDelay { token });
        all.push(Command::EndRevoked { token });
    }
    all.push(Command::ExpireSession { session: SessionId(now.last_session + 1) });
}

fn of_operator(now: &Snapshot, all: &mut Vec<Command>) {
    let order = |name: &LockName, token, at_once| {
        let name = name.clone();
        Command::Break(Break { name, token, reason: "r".into(), by: "o".into(), now: at_once })
    };
    let below = name("a/b");
    for request in &now.requests {
        let Some(token) = crate::oracle::token_of(request) else { continue };
        all.extend([false, true].map(|at_once| order(&request.names[0], token, at_once)));
        // The holds that cover `a/b` differ from those that cover `a`.
        if request.names[0] != below {
            all.push(order(&below, token, true));
        }
    }
    for limit in [None, Some(1), Some(2)] {
        all.push(Command::SetLimit { name: name("a"), limit });
    }
    if now.last_token == 0 {
        all.push(Command::RaiseTokens { above: 10 });
    }
    all.push(Command::RaiseRules { version: 1 });
}

fn live_tokens(now: &Snapshot) -> impl Iterator<Item = Token> {
    now.requests.iter().filter_map(crate::oracle::token_of)
}
