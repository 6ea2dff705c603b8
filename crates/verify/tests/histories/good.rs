//! Random histories of a right lock service raise nothing, in whatever order their lines come; and of each
//! kind of wrong one, some raise something.

use lockkeeper_history::{
    EndedEvent, GrantedEvent, HistoryEvent, HistoryLine, HoldEnd, WriteOutcome, WriterEvent, WroteEvent,
};
use lockkeeper_verify::Checker;

/// What is wrong with the service.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mutant {
    None,
    /// Grants before the holder has given up.
    Early,
    /// Gives an old token now and then.
    OldToken,
    /// The resource takes writes of those who have lost their hold.
    NoFence,
}

/// A history of one lock and one resource: clients take turns; some lose their hold and write afterwards.
fn history(random: &mut fastrand::Rng, mutant: Mutant) -> Vec<HistoryLine> {
    let clients = 4;
    let mut lines: Vec<HistoryLine> = (0..clients)
        .map(|client| {
            let event = WriterEvent { format: 1, clock: "c".to_owned(), label: String::new() };
            HistoryLine { at: 0, by: client.to_string(), event: HistoryEvent::Writer(event) }
        })
        .collect();
    let (mut now, mut token, mut version) = (10_u64, 100_u64, 0_u64);
    let mut stale: Option<u64> = None;
    for turn in 0..60_u64 {
        let by = random.u32(0..clients).to_string();
        let asked = now - random.u64(0..10);
        let granted_at = now + random.u64(1..5);
        let at = granted_at + random.u64(0..4);
        token += random.u64(1..3);
        let shown = if mutant == Mutant::OldToken && random.u8(0..10) == 0 { token - 5 } else { token };
        let (service, locks) = ("s".to_owned(), vec!["x".to_owned()]);
        let grant =
            GrantedEvent { hold: turn, service, locks, token: Some(shown), asked, ..GrantedEvent::default() };
        lines.push(HistoryLine { at, by: by.clone(), event: HistoryEvent::Granted(grant) });
        let until = at + random.u64(1..30);
        let old = stale.filter(|old| *old != version && mutant == Mutant::NoFence);
        let saw = old.inspect(|_| stale = None).unwrap_or(version).to_string();
        let loses = random.u8(0..4) == 0;
        if loses {
            // It has read, and writes after the next one: the fence refuses it.
            stale = Some(version);
        } else {
            version = 1000 + turn;
            let (resource, service, lock) = ("r".to_owned(), "s".to_owned(), "x".to_owned());
            let outcome = if random.u8(0..5) == 0 { WriteOutcome::Unknown } else { WriteOutcome::Done };
            let made = version.to_string();
            let event =
                WroteEvent { resource, service, lock, token: Some(shown), asked: at, saw, made, outcome };
            lines.push(HistoryLine { at: until - 1, by: by.clone(), event: HistoryEvent::Wrote(event) });
        }
        let how = if loses { HoldEnd::Lost } else { HoldEnd::Released };
        let told = until + random.u64(0..20);
        lines.push(HistoryLine {
            at: told,
            by,
            event: HistoryEvent::Ended(EndedEvent { hold: turn, until, how }),
        });
        now = if mutant == Mutant::Early && random.u8(0..10) == 0 { until.saturating_sub(8) } else { until };
        now = now.max(granted_at + 10);
    }
    lines.sort_by_key(|line| line.at);
    lines
}

fn violations(lines: &[HistoryLine]) -> u64 {
    let mut checker = Checker::default();
    for line in lines {
        checker.push(line.clone());
    }
    checker.counts().violations
}

#[test]
fn right_service_raises_nothing() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut lines = history(&mut random, Mutant::None);
        assert_eq!(violations(&lines), 0, "seed {seed}");
        // Late lines: whatever the order, what is right raises nothing.
        random.shuffle(&mut lines[4..]);
        assert_eq!(violations(&lines), 0, "seed {seed}, shuffled");
    }
}

#[test]
fn wrong_services_are_found() {
    for mutant in [Mutant::Early, Mutant::OldToken, Mutant::NoFence] {
        let found =
            (0..200).filter(|&seed| violations(&history(&mut fastrand::Rng::with_seed(seed), mutant)) > 0);
        let found = found.count();
        assert!(found > 100, "{mutant:?}: {found} of 200");
    }
}

#[test]
fn memory_is_bounded_however_long_a_history_is() {
    let mut checker = Checker::default();
    let grant = |hold: u64| GrantedEvent {
        hold,
        service: "s".to_owned(),
        locks: vec!["x".to_owned()],
        token: Some(hold),
        asked: hold * 10,
        ..GrantedEvent::default()
    };
    for hold in 1..100_000_u64 {
        let by = "a".to_owned();
        checker.push(HistoryLine {
            at: hold * 10 + 1,
            by: by.clone(),
            event: HistoryEvent::Granted(grant(hold)),
        });
        // One in ten never ends: its client died.
        if hold % 10 != 0 {
            let ended = EndedEvent { hold, until: hold * 10 + 5, how: HoldEnd::Released };
            checker.push(HistoryLine { at: hold * 10 + 6, by, event: HistoryEvent::Ended(ended) });
        }
    }
    assert_eq!(checker.counts().violations, 0);
    assert!(checker.size().0 <= 10_000, "{:?}", checker.size());
}

#[test]
fn lock_that_is_named_twice_in_one_acquire_is_held_once() {
    let mut checker = Checker::default();
    let (service, lock) = ("s".to_owned(), "x".to_owned());
    let locks = vec![lock.clone(), lock];
    let grant =
        GrantedEvent { hold: 1, service, locks, token: Some(7), asked: 10, ..GrantedEvent::default() };
    let ended = EndedEvent { hold: 1, until: 30, how: HoldEnd::Released };
    for (at, event) in [(20, HistoryEvent::Granted(grant)), (31, HistoryEvent::Ended(ended))] {
        checker.push(HistoryLine { at, by: "a".to_owned(), event });
    }
    assert_eq!(checker.take_violations(), []);
}
