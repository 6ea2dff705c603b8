//! Limits that take many commands to reach: each returns an error to the client that reached it, and changes
//! nothing for others (M1, R6, D4).
//!
//! Tested on the table alone, because the oracle is too slow for these numbers. Includes the limits of 2^20
//! on sessions and on the requests of one session; no release build is needed.

use lockkeeper_core::limits::{
    CLOSED_HOLDS_MAX, KEPT_ANSWERS_MAX, REQUESTS_PER_SESSION_MAX, SESSIONS_MAX, STORED_LIMITS_MAX,
    WAITERS_PER_NAME_MAX,
};
use lockkeeper_core::{
    Acquire, Command, Effects, End, IfBusy, LockName, Mode, OpenSession, Rejection, Reply, Seq, SessionId,
    Table,
};

const ALICE: SessionId = SessionId(1);
const BOB: SessionId = SessionId(2);
const NONE: Seq = Seq(0);

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("a legal name")
}

fn open(table: &mut Table, secret: usize) -> Reply {
    let mut secret_hash = [0; 32];
    secret_hash[..8].copy_from_slice(&secret.to_le_bytes());
    let open = OpenSession {
        secret_hash,
        ttl_ms: 10_000,
        lock_delay_ms: 1000,
        linger_ms: 0,
        label: Box::default(),
        identity: Box::default(),
    };
    table.apply(Command::OpenSession(open), &mut Effects::new())
}

/// A table with the sessions of Alice and Bob.
fn table() -> Table {
    let mut table = Table::new(1);
    assert_eq!(open(&mut table, 1), Reply::Opened { session: ALICE });
    assert_eq!(open(&mut table, 2), Reply::Opened { session: BOB });
    table
}

fn wants(session: SessionId, seq: usize, names: &[&str]) -> Acquire {
    Acquire {
        session,
        seq: Seq(seq as u64),
        done_through: NONE,
        names: names.iter().map(|text| name(text)).collect(),
        mode: Mode::Exclusive,
        subtree: false,
        if_busy: IfBusy::Fail,
        keep_closed_ms: 0,
        value: Box::default(),
        meta: Box::default(),
        spare_tokens: 0,
        holding: Box::default(),
    }
}

fn ask(table: &mut Table, acquire: Acquire) -> Reply {
    table.apply(Command::Acquire(acquire), &mut Effects::new())
}

fn finish(table: &mut Table, session: SessionId, seq: usize, target: usize) -> Reply {
    let (seq, target) = (Seq(seq as u64), Seq(target as u64));
    table.apply(Command::Finish { session, seq, target, done_through: NONE }, &mut Effects::new())
}

#[test]
fn session_with_too_many_kept_answers_is_refused_but_can_finish() {
    let mut table = table();
    assert!(matches!(ask(&mut table, wants(ALICE, 1, &["a"])), Reply::Granted(_)));
    assert!(matches!(ask(&mut table, wants(BOB, 1, &["b"])), Reply::Granted(_)));
    for seq in 2..2 + KEPT_ANSWERS_MAX {
        assert!(matches!(ask(&mut table, wants(BOB, seq, &["a"])), Reply::Busy { .. }));
    }
    let over = KEPT_ANSWERS_MAX + 2;
    // Alice's session is not affected.
    assert!(matches!(ask(&mut table, wants(ALICE, 2, &["c"])), Reply::Granted(_)));
    // This limit is checked before the content, and this refusal is not kept: a retry returns `gone` (R6).
    assert_eq!(ask(&mut table, wants(BOB, over, &[])), Reply::Refused(Rejection::TooManyKeptAnswers));
    assert_eq!(ask(&mut table, wants(BOB, over, &[])), Reply::Finished(End::Gone));
    // Retries of live requests or kept answers are answered as usual, and a Finish is never refused (R4).
    assert!(matches!(ask(&mut table, wants(BOB, 1, &["b"])), Reply::Granted(_)));
    assert_eq!(finish(&mut table, BOB, over + 1, 1), Reply::Finished(End::Released));
    assert_eq!(finish(&mut table, BOB, over + 1, 1), Reply::Finished(End::Released));
    // Once Bob's client confirms answers, the next command is executed.
    let confirming = Acquire { done_through: Seq(3), ..wants(BOB, over + 2, &["b"]) };
    assert!(matches!(ask(&mut table, confirming), Reply::Granted(_)));
}

#[test]
fn a_name_takes_a_limited_number_of_waiters() {
    let mut table = table();
    assert!(matches!(ask(&mut table, wants(ALICE, 1, &["a", "a/b"])), Reply::Granted(_)));
    let waits =
        |session, seq, names: &[&str]| Acquire { if_busy: IfBusy::WAIT, ..wants(session, seq, names) };
    for seq in 1..=WAITERS_PER_NAME_MAX {
        let queued = Reply::Queued { position: seq as u64 - 1, limits: Vec::new() };
        assert_eq!(ask(&mut table, waits(BOB, seq, &["a"])), queued);
    }
    let full = Reply::Refused(Rejection::TooManyWaiters { name: name("a") });
    assert_eq!(ask(&mut table, waits(ALICE, 2, &["a", "c"])), full);
    assert_eq!(finish(&mut table, BOB, WAITERS_PER_NAME_MAX + 1, 6), Reply::Finished(End::Left));
    assert_eq!(ask(&mut table, waits(ALICE, 2, &["a", "c"])), full, "it is kept (R6)");
    assert!(matches!(ask(&mut table, waits(BOB, WAITERS_PER_NAME_MAX + 2, &["a"])), Reply::Queued { .. }));
    // The limit refuses only requests that would wait: a request that does not wait is busy. Waiters are
    // counted for each exact name, so the queue of another name is not affected.
    assert!(matches!(ask(&mut table, wants(ALICE, 3, &["a"])), Reply::Busy { .. }));
    assert!(matches!(ask(&mut table, waits(ALICE, 4, &["a/b"])), Reply::Queued { position: 0, .. }));
    // When a waiter leaves, one more may wait.
    assert_eq!(finish(&mut table, BOB, WAITERS_PER_NAME_MAX + 3, 7), Reply::Finished(End::Left));
    assert!(matches!(ask(&mut table, waits(ALICE, 5, &["a"])), Reply::Queued { .. }));
    assert_eq!(ask(&mut table, waits(ALICE, 6, &["a"])), full);
}

#[test]
fn the_table_stores_a_limited_number_of_limits() {
    let mut table = table();
    let set = |table: &mut Table, text: &str, limit| {
        table.apply(Command::SetLimit { name: name(text), limit }, &mut Effects::new())
    };
    for number in 0..STORED_LIMITS_MAX {
        assert_eq!(set(&mut table, &format!("n{number}"), Some(3)), Reply::Done);
    }
    let full = Reply::Refused(Rejection::TooManyStoredLimits);
    assert_eq!(set(&mut table, "more", Some(3)), full);
    assert_eq!(set(&mut table, "n7", Some(4)), Reply::Done, "one that is stored may change");
    // An implied limit does not count as stored, and can't become a stored one while there are too many.
    let permit = Acquire { mode: Mode::Permit { of: Some(2) }, ..wants(ALICE, 1, &["p"]) };
    assert!(matches!(ask(&mut table, permit), Reply::Granted(_)));
    assert_eq!(set(&mut table, "p", Some(5)), full);
    assert_eq!(set(&mut table, "n7", None), Reply::Done);
    assert_eq!(set(&mut table, "p", Some(5)), Reply::Done);
    assert_eq!(set(&mut table, "more", Some(3)), full);
}

#[test]
fn the_table_keeps_a_limited_number_of_holds_closed() {
    let mut table = table();
    let keeps = |session, seq, text: &str| Acquire { keep_closed_ms: 1000, ..wants(session, seq, &[text]) };
    // Half of the counted holds are closed, the other half live with `keep_closed`.
    let half = CLOSED_HOLDS_MAX / 2;
    for seq in 1..=CLOSED_HOLDS_MAX {
        let mut acquire = keeps(ALICE, seq, &format!("n{seq}"));
        acquire.done_through = Seq(seq as u64 - 1);
        assert!(matches!(ask(&mut table, acquire), Reply::Granted(_)));
    }
    for target in 1..=half {
        let (seq, target) = (Seq((CLOSED_HOLDS_MAX + target) as u64), Seq(target as u64));
        let done_through = Seq(seq.0 - 1);
        let finish = Command::Finish { session: ALICE, seq, target, done_through };
        assert_eq!(table.apply(finish, &mut Effects::new()), Reply::Finished(End::Released));
    }
    let full = Reply::Refused(Rejection::TooManyClosedHolds);
    assert_eq!(ask(&mut table, keeps(BOB, 1, "x")), full);
    assert!(
        matches!(ask(&mut table, wants(BOB, 2, &["x"])), Reply::Granted(_)),
        "only keep_closed is refused"
    );
    // Holds closed by lock-delay are never refused, and count (D4).
    assert_eq!(table.apply(Command::ExpireSession { session: BOB }, &mut Effects::new()), Reply::SessionGone);
    assert_eq!(open(&mut table, 3), Reply::Opened { session: SessionId(3) });
    let token = |number| lockkeeper_core::Token::new(number).expect("a token");
    assert_eq!(table.apply(Command::EndDelay { token: token(1) }, &mut Effects::new()), Reply::Done);
    assert_eq!(ask(&mut table, keeps(SessionId(3), 1, "y")), full);
    assert_eq!(table.apply(Command::EndDelay { token: token(2) }, &mut Effects::new()), Reply::Done);
    assert!(matches!(ask(&mut table, keeps(SessionId(3), 2, "y")), Reply::Granted(_)));
    assert_eq!(ask(&mut table, keeps(SessionId(3), 3, "z")), full);
}

#[test]
fn a_session_has_a_limited_number_of_requests() {
    let mut table = table();
    for seq in 1..=REQUESTS_PER_SESSION_MAX {
        assert!(matches!(ask(&mut table, wants(ALICE, seq, &[&format!("n{seq}")])), Reply::Granted(_)));
    }
    let over = REQUESTS_PER_SESSION_MAX + 1;
    let full = Reply::Refused(Rejection::TooManyRequests);
    assert_eq!(ask(&mut table, wants(ALICE, over, &["x"])), full);
    assert!(matches!(ask(&mut table, wants(BOB, 1, &["x"])), Reply::Granted(_)));
    assert_eq!(finish(&mut table, ALICE, over + 1, 1), Reply::Finished(End::Released));
    assert!(matches!(ask(&mut table, wants(ALICE, over + 2, &["y"])), Reply::Granted(_)));
    assert_eq!(ask(&mut table, wants(ALICE, over + 3, &["z"])), full);
}

#[test]
fn the_table_has_a_limited_number_of_sessions() {
    let mut table = table();
    for secret in 3..=SESSIONS_MAX {
        assert_eq!(open(&mut table, secret), Reply::Opened { session: SessionId(secret as u64) });
    }
    assert_eq!(open(&mut table, usize::MAX), Reply::Refused(Rejection::TooManySessions));
    assert_eq!(
        open(&mut table, 5),
        Reply::Opened { session: SessionId(5) },
        "a known secret finds its session (S1)"
    );
    assert_eq!(table.apply(Command::CloseSession { session: BOB }, &mut Effects::new()), Reply::SessionGone);
    let next = SessionId(SESSIONS_MAX as u64 + 1);
    assert_eq!(open(&mut table, usize::MAX), Reply::Opened { session: next });
}
