//! Bounded work with many requests (M2): each command visits at most the number of entries given by
//! `visits_max`, independent of the table's contents, and its backlog is completed by `Resume`.

use std::collections::BTreeMap;

use lockkeeper_core::limits::{FORGOTTEN_PER_COMMAND_MAX, NAME_SEGMENTS_MAX, NAMES_PER_REQUEST_MAX};
use lockkeeper_core::{
    Acquire, Break, Command, Effect, Effects, End, IfBusy, LockName, Mode, Oldest, OpenSession, Page, Reply,
    Seq, SessionId, Table, Token, WallTime, invariants,
};
use lockkeeper_corpus::size;

/// A table that checks every command against `visits_max`.
struct Bounded {
    table: Table,
    effects: Effects,
    /// Maximum number of entries that one command has visited.
    most: u64,
}

impl Bounded {
    fn new(table: Table) -> Self {
        Self { table, effects: Effects::new(), most: 0 }
    }

    fn apply(&mut self, command: Command) -> Reply {
        let (before, visits_max) = (self.table.visits(), command.visits_max());
        let shown = format!("{command:?}");
        let reply = self.table.apply(command, &mut self.effects);
        let visits = self.table.visits() - before;
        assert!(visits <= visits_max, "{shown} looked at {visits} entries, {visits_max} are allowed");
        self.most = self.most.max(visits);
        reply
    }

    fn open(&mut self, secret: u64) -> SessionId {
        let mut secret_hash = [0; 32];
        secret_hash[..8].copy_from_slice(&secret.to_le_bytes());
        let open = OpenSession {
            secret_hash,
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            linger_ms: 0,
            label: Box::default(),
            identity: Box::default(),
        };
        match self.apply(Command::OpenSession(open)) {
            Reply::Opened { session } => session,
            other => panic!("{other:?}"),
        }
    }

    /// Applies `Resume` until there is no backlog; returns the number of these commands.
    fn drain(&mut self) -> usize {
        let mut count = 0;
        while self.table.has_backlog() {
            assert_eq!(self.apply(Command::Resume), Reply::Done);
            count += 1;
            assert!(count < 100_000, "a backlog that does not end");
        }
        count
    }

    fn granted(&self) -> usize {
        self.effects.iter().filter(|effect| matches!(effect, Effect::Granted { .. })).count()
    }
}

fn wants(session: SessionId, seq: u64, names: &[&str], mode: Mode) -> Acquire {
    Acquire {
        session,
        seq: Seq(seq),
        done_through: Seq(0),
        names: names.iter().map(|name| LockName::parse(name).expect("a legal name")).collect(),
        mode,
        subtree: false,
        if_busy: IfBusy::WAIT,
        keep_closed_ms: 0,
        value: Box::default(),
        meta: Box::default(),
        spare_tokens: 0,
        holding: Box::default(),
    }
}

fn finish(session: SessionId, seq: u64, target: u64) -> Command {
    Command::Finish { session, seq: Seq(seq), target: Seq(target), done_through: Seq(0) }
}

/// Number of requests of each kind in a test.
const CROWD: u64 = 100_000;

#[test]
fn cost_of_a_retry_does_not_grow_with_the_queue() {
    let crowd = size(4_000, CROWD, CROWD);
    let mut bounded = Bounded::new(Table::new(1));
    let session = bounded.open(1);
    for seq in 1..=crowd {
        let _queued = bounded.apply(Command::Acquire(wants(session, seq, &["a"], Mode::Exclusive)));
    }
    let before = bounded.table.visits();
    for seq in (1..=crowd).rev() {
        let reply = bounded.apply(Command::Acquire(wants(session, seq, &["a"], Mode::Exclusive)));
        match reply {
            Reply::Granted(_) => assert_eq!(seq, 1),
            Reply::Queued { position, .. } => assert!(position <= crowd && position >= 1_000.min(seq - 2)),
            other => panic!("{other:?}"),
        }
    }
    let each = (bounded.table.visits() - before) / crowd;
    assert!(each <= 1_100, "{each} entries a retry");
}

/// A scrape of `/metrics` looks at one part of the table: long names make the part shorter, not the scrape
/// longer.
#[test]
fn look_for_the_oldest_of_each_prefix_is_bounded() {
    const PLACES: u64 = 1 << 14;
    const PREFIXES: u64 = 100;
    let crowd = size(4_000, CROWD, CROWD);
    let long = "x/".repeat(NAME_SEGMENTS_MAX - 2);
    let mut bounded = Bounded::new(Table::new(1));
    let session = bounded.open(1);
    for seq in 1..=crowd {
        let now = bounded.apply(Command::SetClock { now: WallTime(seq) });
        assert_eq!(now, Reply::Done);
        let names = [format!("long/{long}{seq}"), format!("p{}/{seq}", seq % PREFIXES)];
        let names = names.each_ref().map(String::as_str);
        let _granted = bounded.apply(Command::Acquire(wants(session, seq, &names, Mode::Exclusive)));
    }
    let _queued = bounded.apply(Command::Acquire(wants(session, crowd + 1, &["p7/7"], Mode::Exclusive)));
    let loads = bounded.table.loads(1, usize::MAX).into_iter();
    let mut prefixes: BTreeMap<_, _> = loads.map(|load| (load.prefix, Oldest::default())).collect();
    let (mut all, mut cursor, mut most) = (Oldest::default(), Some(0), 0);
    while let Some(from) = cursor {
        let before = bounded.table.visits();
        let (part, next) = bounded.table.oldest_in_part(from, PLACES as usize, 1, &mut prefixes);
        most = most.max(bounded.table.visits() - before);
        (all, cursor) = (all.or(part), next);
    }
    let one_more = 2 * (NAMES_PER_REQUEST_MAX * NAME_SEGMENTS_MAX) as u64;
    assert!((4 * PLACES..=4 * PLACES + one_more).contains(&most), "{most} names in one part");
    let oldest =
        |hold, waiter: Option<u64>| Oldest { hold: Some(WallTime(hold)), waiter: waiter.map(WallTime) };
    assert_eq!(all, oldest(1, Some(crowd)));
    assert_eq!(prefixes.len() as u64, PREFIXES + 1);
    for (prefix, found) in prefixes {
        let expected = match prefix.as_str() {
            "long" => oldest(1, None),
            "p7" => oldest(7, Some(crowd)),
            "p0" => oldest(PREFIXES, None),
            number => oldest(number[1..].parse().unwrap(), None),
        };
        assert_eq!(found, expected, "{prefix}");
    }
}

#[test]
fn cost_of_a_multi_name_acquire_does_not_grow_with_the_queue() {
    let crowd = size(4_000, CROWD, CROWD);
    let mut bounded = Bounded::new(Table::new(1));
    let session = bounded.open(1);
    for seq in 1..=crowd {
        let names: &[&str] = if seq % 2 == 0 { &["c/x", "d"] } else { &["c", "d"] };
        let _queued = bounded.apply(Command::Acquire(wants(session, seq, names, Mode::Exclusive)));
    }
    assert!(bounded.most <= 1_100, "{} entries for one ask", bounded.most);
}

#[test]
fn busy_subtree_acquire_does_not_scan_the_subtree() {
    let mut bounded = Bounded::new(Table::new(1));
    let session = bounded.open(1);
    for seq in 1..=CROWD {
        let held = format!("a/{seq}");
        let _granted = bounded.apply(Command::Acquire(wants(session, seq, &[&held], Mode::Shared)));
        let _queued = bounded.apply(Command::Acquire(wants(session, CROWD + seq, &["r"], Mode::Shared)));
    }
    bounded.most = 0;
    for (number, name) in ["a", "r"].into_iter().enumerate() {
        let seq = 3 * CROWD + number as u64;
        let wants =
            Acquire { subtree: true, if_busy: IfBusy::Fail, ..wants(session, seq, &[name], Mode::Exclusive) };
        let reply = bounded.apply(Command::Acquire(wants));
        assert_eq!(reply, Reply::Busy { holder: Some(session), queued_ahead: 0 }, "{name}");
    }
    // A shared subtree request is blocked by a writer that waits below its name. The command finds the writer
    // without a scan of the readers there.
    let writer = bounded.apply(Command::Acquire(wants(session, 4 * CROWD, &["a/1"], Mode::Exclusive)));
    assert!(matches!(writer, Reply::Queued { position: 0, .. }));
    for seq in 4 * CROWD + 1..4 * CROWD + 100 {
        let reader = Acquire { subtree: true, ..wants(session, seq, &["a"], Mode::Shared) };
        let reply = bounded.apply(Command::Acquire(reader));
        assert_eq!(reply, Reply::Queued { position: 1, limits: Vec::new() });
    }
    assert!(bounded.most <= 600, "{} entries for one try", bounded.most);
}

#[test]
fn description_of_many_holds_is_paged() {
    let mut bounded = Bounded::new(Table::new(1));
    let session = bounded.open(1);
    for seq in 1..=CROWD {
        let reader = Acquire { value: vec![7; 64].into(), ..wants(session, seq, &["a"], Mode::Shared) };
        let _granted = bounded.apply(Command::Acquire(reader));
    }
    let name = LockName::parse("a").expect("a legal name");
    let before = bounded.table.visits();
    let first = bounded.table.describe(&name, Page::first(10));
    assert_eq!((first.holds.len(), first.hold_count, first.has_more), (256, CROWD as usize, true));
    let next = Page { after: first.holds.last().map(|hold| hold.token), bytes_max: 1_000, ..Page::first(10) };
    let next = bounded.table.describe(&name, next);
    assert_eq!(next.holds.first().map(|hold| hold.token), Token::new(257));
    assert!(next.holds.len() < 10 && next.has_more, "{} holds of 1,000 bytes", next.holds.len());
    assert!(bounded.table.visits() - before < 5_000, "{} entries", bounded.table.visits() - before);
}

#[test]
fn end_of_a_large_session_is_split_into_bounded_commands() {
    let mut bounded = Bounded::new(Table::new(1));
    let (crowd, waiter) = (bounded.open(1), bounded.open(2));
    for seq in 1..=CROWD {
        let held = format!("a/{seq}");
        let _granted = bounded.apply(Command::Acquire(wants(crowd, seq, &[&held], Mode::Exclusive)));
    }
    let last = format!("a/{CROWD}");
    let _queued = bounded.apply(Command::Acquire(wants(waiter, 1, &[&last], Mode::Exclusive)));
    assert_eq!(bounded.apply(Command::ExpireSession { session: crowd }), Reply::SessionGone);
    assert!(bounded.table.has_backlog() && bounded.granted() == 0);
    assert_eq!(bounded.apply(finish(crowd, CROWD + 1, 1)), Reply::SessionGone, "it is gone at once");
    let left = bounded.table.snapshot();
    assert!(left.ending.len() == 1 && !left.requests.is_empty(), "a snapshot has what is left");
    let mut restored = Bounded::new(Table::restore(&left, 2).expect("a table"));
    let resumes = bounded.drain();
    assert_eq!((restored.drain(), restored.table.snapshot()), (resumes, bounded.table.snapshot()));
    assert!((2..=100).contains(&resumes), "{resumes} pieces");
    assert_eq!(bounded.granted(), 1);
    assert_eq!(bounded.table.request_count(), 1);
    invariants::index(&bounded.table).expect("the indexes are as counted anew");
}

#[test]
fn many_readers_are_granted_over_several_commands() {
    let mut bounded = Bounded::new(Table::new(1));
    let (writer, readers) = (bounded.open(1), bounded.open(2));
    let _granted = bounded.apply(Command::Acquire(wants(writer, 1, &["a"], Mode::Exclusive)));
    for seq in 1..=CROWD {
        let _queued = bounded.apply(Command::Acquire(wants(readers, seq, &["a"], Mode::Shared)));
    }
    let _released = bounded.apply(finish(writer, 2, 1));
    let first = bounded.granted();
    assert!(first > 0 && (first as u64) < CROWD, "{first} at once");
    // A request that arrives before the backlog is drained queues behind the readers that could be granted.
    let late = bounded.apply(Command::Acquire(wants(writer, 3, &["a"], Mode::Exclusive)));
    assert!(matches!(late, Reply::Queued { .. }));
    bounded.drain();
    assert_eq!(bounded.granted() as u64, CROWD);
}

#[test]
fn pass_over_readers_blocked_at_another_name_is_bounded() {
    let mut bounded = Bounded::new(Table::new(1));
    let (writer, readers) = (bounded.open(1), bounded.open(2));
    let _granted = bounded.apply(Command::Acquire(wants(writer, 1, &["x"], Mode::Exclusive)));
    let _granted = bounded.apply(Command::Acquire(wants(writer, 2, &["y"], Mode::Exclusive)));
    for seq in 1..=CROWD {
        let _queued = bounded.apply(Command::Acquire(wants(readers, seq, &["x", "y"], Mode::Shared)));
    }
    let _released = bounded.apply(finish(writer, 3, 1));
    let resumes = bounded.drain();
    assert_eq!((bounded.granted(), resumes > 2), (0, true), "{resumes} pieces");
    // The next release at the same name does not visit any of these waiters again.
    let _granted = bounded.apply(Command::Acquire(wants(writer, 4, &["x"], Mode::Shared)));
    let before = bounded.table.visits();
    let _released = bounded.apply(finish(writer, 5, 4));
    assert!(bounded.table.visits() - before < 200 && !bounded.table.has_backlog());
    let _released = bounded.apply(finish(writer, 6, 2));
    bounded.drain();
    assert_eq!(bounded.granted() as u64, CROWD);
}

#[test]
fn confirmed_answers_are_dropped_over_several_commands() {
    let mut bounded = Bounded::new(Table::new(1));
    let session = bounded.open(1);
    for seq in 1..=CROWD {
        let _granted = bounded.apply(Command::Acquire(wants(session, seq, &["a"], Mode::Shared)));
    }
    for seq in 1..=CROWD {
        let _released = bounded.apply(finish(session, CROWD + seq, seq));
    }
    let again = |done_through: u64, seq: u64| {
        let wants = wants(session, seq, &["a"], Mode::Shared);
        Command::Acquire(Acquire { done_through: Seq(done_through), ..wants })
    };
    // All answers but the last are confirmed. They don't count towards the limit of kept answers, although
    // one command does not drop all of them.
    let reply = bounded.apply(again(2 * CROWD - 1, 2 * CROWD + 1));
    assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
    let forgotten = bounded.apply(finish(session, 2 * CROWD + 2, CROWD - 1));
    assert_eq!(forgotten, Reply::Finished(End::Gone));
    let kept = bounded.apply(finish(session, 2 * CROWD + 3, CROWD));
    assert_eq!(kept, Reply::Finished(End::Released));
    assert!(bounded.table.has_backlog());
    assert_eq!(bounded.drain(), (CROWD as usize).div_ceil(FORGOTTEN_PER_COMMAND_MAX) - 3);
}

/// A request that waits for permits behind too many others is looked at when they are granted through another
/// name.
#[test]
fn permit_behind_a_crowd_granted_through_another_name_is_granted() {
    for crowd in [1_024, 1_025, 3_000] {
        let mut bounded = Bounded::new(Table::new(1));
        let session = bounded.open(1);
        let permit = Mode::Permit { of: Some(5_000) };
        let _held = bounded.apply(Command::Acquire(wants(session, 1, &["a"], Mode::Exclusive)));
        for seq in 2..crowd + 2 {
            let _queued = bounded.apply(Command::Acquire(wants(session, seq, &["a", "b"], permit)));
        }
        let last = bounded.apply(Command::Acquire(wants(session, crowd + 2, &["b"], permit)));
        assert_eq!(matches!(last, Reply::Queued { .. }), crowd > 1_024, "{last:?}");
        let _released = bounded.apply(finish(session, crowd + 3, 1));
        bounded.drain();
        let granted = bounded.granted() as u64 + u64::from(crowd <= 1_024);
        assert_eq!(granted, crowd + 1, "of a crowd of {crowd}");
    }
}

/// The hold of an expired session that a `Resume` would end, ended by another command: it stays closed for
/// the session's lock-delay (S3), and its session gets no effect after `SessionEnded` (E1).
#[test]
fn hold_of_an_ending_session_keeps_its_lock_delay_whatever_ends_it() {
    let name = |text: &str| LockName::parse(text).expect("a legal name");
    let token = |number| Token::new(number).expect("a token");
    let order = |now| {
        let (reason, by) = ("stuck".into(), "olga".into());
        Command::Break(Break { name: name("e"), token: token(3), reason, by, now })
    };
    let ended = |before: Option<Command>, ended_by: Command| {
        let mut table = Table::new(1).with_work_max(2);
        let mut effects = Effects::new();
        let open = OpenSession {
            secret_hash: [1; 32],
            ttl_ms: 10_000,
            lock_delay_ms: 30,
            linger_ms: 0,
            label: Box::default(),
            identity: Box::default(),
        };
        assert_eq!(
            table.apply(Command::OpenSession(open), &mut effects),
            Reply::Opened { session: SessionId(1) }
        );
        for (seq, names) in [(1, &["a/b", "c/d"][..]), (2, &["x", "y", "z/1"]), (3, &["e"])] {
            let acquire = wants(SessionId(1), seq, names, Mode::Exclusive);
            assert!(matches!(table.apply(Command::Acquire(acquire), &mut effects), Reply::Granted(_)));
        }
        before.into_iter().for_each(|it| assert_eq!(table.apply(it, &mut effects), Reply::Done));
        effects.clear();
        let expired = table.apply(Command::ExpireSession { session: SessionId(1) }, &mut effects);
        assert_eq!(expired, Reply::SessionGone);
        assert!(
            table.has_backlog()
                && !effects.iter().any(|it| matches!(it, Effect::Closed { token, .. } if token.get() == 3))
        );
        effects.clear();
        assert_eq!(table.apply_whole(ended_by, &mut effects), Reply::Done);
        effects
            .into_iter()
            .filter(|it| !matches!(it, Effect::Closed { token, .. } if token.get() < 3))
            .collect::<Vec<_>>()
    };
    let closed = vec![Effect::Closed { token: token(3), ms: 30 }];
    assert_eq!(ended(Some(order(false)), Command::EndRevoked { token: token(3) }), closed);
    assert_eq!(ended(None, order(true)), [], "`now` leaves no closed hold (B2)");
    assert_eq!(ended(Some(order(false)), order(true)), []);
    assert_eq!(ended(None, order(false)), closed, "its session is gone");
    assert_eq!(ended(None, Command::Resume), closed);
}

fn cached(session: SessionId, seq: u64, name: &str) -> Command {
    Command::Acquire(Acquire { spare_tokens: 1, ..wants(session, seq, &[name], Mode::Exclusive) })
}

/// C4: the cached holds below a subtree are recalled over several commands, each once.
#[test]
fn many_cached_holds_below_a_subtree_are_recalled_over_several_commands() {
    let crowd = size(3_000, 10_000, CROWD);
    let mut bounded = Bounded::new(Table::new(1).with_work_max(1_000));
    let session = bounded.open(1);
    for seq in 1..=crowd {
        let _granted = bounded.apply(cached(session, seq, &format!("a/{seq}")));
    }
    let asks = bounded.open(2);
    let all = |if_busy| Acquire { subtree: true, if_busy, ..wants(asks, 1, &["a"], Mode::Exclusive) };
    // C6: more than 1,024 names below are held, so a try is busy at once, and recalls nothing.
    let busy = bounded.apply(Command::Acquire(all(IfBusy::Fail)));
    assert!(matches!(busy, Reply::Busy { .. }) && bounded.effects.is_empty(), "{busy:?}");
    let waits = Acquire { seq: Seq(2), ..all(IfBusy::WAIT) };
    let queued = bounded.apply(Command::Acquire(waits));
    assert!(matches!(queued, Reply::Queued { .. }) && bounded.table.has_backlog(), "{queued:?}");
    let first = bounded.effects.len();
    assert!((500..=1_100).contains(&first), "{first} are recalled by the request itself");
    assert!(bounded.drain() >= (crowd as usize - first) / 1_100);
    let is_recalled = |effect: &Effect| matches!(effect, Effect::Recalled { .. });
    assert_eq!((bounded.effects.len() as u64, bounded.effects.iter().all(is_recalled)), (crowd, true));
    invariants::c4_recalls(&bounded.table.snapshot()).expect("all are recalled");
    for seq in 1..=crowd {
        let _released = bounded.apply(finish(session, crowd + seq, seq));
    }
    bounded.drain();
    assert_eq!(bounded.granted(), 1);
}

/// C6: the requests that were put off because of a cached subtree are ended up to the bound when it is
/// settled; the others have their limits.
#[test]
fn many_tries_below_a_cached_subtree_are_ended_up_to_the_bound() {
    let crowd = size(3_000, 10_000, CROWD);
    let mut bounded = Bounded::new(Table::new(1).with_work_max(1_000));
    let session = bounded.open(1);
    let whole = Acquire { subtree: true, spare_tokens: 1, ..wants(session, 1, &["a"], Mode::Exclusive) };
    let _granted = bounded.apply(Command::Acquire(whole));
    let tries = bounded.open(2);
    for seq in 1..=crowd {
        let one = wants(tries, seq, &[&format!("a/{seq}")], Mode::Exclusive);
        let reply = bounded.apply(Command::Acquire(Acquire { if_busy: IfBusy::Fail, ..one }));
        assert!(matches!(reply, Reply::Queued { .. }), "{reply:?}");
    }
    assert_eq!(bounded.effects.len(), 1, "recalled once");
    let settle = Command::Settle { session, seq: Seq(2), target: Seq(1), done_through: Seq(0) };
    assert_eq!(bounded.apply(settle), Reply::Done);
    let ended = bounded.effects.len() - 1;
    assert!((400..=1_000).contains(&ended), "{ended} are ended by the command itself");
    let _released = bounded.apply(finish(session, 3, 1));
    bounded.drain();
    assert_eq!(bounded.granted(), crowd as usize - ended, "the others were still in the queue");
}

/// Cached holds and tries cost no more with many cached holds around.
#[test]
fn cost_of_a_cached_hold_does_not_grow_with_the_others() {
    let crowd = size(4_000, CROWD, CROWD);
    let mut bounded = Bounded::new(Table::new(1));
    let (session, other) = (bounded.open(1), bounded.open(2));
    let mut visits = Vec::new();
    for seq in 1..=crowd {
        let before = bounded.table.visits();
        let name = format!("tenants/{seq}/shard");
        let _granted = bounded.apply(cached(session, 3 * seq, &name));
        let asks = Acquire { if_busy: IfBusy::Fail, ..wants(other, 2 * seq, &[&name], Mode::Exclusive) };
        assert!(matches!(bounded.apply(Command::Acquire(asks)), Reply::Queued { position: 0, .. }));
        let settle =
            Command::Settle { session, seq: Seq(3 * seq + 1), target: Seq(3 * seq), done_through: Seq(0) };
        assert_eq!(bounded.apply(settle), Reply::Done);
        visits.push(bounded.table.visits() - before);
        let _confirmed = bounded.apply(Command::Finish {
            session: other,
            seq: Seq(2 * seq + 1),
            target: Seq(2 * seq),
            done_through: Seq(2 * seq + 1),
        });
        let _confirmed = bounded.apply(Command::Settle {
            session,
            seq: Seq(3 * seq + 2),
            target: Seq(3 * seq),
            done_through: Seq(3 * seq + 1),
        });
    }
    let (first, last) = (visits[1], visits[visits.len() - 1]);
    assert!(last <= first + 4, "{first} entries for the first ones, {last} for the last");
}
