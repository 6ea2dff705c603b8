//! Every sequence of six events of a small alphabet (of five or four from a busy session), of one less in a
//! plain `cargo test`; equal states are explored once.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use lockkeeper_backend::{BackendError, BackendErrorKind, Busy};
use lockkeeper_corpus::size;

use super::checker::{Caller, Checked};
use super::*;

const KEYS: [Key; 2] = [Key(1), Key(2)];

/// Limits of the first request: none, or one of three. The second request has none.
fn all_limits(now: BootInstant) -> [AcquireLimits; 4] {
    let secs = Duration::from_secs;
    [
        limits(),
        AcquireLimits { wait_until: Some(now + secs(3)), ..limits() },
        AcquireLimits { min_validity: secs(7), ..limits() },
        AcquireLimits { max_hold: Some(secs(3)), ..limits() },
    ]
}

fn answers(kind: &CallKind) -> Vec<Answer> {
    let refused = || Answer::Refused(BackendError::new(BackendErrorKind::Operator, "no"));
    let mut answers = match kind {
        CallKind::Open { .. } => vec![Answer::Opened, refused()],
        CallKind::KeepAlive => vec![Answer::KeptAlive, refused()],
        CallKind::Acquire { .. } => vec![
            granted(1),
            Answer::Busy(Busy::default()),
            refused(),
            Answer::Finished(End::TimedOut),
            Answer::Finished(End::Broken),
            Answer::Revoked,
        ],
        CallKind::Finish { .. } => vec![
            Answer::Finished(End::Released),
            Answer::Finished(End::Left),
            Answer::Finished(End::Broken),
            Answer::Finished(End::Gone),
        ],
        CallKind::Settle { .. } => {
            vec![Answer::Changed, Answer::Revoked, Answer::Finished(End::Broken), refused()]
        }
        CallKind::Close => return vec![Answer::Closed],
    };
    answers.push(Answer::SessionGone);
    answers
}

/// All possible next events with their times.
fn next_events(state: &Checked) -> Vec<(BootInstant, Event)> {
    let now = state.now;
    let mut events = Vec::new();
    match state.callers.len() {
        0 => events.extend(all_limits(now).map(|limits| Event::Acquire { key: KEYS[0], limits })),
        1 => events.push(Event::Acquire { key: KEYS[1], limits: limits() }),
        _ => {}
    }
    for (&key, &(caller, _)) in &state.callers {
        if !matches!(caller, Caller::Over | Caller::Gone) {
            events.push(Event::Abandon { key });
        }
        if matches!(caller, Caller::Holds | Caller::Lost) {
            events.extend([Event::Release { key }, Event::Settle { key }]);
        }
    }
    for (&call, (kind, _)) in &state.calls {
        events.extend(answers(kind).into_iter().map(|answer| Event::Answered { call, answer }));
        events.extend([true, false].map(|sent| Event::Failed { call, sent }));
    }
    for &seq in state.machine.by_seq.keys() {
        events.extend([
            Event::Pushed(Push::Queued { seq, position: 0 }),
            Event::Pushed(Push::Revoked { seq, notice: None }),
            Event::Pushed(Push::Recalled { seq }),
            Event::Pushed(Push::Ended { seq, end: End::Broken }),
            Event::Pushed(Push::HoldLost { seq, cause: LossCause::Disconnected, why: None }),
        ]);
    }
    if !state.callers.is_empty() {
        events.push(Event::Pushed(Push::Lost(LossCause::Disconnected)));
        if !state.machine.spec.linger.is_zero() {
            events.push(Event::Pushed(Push::Detached { at: now, announced: false }));
        }
        events.push(Event::Shutdown);
    }
    let mut events: Vec<_> = events.into_iter().map(|event| (now, event)).collect();
    let tick = Duration::from_nanos(1);
    let mut times: Vec<BootInstant> = Vec::new();
    if let Some(wake) = state.machine.next_wake() {
        times.extend([wake, wake + Duration::from_secs(1)]);
    }
    if let Some(until) = state.machine.lease_deadline {
        let before = BootInstant::from_nanos(until.as_nanos() - tick.as_nanos() as u64);
        times.extend([before, until, until + tick]);
    }
    times.retain(|&time| time > now);
    times.sort();
    times.dedup();
    events.extend(times.into_iter().map(|time| (time, Event::Wake)));
    events
}

struct Explored {
    states: usize,
    steps: usize,
    wrong: HashMap<String, String>,
}

/// Breadth first, so that the first trace to a violation is a shortest one.
fn explore(start: Checked, depth: usize) -> Explored {
    let hasher = RandomState::new();
    let mut seen = std::collections::HashSet::new();
    let mut explored = Explored { states: 1, steps: 0, wrong: HashMap::new() };
    let mut level = vec![(start, String::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (state, trace) in level {
            for (time, event) in next_events(&state) {
                explored.steps += 1;
                let mut after = state.clone();
                let line = || format!("{trace}\n  at {time:?}: {event:?}");
                match after.step(time, event.clone()) {
                    Ok(_) if seen.insert(hasher.hash_one(&after)) => {
                        explored.states += 1;
                        next.push((after, line()));
                    }
                    Ok(_) => {}
                    Err(wrong) => {
                        let what: String = wrong.chars().filter(|c| !c.is_ascii_digit()).take(40).collect();
                        explored.wrong.entry(what).or_insert_with(|| format!("{wrong}{}", line()));
                    }
                }
            }
        }
        level = next;
    }
    explored
}

/// Prints the number of states, which belongs to the result of the test run.
#[expect(clippy::print_stdout, reason = "the number of explored states is part of the result")]
fn judge(what: &str, explored: &Explored, at_least: usize) {
    println!("{what}: {} states, {} steps", explored.states, explored.steps);
    let wrong: Vec<&String> = explored.wrong.values().collect();
    assert!(wrong.is_empty(), "{}", wrong.iter().map(|w| format!("{w}\n")).collect::<String>());
    assert!(explored.states >= at_least, "only {} states: the alphabet has shrunk", explored.states);
}

#[test]
fn every_history_of_six_events_keeps_the_invariants() {
    judge("from nothing", &explore(Checked::new(spec()), size(5, 6, 6)), size(5_000, 100_000, 100_000));
}

#[test]
fn every_history_of_six_events_without_renewal_keeps_the_invariants() {
    let spec = Spec { renew: false, ..spec() };
    judge("no renewal", &explore(Checked::new(spec), size(5, 6, 6)), size(4_000, 70_000, 70_000));
}

/// An open session with one key held and one queued.
fn busy_session(spec: Spec) -> Checked {
    let mut state = Checked::new(spec);
    let now = state.now;
    for key in KEYS {
        let _ = state.step(now, Event::Acquire { key, limits: limits() }).unwrap();
    }
    let _ = state.step(now, Event::Answered { call: CallId(1), answer: Answer::Opened }).unwrap();
    let _ = state.step(now, Event::Answered { call: CallId(2), answer: granted(1) }).unwrap();
    let _ = state.step(now, Event::Pushed(Push::Queued { seq: Seq(2), position: 0 })).unwrap();
    state
}

#[test]
fn every_history_of_events_in_a_busy_session_keeps_the_invariants() {
    judge(
        "one held, one queued",
        &explore(busy_session(spec()), size(4, 5, 5)),
        size(10_000, 200_000, 200_000),
    );
}

#[test]
fn every_history_of_events_with_linger_keeps_the_invariants() {
    let spec = Spec { linger: Duration::from_secs(1), ..spec() };
    judge("linger", &explore(busy_session(spec), 4), 20_000);
}
