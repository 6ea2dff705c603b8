//! The fuzz target `core`: names, and snapshots as a backup or another node sends them.

use crate::name::LockName;
use crate::snapshot::Snapshot;
use crate::table::{Restorer, Table};
use crate::{Acquire, Command, Effects, IfBusy, Mode, OpenSession, Seq, SessionId, Token, WallTime};

/// Decodes `bytes`; the first one selects the decoder.
///
/// # Panics
/// If a decoder breaks its promise.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 2 {
        0 => name(bytes),
        _ => snapshot(usize::from(*what / 2) + 1, bytes),
    }
}

fn name(bytes: &[u8]) {
    let parsed = LockName::parse_bytes(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        assert_eq!(parsed.is_ok(), LockName::parse(text).is_ok());
    }
    if let Ok(name) = parsed {
        assert_eq!(name.as_str().as_bytes(), bytes);
    }
}

/// Reads a snapshot in pieces. One that is accepted makes a table with consistent indexes, which is written
/// as it was read.
fn snapshot(piece: usize, bytes: &[u8]) {
    let mut restorer = Restorer::new(7);
    for piece in bytes.chunks(piece) {
        if restorer.push(piece).is_err() {
            assert!(restorer.finish().is_err());
            return;
        }
    }
    let digest = restorer.digest();
    let Ok(mut table) = restorer.finish() else { return };
    crate::invariants::index(&table).expect("consistent indexes");
    let snapshot = Snapshot::decode(bytes).expect("the same bytes");
    assert_eq!(Some(snapshot.digest()), digest);
    assert_eq!(Snapshot::decode(&snapshot.encode()).as_ref(), Ok(&snapshot));
    // The table goes on with it.
    let sessions: Vec<SessionId> = snapshot.sessions.iter().map(|session| session.id).collect();
    let mut effects = Effects::default();
    for session in sessions {
        let _reply = table.apply_whole(Command::ExpireSession { session }, &mut effects);
    }
    crate::invariants::index(&table).expect("consistent indexes");
}

/// Valid inputs.
///
/// # Panics
/// Never.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let name = |text: &str| LockName::parse(text).expect("a name");
    let mut table = Table::new(1);
    let mut effects = Effects::default();
    let open = OpenSession {
        secret_hash: [3; 32],
        ttl_ms: 10_000,
        lock_delay_ms: 1_000,
        linger_ms: 100,
        label: "label".into(),
        identity: "billing".into(),
    };
    let _raised =
        table.apply_whole(Command::RaiseRules { version: crate::limits::RULES_VERSION }, &mut effects);
    let _set = table.apply_whole(Command::SetClock { now: WallTime(1_700_000_000_000) }, &mut effects);
    let _opened = table.apply_whole(Command::OpenSession(open), &mut effects);
    let cached = |seq, names: &str, if_busy| Acquire {
        session: SessionId(1),
        seq: Seq(seq),
        done_through: Seq(0),
        names: vec![name(names)],
        mode: Mode::Exclusive,
        subtree: false,
        if_busy,
        keep_closed_ms: 0,
        value: Box::default(),
        meta: Box::default(),
        spare_tokens: 7,
        holding: Box::default(),
    };
    for acquire in [cached(1, "e", IfBusy::WAIT), cached(2, "f", IfBusy::WAIT), cached(3, "f", IfBusy::Fail)]
    {
        let _reply = table.apply_whole(Command::Acquire(acquire), &mut effects);
    }
    let mut seq = 3;
    for (names, mode, subtree) in [
        (vec!["a"], Mode::Exclusive, false),
        (vec!["a", "b"], Mode::Exclusive, false),
        (vec!["c/d"], Mode::Shared, false),
        (vec!["c"], Mode::Exclusive, true),
        (vec!["gpu"], Mode::Permit { of: Some(3) }, false),
    ] {
        seq += 1;
        let acquire = Acquire {
            session: SessionId(1),
            seq: Seq(seq),
            done_through: Seq(0),
            names: names.into_iter().map(name).collect(),
            mode,
            subtree,
            if_busy: IfBusy::WAIT,
            keep_closed_ms: 500,
            value: b"value".as_slice().into(),
            meta: b"meta=1".as_slice().into(),
            spare_tokens: 0,
            holding: [Token::MIN].into(),
        };
        let _reply = table.apply_whole(Command::Acquire(acquire), &mut effects);
    }
    let _limit = table.apply_whole(Command::SetLimit { name: name("gpu"), limit: Some(4) }, &mut effects);
    let snapshot = table.snapshot().encode();
    vec![b"\0orders/42".to_vec(), [&[1], &snapshot[..]].concat(), [&[41], &snapshot[..]].concat()]
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("core", seeds(), run);
}
