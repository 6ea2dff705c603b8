//! Small random histories of one exclusive lock, beside a general checker of linearizability (WGL), which
//! searches all orders: both say the same.

use lockkeeper_history::{
    EndedEvent, GrantedEvent, HistoryEvent, HistoryLine, HoldEnd, StatusEvent, TokenAnswer, WriterEvent,
};
use lockkeeper_verify::Checker;
use todc_utils::{Action, History, Specification, WGLChecker};

/// One call with its times. The end of a hold is a call that begins when its client gave up, and ends with
/// the history: the service may end a hold as late as it wants.
#[derive(Clone, Copy, Debug)]
struct Call {
    asked: u64,
    at: u64,
    operation: Operation,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Acquire(u64),
    End(u64),
    Status(u64, TokenAnswer),
}

/// An exclusive lock with tokens: its holder, and the highest token.
struct LockSpecification;

impl Specification for LockSpecification {
    type State = (Option<u64>, u64);
    type Operation = Operation;

    fn init() -> Self::State {
        (None, 0)
    }

    fn apply(operation: &Operation, state: &Self::State) -> (bool, Self::State) {
        let (holder, highest) = *state;
        match *operation {
            Operation::Acquire(token) => match holder.is_none() && token > highest {
                true => (true, (Some(token), token)),
                false => (false, *state),
            },
            Operation::End(token) => match holder == Some(token) {
                true => (true, (None, highest)),
                false => (false, *state),
            },
            Operation::Status(token, answer) => {
                let right = match answer {
                    TokenAnswer::Current => holder == Some(token),
                    // Also of a token that belongs to another lock.
                    TokenAnswer::NotCurrent => holder != Some(token),
                    TokenAnswer::NeverIssued => token > highest,
                };
                (right, *state)
            }
        }
    }
}

/// Calls of a lock service that is right, and then some times and answers changed.
fn calls(random: &mut fastrand::Rng) -> Vec<Call> {
    let (mut calls, mut now) = (Vec::new(), 20_u64);
    let holds = random.u64(2..5);
    for token in 1..=holds {
        let granted = now + random.u64(1..6);
        let asked = granted.saturating_sub(random.u64(1..12));
        let at = granted + random.u64(0..6);
        let until = at + random.u64(0..10);
        calls.push(Call { asked, at, operation: Operation::Acquire(token) });
        calls.push(Call { asked: until, at: u64::MAX, operation: Operation::End(token) });
        now = until + random.u64(0..4);
    }
    for _ in 0..random.u64(0..3) {
        let asked = random.u64(15..now);
        let answer =
            [TokenAnswer::Current, TokenAnswer::NotCurrent, TokenAnswer::NeverIssued][random.usize(0..3)];
        let operation = Operation::Status(random.u64(1..=holds), answer);
        calls.push(Call { asked, at: asked + random.u64(1..8), operation });
    }
    for _ in 0..random.u64(0..3) {
        let call = &mut calls[random.usize(0..usize::try_from(holds).unwrap() * 2)];
        match &mut call.operation {
            Operation::Acquire(_) => {
                let length = call.at - call.asked;
                call.asked = (call.asked + random.u64(0..20)).saturating_sub(10);
                call.at = call.asked + length;
            }
            Operation::End(_) => call.asked = (call.asked + random.u64(0..20)).saturating_sub(10),
            Operation::Status(..) => {}
        }
    }
    // A client gives up after it was granted.
    for token in 1..=holds {
        let of = |end: bool| {
            move |call: &Call| match call.operation {
                Operation::Acquire(of) => of == token && !end,
                Operation::End(of) => of == token && end,
                Operation::Status(..) => false,
            }
        };
        let at = calls.iter().find(|call| of(false)(call)).unwrap().at;
        let end = calls.iter_mut().find(|call| of(true)(call)).unwrap();
        end.asked = end.asked.max(at);
    }
    calls
}

/// Distinct moments: where two are equal, ends come before beginnings for neither checker.
fn spread(calls: &mut [Call]) {
    let mut moments: Vec<(u64, usize, bool)> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        moments.push((call.asked, index, false));
        moments.push((call.at, index, true));
    }
    moments.sort_unstable();
    for (place, (_, index, is_end)) in moments.into_iter().enumerate() {
        let place = place as u64 + 1;
        if is_end { calls[index].at = place } else { calls[index].asked = place }
    }
}

fn is_linearizable(calls: &[Call]) -> bool {
    let mut actions: Vec<(u64, usize, Action<Operation>)> = Vec::new();
    for (process, call) in calls.iter().enumerate() {
        actions.push((call.asked, process, Action::Call(call.operation)));
        actions.push((call.at, process, Action::Response(call.operation)));
    }
    actions.sort_by_key(|action| action.0);
    let actions = actions.into_iter().map(|(_, process, action)| (process, action)).collect();
    WGLChecker::<LockSpecification>::is_linearizable(History::from_actions(actions))
}

fn is_accepted(calls: &[Call]) -> bool {
    let by = || "a".to_owned();
    let (service, lock) = ("s".to_owned(), "x".to_owned());
    let writer = WriterEvent { format: 1, clock: "c".to_owned(), label: String::new() };
    let mut lines = vec![HistoryLine { at: 0, by: by(), event: HistoryEvent::Writer(writer) }];
    for call in calls {
        let Call { asked, at, operation } = *call;
        let (at, event) = match operation {
            Operation::Acquire(token) => {
                let (service, locks, token) = (service.clone(), vec![lock.clone()], Some(token));
                let hold = token.unwrap_or_default();
                (
                    at,
                    HistoryEvent::Granted(GrantedEvent {
                        hold,
                        service,
                        locks,
                        token,
                        asked,
                        ..GrantedEvent::default()
                    }),
                )
            }
            Operation::End(hold) => {
                let how = HoldEnd::Released;
                (asked, HistoryEvent::Ended(EndedEvent { hold, until: asked, how }))
            }
            Operation::Status(token, answer) => {
                let (service, lock) = (service.clone(), lock.clone());
                (at, HistoryEvent::Status(StatusEvent { service, lock, token, asked, answer }))
            }
        };
        lines.push(HistoryLine { at, by: by(), event });
    }
    lines.sort_by_key(|line| line.at);
    let mut checker = Checker::default();
    for line in lines {
        checker.push(line);
    }
    checker.counts().violations == 0
}

#[test]
fn verdicts_are_those_of_a_general_checker() {
    let mut verdicts = [0_u32; 2];
    for seed in 0..10_000 {
        let mut calls = calls(&mut fastrand::Rng::with_seed(seed));
        spread(&mut calls);
        let expected = is_linearizable(&calls);
        verdicts[usize::from(expected)] += 1;
        assert_eq!(is_accepted(&calls), expected, "seed {seed}: {calls:#?}");
    }
    assert!(verdicts[0] > 1_000 && verdicts[1] > 1_000, "both verdicts occur: {verdicts:?}");
}
