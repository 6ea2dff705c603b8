//! A damaged, truncated or crafted snapshot is refused with an error, without a panic, and with memory
//! proportional to its size (P10).
//!
//! There are two kinds: changed bytes, most of which the digest at the end detects; and well-formed but
//! inconsistent streams, which only the checks of restore detect. Every accepted stream must give a working
//! table.

#[allow(dead_code, reason = "only steps that change a table are of use here")]
mod random_steps;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockkeeper_core::snapshot::{Caching, EndingState, FreedState, LimitState, Phase, RequestState};
use lockkeeper_core::{
    Acquire, Command, Effects, IfBusy, LockName, Mode, ModeKind, OpenSession, Restorer, Seq, SessionId,
    Snapshot, SnapshotError, Table, Ticket, Token, WallTime, invariants,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;

/// The system allocator, recording the largest allocation of each thread.
struct Watching;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn saw(size: usize) {
    // A thread that is being destroyed has no cell; its allocations are not recorded.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: every call is passed to the system allocator unchanged; the cell allocates nothing.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        saw(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`, which is also that of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` or `realloc` here, and so from the system allocator, with this
        // layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        saw(size);
        // SAFETY: `pointer` came from `alloc` or `realloc` here, and so from the system allocator, with this
        // layout, and the caller guarantees a valid `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/hostile_snapshots.regressions",
        ))),
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = lockkeeper_corpus::size(cases / 40, cases / 3, cases);
    }
    config
}

/// A snapshot of a table after a random history.
fn some_snapshot() -> impl Strategy<Value = Snapshot> {
    let plain = vec(random_steps::step(), 1..60);
    let crowded = vec(random_steps::crowding_step(), 1..60);
    prop_oneof![plain, crowded].prop_map(|steps| {
        let mut table = Table::new(1);
        let mut history = Vec::new();
        for step in random_steps::openings().chain(steps) {
            if let Some(command) = random_steps::command(step, &table.snapshot(), &history) {
                let _ = table.apply(command.clone(), &mut Effects::new());
                history.push(command);
            }
        }
        table.snapshot()
    })
}

/// Restores a stream in pieces of `cut` bytes, and checks the size of the largest allocation.
fn restore(bytes: &[u8], cut: usize) -> Result<Table, SnapshotError> {
    LARGEST.set(0);
    let mut restorer = Restorer::new(1);
    let pushed = bytes.chunks(cut).try_for_each(|piece| restorer.push(piece));
    let result = restorer.finish();
    if let Err(why) = pushed {
        assert_eq!(result.as_ref().err(), Some(&why), "a restorer that has failed stays so");
    }
    let _ = Snapshot::decode(bytes);
    // The bound allows for lists with elements of one byte in the input, for the initial capacity of slabs,
    // and for the bitmap of a permit, which takes up to 8 KiB.
    let bound = 64 * bytes.len() + (1 << 14);
    assert!(LARGEST.get() <= bound, "{} bytes asked for at once, for {}", LARGEST.get(), bytes.len());
    result
}

#[derive(Clone, Debug)]
enum Damage {
    Cut(Index),
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        at().prop_map(Damage::Cut),
        (at(), 1..=255_u8).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        (at(), vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (at(), 1..80_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        (at(), 1..80_usize).prop_map(|(at, count)| Damage::Repeat(at, count)),
    ]
}

fn harm(bytes: &mut Vec<u8>, damage: Damage) {
    if bytes.is_empty() {
        return;
    }
    let range = |at: Index, count: usize, length: usize| {
        let at = at.index(length);
        at..(at + count).min(length)
    };
    match damage {
        Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Damage::Flip(at, bits) => {
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
        }
        Damage::Insert(at, more) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, more);
        }
        Damage::Remove(at, count) => drop(bytes.drain(range(at, count, bytes.len()))),
        Damage::Repeat(at, count) => {
            let again = bytes[range(at, count, bytes.len())].to_vec();
            let at = at.index(bytes.len());
            bytes.splice(at..at, again);
        }
    }
}

proptest! {
    #![proptest_config(config(4_000))]

    #[test]
    fn damaged_bytes_are_refused(
        snapshot in some_snapshot(),
        damages in vec(damage(), 1..4),
        cut in 1..100_usize,
    ) {
        let good = snapshot.encode();
        let mut bad = good.clone();
        damages.into_iter().for_each(|damage| harm(&mut bad, damage));
        let result = restore(&bad, cut);
        // A damaged stream may still be valid, if two damages cancel out or two whole items were swapped.
        if let Ok(table) = result {
            prop_assert_eq!(table.snapshot(), snapshot);
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..400), cut in 1..100_usize) {
        prop_assert!(restore(&bytes, cut).is_err());
    }
}

/// One inconsistency: a field gets a value from elsewhere in the snapshot or an extreme value, or an entry is
/// removed, duplicated, added, or moved to the ended sessions.
#[derive(Clone, Debug)]
enum Lie {
    Counter(u8, u64),
    Ticket(Index, Index),
    Token(Index, u64),
    SameToken(Index, Index),
    Owner(Index, u64, u64),
    Mode(Index, u8),
    Subtree(Index),
    Names(Index, Index),
    Slot(Index, u32),
    ForgetSession(Index),
    ForgetLimit(Index),
    Ended(Index, u64),
    Freed(Index, u64, u64),
    Limit(Index, u32),
    Stored(Index),
    Kept(Index, u64),
    Until(Index, u64),
    Done(Index, u64),
    KeepClosed(Index, u64),
    Twice(Index, u8),
}

fn lie() -> impl Strategy<Value = Lie> {
    let at = any::<Index>;
    let number = || prop_oneof![0..12_u64, Just(1 << 53), Just(u64::MAX)];
    let slot = prop_oneof![0..4_u32, Just(65_536), Just(u32::MAX)];
    prop_oneof![
        (0..4_u8, number()).prop_map(|(which, to)| Lie::Counter(which, to)),
        (at(), at()).prop_map(|(a, b)| Lie::Ticket(a, b)),
        (at(), number()).prop_map(|(at, to)| Lie::Token(at, to)),
        (at(), at()).prop_map(|(a, b)| Lie::SameToken(a, b)),
        (at(), number(), number()).prop_map(|(at, session, seq)| Lie::Owner(at, session, seq)),
        (at(), 0..3_u8).prop_map(|(at, mode)| Lie::Mode(at, mode)),
        at().prop_map(Lie::Subtree),
        (at(), at()).prop_map(|(a, b)| Lie::Names(a, b)),
        (at(), slot).prop_map(|(at, slot)| Lie::Slot(at, slot)),
        at().prop_map(Lie::ForgetSession),
        at().prop_map(Lie::ForgetLimit),
        (at(), number()).prop_map(|(at, delay)| Lie::Ended(at, delay)),
        (at(), number(), number()).prop_map(|(at, number, after)| Lie::Freed(at, number, after)),
        (at(), prop_oneof![0..3_u32, Just(65_537)]).prop_map(|(at, to)| Lie::Limit(at, to)),
        at().prop_map(Lie::Stored),
        (at(), number()).prop_map(|(at, to)| Lie::Kept(at, to)),
        (at(), number()).prop_map(|(at, to)| Lie::Until(at, to)),
        (at(), number()).prop_map(|(at, to)| Lie::Done(at, to)),
        (at(), number()).prop_map(|(at, to)| Lie::KeepClosed(at, to)),
        (at(), 0..3_u8).prop_map(|(at, what)| Lie::Twice(at, what)),
    ]
}

fn pick<T>(list: &mut [T], at: Index) -> Option<&mut T> {
    if list.is_empty() { None } else { Some(&mut list[at.index(list.len())]) }
}

fn token_of(request: &mut RequestState) -> Option<(&mut Token, &mut Vec<u32>)> {
    match &mut request.phase {
        Phase::Waiting { .. } => None,
        Phase::Held { token, slots }
        | Phase::Revoked { token, slots, .. }
        | Phase::Closed { token, slots, .. } => Some((token, slots)),
    }
}

/// Applies the change; `None` if the snapshot has no entry to change.
fn tell(snapshot: &mut Snapshot, lie: Lie) -> Option<()> {
    let Snapshot {
        rules,
        last_token,
        last_ticket,
        last_session,
        sessions,
        requests,
        limits,
        ending,
        freed,
        ..
    } = snapshot;
    match lie {
        Lie::Counter(0, to) => *rules = to as u32,
        Lie::Counter(1, to) => *last_token = to,
        Lie::Counter(2, to) => *last_ticket = to,
        Lie::Counter(_, to) => *last_session = to,
        Lie::Ticket(a, b) => {
            let Ticket(other) = pick(requests, b)?.ticket;
            pick(requests, a)?.ticket = Ticket(other);
        }
        Lie::Token(at, to) => *token_of(pick(requests, at)?)?.0 = Token::new(to)?,
        Lie::SameToken(a, b) => {
            let other = *token_of(pick(requests, b)?)?.0;
            *token_of(pick(requests, a)?)?.0 = other;
        }
        Lie::Owner(at, 0, _) => pick(requests, at)?.owner = None,
        Lie::Owner(at, session, seq) => pick(requests, at)?.owner = Some((SessionId(session), Seq(seq))),
        Lie::Mode(at, mode) => {
            let modes = [ModeKind::Exclusive, ModeKind::Shared, ModeKind::Permit];
            pick(requests, at)?.mode = modes[usize::from(mode)];
        }
        Lie::Subtree(at) => pick(requests, at)?.subtree ^= true,
        Lie::Names(a, b) => {
            let more = pick(requests, b)?.names.clone();
            pick(requests, a)?.names.extend(more);
        }
        Lie::Slot(at, to) => {
            let (_, slots) = token_of(pick(requests, at)?)?;
            match slots.first_mut() {
                Some(slot) => *slot = to,
                None => slots.push(to),
            }
        }
        Lie::ForgetSession(at) if !sessions.is_empty() => drop(sessions.remove(at.index(sessions.len()))),
        Lie::ForgetLimit(at) if !limits.is_empty() => drop(limits.remove(at.index(limits.len()))),
        Lie::Ended(at, delay_ms) if !sessions.is_empty() => {
            let session = sessions.remove(at.index(sessions.len()));
            ending.push(EndingState { session, delay_ms });
        }
        Lie::ForgetSession(_) | Lie::ForgetLimit(_) | Lie::Ended(..) => return None,
        Lie::Freed(at, number, after) => {
            let (name, after) = (pick(requests, at)?.names.first()?.clone(), Ticket(after));
            freed.push(FreedState { number, name, subtree: false, kind: ModeKind::Exclusive, after });
        }
        Lie::Limit(at, to) => pick(limits, at)?.limit = to,
        Lie::Stored(at) => pick(limits, at)?.stored ^= true,
        Lie::Kept(at, to) => pick(&mut pick(sessions, at)?.kept, at)?.seq = Seq(to),
        Lie::Until(at, to) => pick(&mut pick(sessions, at)?.kept, at)?.until = Some(Seq(to)),
        Lie::Done(at, to) => pick(sessions, at)?.done_through = Seq(to),
        Lie::KeepClosed(at, to) => pick(requests, at)?.keep_closed_ms = to,
        Lie::Twice(at, 0) => {
            let again = pick(sessions, at)?.clone();
            sessions.push(again);
        }
        Lie::Twice(at, 1) => {
            let again = pick(requests, at)?.clone();
            requests.push(again);
        }
        Lie::Twice(at, _) => {
            let again = pick(limits, at)?.clone();
            limits.push(again);
        }
    }
    Some(())
}

/// Ends all sessions and closed holds. No request may remain, and no command may panic.
fn empty(table: &mut Table) {
    let sessions: Vec<SessionId> = table.sessions().map(|session| session.id).collect();
    for session in sessions {
        let _ = table.apply(Command::CloseSession { session }, &mut Effects::new());
    }
    for mut request in table.snapshot().requests {
        if let Some((&mut token, _)) = token_of(&mut request) {
            let _ = table.apply(Command::EndDelay { token }, &mut Effects::new());
        }
    }
    assert_eq!(table.request_count(), 0);
}

proptest! {
    #![proptest_config(config(8_000))]

    #[test]
    fn inconsistent_snapshots_are_refused_and_others_give_a_working_table(
        snapshot in some_snapshot(),
        lies in vec(lie(), 1..3),
        cut in 1..100_usize,
    ) {
        let mut told = snapshot;
        for lie in lies {
            let _ = tell(&mut told, lie);
        }
        let restored = restore(&told.encode(), cut);
        let at_once = Table::restore(&told, 1);
        prop_assert_eq!(restored.as_ref().err().is_some(), at_once.err().is_some());
        if let Ok(mut table) = restored {
            prop_assert_eq!(table.snapshot().encode(), Snapshot::decode(&told.encode()).unwrap().encode());
            invariants::index(&table).map_err(TestCaseError::fail)?;
            resume(&mut table);
            invariants::p2_tokens(&table.snapshot()).map_err(TestCaseError::fail)?;
            invariants::p7_answers(&table.snapshot()).map_err(TestCaseError::fail)?;
            empty(&mut table);
        }
    }
}

/// Drains the backlog: a snapshot may contain confirmed answers that were not dropped yet.
fn resume(table: &mut Table) {
    for _ in 0..1_000 {
        if !table.has_backlog() {
            return;
        }
        let _ = table.apply(Command::Resume, &mut Effects::new());
    }
    panic!("a backlog that does not end");
}

/// A snapshot of a table with one session, which has a kept answer, two holds of a lock with two permits, a
/// waiter for a third permit, and a shared hold; and with a closed hold.
fn full() -> Snapshot {
    let mut table = Table::new(1);
    let steps = [
        Command::OpenSession(OpenSession {
            secret_hash: [1; 32],
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            linger_ms: 0,
            label: "".into(),
            identity: Box::default(),
        }),
        acquire(1, "p", Mode::Permit { of: Some(2) }, 0),
        acquire(2, "p", Mode::Permit { of: Some(2) }, 0),
        acquire(3, "p", Mode::Permit { of: None }, 0),
        acquire(4, "e", Mode::Exclusive, 5000),
        Command::Finish { session: SessionId(1), seq: Seq(5), target: Seq(4), done_through: Seq(0) },
        acquire(6, "s", Mode::Shared, 0),
    ];
    for command in steps {
        let _ = table.apply(command, &mut Effects::new());
    }
    let snapshot = table.snapshot();
    assert_eq!((snapshot.requests.len(), snapshot.sessions[0].kept.len()), (5, 1), "{snapshot:?}");
    snapshot
}

fn acquire(seq: u64, name: &str, mode: Mode, keep_closed_ms: u64) -> Command {
    Command::Acquire(Acquire {
        session: SessionId(1),
        seq: Seq(seq),
        done_through: Seq(0),
        names: vec![LockName::parse(name).expect("a legal name")],
        mode,
        subtree: false,
        if_busy: IfBusy::WAIT,
        keep_closed_ms,
        value: Box::default(),
        meta: Box::default(),
        spare_tokens: 0,
        holding: Box::default(),
    })
}

fn freed(number: u64, after: u64) -> FreedState {
    let name = LockName::parse("freed").expect("a legal name");
    FreedState { number, name, subtree: false, kind: ModeKind::Shared, after: Ticket(after) }
}

/// Each single inconsistency is refused with an error that names it.
#[test]
fn every_inconsistency_has_its_own_error() {
    type Change = fn(&mut Snapshot);
    let cases: [(Change, &str); 35] = [
        (|s| s.rules = 6, "rules version 6"),
        (|s| s.requests[0].caching = Caching::Cached, "is cached although it can't be"),
        (|s| s.requests[0].caching = Caching::Try, "is cached although it can't be"),
        (|s| s.requests[2].spare_tokens = 1, "is cached although it can't be"),
        (|s| s.requests[0].holding = [Token::MIN].into(), "is cached although it can't be"),
        (
            |s| {
                s.rules = 4;
                s.requests[2].holding = [Token::MIN].into();
            },
            "is cached although it can't be",
        ),
        (|s| s.requests[0].spare_tokens = 1, "two holds have the token 2"),
        (
            |s| {
                s.rules = 1;
                s.sessions[0].identity = "billing".into();
            },
            "session s1 has an identity, which rules version 1 does not know",
        ),
        (|s| (s.rules, s.clock) = (2, WallTime(7)), "it has a time, which rules version 2 does not know"),
        (
            |s| (s.rules, s.requests[0].since) = (2, WallTime(7)),
            "it has a time, which rules version 2 does not know",
        ),
        (|s| s.last_token = 1 << 53, "a counter is too high"),
        (|s| s.last_ticket = u64::MAX, "a counter is too high"),
        (|s| s.last_session = u64::MAX, "a counter is too high"),
        (|s| s.last_session = 0, "session s1 is above the counter 0"),
        (|s| s.last_ticket = 1, "a ticket above the counter"),
        (|s| s.last_token = 1, "is above the counter 1"),
        (|s| s.sessions[0].done_through = Seq(9), "confirmed more than was seen"),
        (
            |s| {
                let twice = EndingState { session: s.sessions[0].clone(), delay_ms: 0 };
                s.ending.push(twice);
            },
            "session s1 or its secret appears twice",
        ),
        (|s| s.freed.push(freed(1 << 63, 0)), "has a number too high, or twice"),
        (|s| s.freed.push(freed(0, 99)), "has a number too high, or twice"),
        (|s| s.freed.extend([freed(0, 0), freed(0, 0)]), "has a number too high, or twice"),
        (|s| s.sessions[0].kept[0].seq = Seq(7), "keeps an answer to 7 out of place"),
        (|s| s.sessions[0].kept[0].seq = Seq(2), "the live requests of session s1 have wrong numbers"),
        (|s| s.requests[4].owner = Some((SessionId(1), Seq(7))), "have wrong numbers"),
        (|s| s.requests[1].owner = Some((SessionId(1), Seq(1))), "have wrong numbers"),
        (|s| s.requests[4].owner = Some((SessionId(2), Seq(1))), "session s2 has requests but does not live"),
        (|s| s.requests[4].owner = None, "the wrong owner"),
        (|s| s.requests[3].value = b"v"[..].into(), "more than a closed hold keeps"),
        (|s| s.requests[0].subtree = true, "a subtree that it can't have"),
        (|s| s.requests[0].names.clear(), "no names"),
        (|s| s.limits.clear(), "`p` has permits but no limit"),
        (|s| s.limits[0].limit = 0, "`p` has the limit 0"),
        (|s| s.limits[0].name = LockName::parse("s").expect("legal"), "`p` has permits but no limit"),
        (
            |s| {
                let spare = LockName::parse("spare").expect("legal");
                s.limits.push(LimitState { name: spare, limit: 2, stored: false });
            },
            "`spare` has an implied limit but no permits",
        ),
        (
            |s| {
                let mut again = s.sessions[0].clone();
                (again.id, s.last_session) = (SessionId(2), 2);
                s.sessions.push(again);
            },
            "session s2 or its secret appears twice",
        ),
    ];
    for (change, words) in cases {
        refused(change, words);
    }
    // Two holds get the same token, or the same slot.
    let token =
        |s: &mut Snapshot, at: usize, to: Token| *token_of(&mut s.requests[at]).expect("a hold").0 = to;
    refused(|s| token(s, 1, Token::MIN), "two holds have the token 1");
    let slots = |s: &mut Snapshot, to: Vec<u32>| *token_of(&mut s.requests[1]).expect("a hold").1 = to;
    refused(|s| slots(s, vec![0]), "has a permit that is taken");
    refused(|s| slots(s, vec![65_536]), "the wrong permits");
    refused(|s| slots(s, vec![]), "the wrong permits");
    // `Snapshot::decode` refuses these two duplicates. `Restorer` does not call it, and must refuse them too.
    let mut stream = full();
    stream.requests[1].ticket = stream.requests[0].ticket;
    let error = restore(&stream.encode(), 10).err().expect("a ticket is there twice").to_string();
    assert!(error.contains("two requests have the ticket 1"), "{error}");
    let mut stream = full();
    stream.limits.push(stream.limits[0].clone());
    let error = restore(&stream.encode(), 10).err().expect("a limit is there twice").to_string();
    assert!(error.contains("`p` has two limits"), "{error}");
}

fn refused(change: impl Fn(&mut Snapshot), words: &str) {
    let mut snapshot = full();
    change(&mut snapshot);
    for result in [restore(&snapshot.encode(), 10), Table::restore(&snapshot, 1)] {
        match result {
            Ok(_) => panic!("not refused: {words}"),
            Err(why) => assert!(why.to_string().contains(words), "{why}, not: {words}"),
        }
    }
}

#[test]
fn excessive_item_length_is_refused_before_its_bytes_arrive() {
    let mut restorer = Restorer::new(1);
    // 2^35 − 1 as a varint.
    let error = restorer.push(&[0xff, 0xff, 0xff, 0xff, 0x7f]).unwrap_err();
    assert!(error.to_string().contains("an item has 34359738367 bytes"), "{error}");
}

/// The bytes are an item's length, then a header with the number of an old format.
#[test]
fn unknown_format_is_refused_by_its_number() {
    let error = Snapshot::decode(&[6, 0, 1, 1, 0, 0, 0]).unwrap_err();
    assert!(error.to_string().contains("its format is 1, this program reads 4"), "{error}");
    // Format 1 began with its number and the version of the rules.
    let error = Snapshot::decode(&[1, 1, 0, 0, 0, 0, 0, 0]).unwrap_err();
    assert!(error.to_string().contains("this program reads format 4"), "{error}");
}
