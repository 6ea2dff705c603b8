//! Histories that once went wrong here, and the peers' bugs that apply to the machine, each by its name.

use super::checker::Checked;
use super::*;
use crate::error::{BackendError, BackendErrorKind};

const KEY: Key = Key(1);

/// A session that is open since second 100, with nothing in it.
fn open() -> Checked {
    let mut state = Checked::new(spec());
    let _ = state.step(at(100), Event::Acquire { key: Key(0), want: want() }).unwrap();
    answer(&mut state, 100, &Answer::Opened);
    let _ = state.step(at(100), Event::Abandon { key: Key(0) }).unwrap();
    answer(&mut state, 100, &Answer::Finished(End::Left));
    state
}

/// Answers the call that went out last.
fn answer(state: &mut Checked, secs: u64, answer: &Answer) -> Vec<Output> {
    let call = last_call(state);
    answer_to(state, secs, call, answer)
}

fn last_call(state: &Checked) -> CallId {
    *state.calls.last_key_value().expect("a call is out").0
}

fn answer_to(state: &mut Checked, secs: u64, call: CallId, answer: &Answer) -> Vec<Output> {
    state.step(at(secs), Event::Answered { call, answer: answer.clone() }).unwrap()
}

fn fail(state: &mut Checked, secs: u64) -> Vec<Output> {
    let call = last_call(state);
    state.step(at(secs), Event::Failed { call, sent: true }).unwrap()
}

fn step(state: &mut Checked, secs: u64, event: Event) -> Vec<Output> {
    state.step(at(secs), event).unwrap()
}

fn acquire(state: &mut Checked, secs: u64, want: Want) -> Vec<Output> {
    step(state, secs, Event::Acquire { key: KEY, want })
}

/// A session with one hold, asked for and granted at second 100.
fn held() -> Checked {
    let mut state = open();
    let _ = acquire(&mut state, 100, want());
    assert!(matches!(answer(&mut state, 100, &granted(1))[..], [Output::Granted { .. }]));
    state
}

fn keep_alives(out: &[Output]) -> usize {
    out.iter().filter(|output| matches!(output, Output::Call { what: What::KeepAlive, .. })).count()
}

#[test]
fn a_finish_that_is_sent_again_does_not_keep_the_machine_awake() {
    let mut state = held();
    let _ = step(&mut state, 100, Event::Abandon { key: KEY });
    let _ = fail(&mut state, 100);
    let _ = step(&mut state, 101, Event::Wake);
    assert!(state.machine.next_wake() > Some(at(101)), "the second try is under way");
}

/// An SRE's `run --wait 2s` was told that the lock was busy, by a service without a leader.
#[test]
fn who_gives_up_at_a_backend_that_never_answered_is_not_told_that_the_lock_is_busy() {
    let mut state = Checked::new(spec());
    let _ = acquire(&mut state, 100, Want { wait_until: Some(at(102)), ..want() });
    let out = step(&mut state, 102, Event::Wake);
    assert!(matches!(out[..], [Output::NotAcquired { why: NotAcquired::Unreachable, .. }]), "{out:?}");
    // It has answered, but not on what was asked of it.
    let mut state = held();
    let late = Want { wait_until: Some(at(102)), min_validity: TTL, ..want() };
    let _ = step(&mut state, 100, Event::Acquire { key: Key(2), want: late });
    let out = step(&mut state, 102, Event::Wake);
    let why = out.iter().find_map(|output| match output {
        Output::NotAcquired { key: Key(2), why } => Some(why),
        _ => None,
    });
    assert!(matches!(why, Some(NotAcquired::TimedOut)), "{out:?}");
}

#[test]
fn who_has_little_patience_is_told_of_a_silent_backend_before_its_ttl_is_over() {
    let mut state = Checked::new(spec());
    let _ = acquire(&mut state, 100, Want { patience: Some(Duration::from_secs(3)), ..want() });
    assert!(step(&mut state, 102, Event::Wake).iter().all(|out| !matches!(out, Output::NotAcquired { .. })));
    assert!(state.machine.next_wake() <= Some(at(103)));
    let out = step(&mut state, 103, Event::Wake);
    assert!(matches!(out[..], [Output::NotAcquired { why: NotAcquired::Unreachable, .. }]), "{out:?}");
}

#[test]
fn an_acquire_that_comes_after_the_shutdown_is_told_so_at_once() {
    let mut state = held();
    let _ = step(&mut state, 100, Event::Shutdown);
    let out = step(&mut state, 100, Event::Acquire { key: Key(2), want: want() });
    assert!(matches!(out[..], [Output::NotAcquired { why: NotAcquired::ShuttingDown, .. }]));
}

#[test]
fn a_late_word_of_the_queue_is_not_told_to_a_holder() {
    let mut state = held();
    let seq = state.machine.seq_of(KEY).unwrap();
    assert!(step(&mut state, 100, Event::Pushed(Push::Queued { seq, position: 0 })).is_empty());
}

#[test]
fn what_is_asked_anew_leaves_after_the_end_of_what_it_replaces() {
    let mut state = open();
    let _ = acquire(&mut state, 100, want());
    let out = answer(&mut state, 100, &Answer::Finished(End::Broken));
    let [
        Output::Call { what: What::Finish { seq: end, .. }, .. },
        Output::Call { what: What::Acquire { seq, .. }, .. },
    ] = out[..]
    else {
        panic!("{out:?}")
    };
    assert!(end < seq);
}

#[test]
fn a_refused_keep_alive_ends_no_hold_before_its_deadline() {
    let mut state = held();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let refusal = BackendError::new(BackendErrorKind::Operator, "not now");
    assert!(answer(&mut state, 104, &Answer::Refused(refusal)).is_empty());
    assert_eq!(keep_alives(&step(&mut state, 105, Event::Wake)), 1, "tried again after a twelfth of the ttl");
    let _ = answer(&mut state, 105, &Answer::KeptAlive);
    assert_eq!(state.machine.belief, Some(at(105) + (TTL - TTL / 100)));
}

#[test]
fn a_caller_that_waits_for_a_renewal_does_not_make_it_a_busy_loop() {
    let mut state = held();
    let _ = step(&mut state, 113, Event::Wake);
    let mut tries = keep_alives(&step(&mut state, 113, Event::Acquire { key: Key(2), want: want() }));
    for _ in 0..20 {
        if state.calls.is_empty() {
            break;
        }
        // The driver hears a backend that fails at once in the same moment.
        tries += keep_alives(&fail(&mut state, 113));
    }
    assert!(tries <= 1, "{tries} tries in one moment");
}

/// After a stall of the service a waiter may hear of its grant before its keep-alives are answered. It was given the grant
/// back and lost its turn.
#[test]
fn a_grant_that_is_heard_before_the_session_is_confirmed_keeps_its_turn() {
    let mut state = open();
    let _ = acquire(&mut state, 100, want());
    let acquired = last_call(&state);
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let early = last_call(&state);
    assert_eq!(keep_alives(&step(&mut state, 110, Event::Wake)), 1);
    let late = last_call(&state);
    let ends = |out: &[Output]| {
        out.iter().filter(|output| matches!(output, Output::Call { what: What::Finish { .. }, .. })).count()
    };
    let is_granted = |out: &[Output]| out.iter().any(|output| matches!(output, Output::Granted { .. }));
    let out = answer_to(&mut state, 117, acquired, &granted(7));
    assert!(!is_granted(&out) && ends(&out) == 0, "nothing can be believed in yet: {out:?}");
    let out = answer_to(&mut state, 117, early, &Answer::KeptAlive);
    assert!(!is_granted(&out) && ends(&out) == 0, "what that says is over already: {out:?}");
    let out = answer_to(&mut state, 117, late, &Answer::KeptAlive);
    assert!(is_granted(&out) && ends(&out) == 0, "{out:?}");
    assert_eq!(state.machine.belief, Some(at(110) + (TTL - TTL / 100)));
}

/// Who is granted early, and gives up before the service confirms its session, leaves nothing.
#[test]
fn a_grant_that_nobody_waits_for_any_more_is_given_back() {
    let mut state = open();
    let _ = acquire(&mut state, 100, Want { wait_until: Some(at(118)), ..want() });
    let acquired = last_call(&state);
    let _ = step(&mut state, 110, Event::Wake);
    let _ = answer_to(&mut state, 117, acquired, &granted(7));
    assert!(state.machine.next_wake() <= Some(at(118)));
    let out = step(&mut state, 118, Event::Wake);
    assert!(
        out.iter().any(|output| matches!(output, Output::Call { what: What::Finish { .. }, .. })),
        "{out:?}"
    );
}

/// Peers 2: deadlines count from the sending, not from the answer.
#[test]
fn a_slow_answer_does_not_lengthen_the_deadline() {
    let mut state = held();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let _ = answer(&mut state, 109, &Answer::KeptAlive);
    assert_eq!(state.machine.belief, Some(at(104) + (TTL - TTL / 100)));
}

/// Peers 3: the loss does not wait for the renewal that is under way.
#[test]
fn a_renewal_without_an_answer_does_not_hold_up_the_loss() {
    let mut state = held();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let out = step(&mut state, 112, Event::Wake);
    assert!(out.iter().any(|output| matches!(output, Output::Lost { cause: LossCause::Expired, .. })));
}

/// Peers 4: failed renewals are tried again, and a definite word is believed at once.
#[test]
fn a_hold_survives_renewals_that_fail_and_not_a_session_that_is_gone() {
    let mut state = held();
    for secs in 104..110 {
        let _ = step(&mut state, secs, Event::Wake);
        assert!(fail(&mut state, secs).is_empty());
    }
    assert_eq!(keep_alives(&step(&mut state, 110, Event::Wake)), 1);
    let _ = answer(&mut state, 110, &Answer::KeptAlive);
    assert_eq!(state.machine.belief, Some(at(110) + (TTL - TTL / 100)));
    let _ = step(&mut state, 115, Event::Wake);
    let out = answer(&mut state, 115, &Answer::SessionGone);
    assert!(matches!(out[0], Output::Lost { cause: LossCause::SessionEnded, .. }));
}

/// Peers 5 and 6: an answer that comes after the loss does not bring the hold back.
#[test]
fn a_renewal_that_is_answered_after_the_deadline_revives_no_hold() {
    let mut state = held();
    let _ = step(&mut state, 111, Event::Wake);
    let renewal = *state.calls.last_key_value().unwrap().0;
    let _ = step(&mut state, 112, Event::Wake);
    let _ = step(&mut state, 112, Event::Answered { call: renewal, answer: Answer::KeptAlive });
    assert_eq!(state.machine.seq_of(KEY), None);
}

#[test]
fn who_leaves_a_silent_service_is_gone_when_its_session_is_over() {
    let mut state = held();
    let _ = step(&mut state, 101, Event::Shutdown);
    let _ = fail(&mut state, 101);
    assert!(!state.machine.is_closed(), "the release is still being sent");
    let over = state.machine.belief.expect("the session has a deadline");
    assert!(state.machine.next_wake().is_some_and(|wake| wake <= over), "it wakes for the end");
    let _ = state.step(over, Event::Wake).unwrap();
    assert!(state.machine.is_closed());
}

/// A session with `linger` of 1 s and one hold, asked for and granted at second 100.
fn held_with_linger() -> Checked {
    let mut state = Checked::new(Spec { linger: Duration::from_secs(1), ..spec() });
    let _ = acquire(&mut state, 100, want());
    answer(&mut state, 100, &Answer::Opened);
    assert!(matches!(answer(&mut state, 100, &granted(1))[..], [Output::Granted { .. }]));
    state
}

fn detach(state: &mut Checked, secs: u64) -> Vec<Output> {
    step(state, secs, Event::Pushed(Push::Detached { at: at(secs) }))
}

#[test]
fn a_stream_that_ends_leaves_linger_and_the_next_attach_restores_the_ttl() {
    let mut state = held_with_linger();
    let out = detach(&mut state, 102);
    assert_eq!(keep_alives(&out), 1, "asks for the next attach at once");
    assert_eq!(state.machine.belief, Some(at(102) + Duration::from_millis(990)));
    let _ = answer(&mut state, 102, &Answer::KeptAlive);
    assert_eq!(state.machine.belief, Some(at(102) + (TTL - TTL / 100)));
}

#[test]
fn what_was_acknowledged_on_the_stream_that_ended_does_not_count() {
    let mut state = held_with_linger();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let before = *state.calls.last_key_value().unwrap().0;
    let _ = detach(&mut state, 105);
    let _ = step(&mut state, 105, Event::Answered { call: before, answer: Answer::KeptAlive });
    assert_eq!(state.machine.belief, Some(at(105) + Duration::from_millis(990)));
    let out = step(&mut state, 106, Event::Wake);
    assert!(out.iter().any(|output| matches!(output, Output::Lost { cause: LossCause::Expired, .. })));
}

#[test]
fn a_stream_that_ends_makes_no_deadline_later_and_says_nothing_without_linger() {
    let mut state = held_with_linger();
    let until = state.machine.belief.unwrap();
    let late = BootInstant::from_nanos(until.as_nanos() - 1);
    let _ = state.step(late, Event::Pushed(Push::Detached { at: late })).unwrap();
    assert_eq!(state.machine.belief, Some(until));
    let mut state = held();
    let until = state.machine.belief;
    assert!(detach(&mut state, 102).is_empty());
    assert_eq!(state.machine.belief, until);
}

/// The word that a hold is over can overtake its grant, if the caller's task is slow to hear of that.
#[test]
fn a_grant_that_is_heard_after_its_end_is_not_handed_out() {
    for push in [Push::Ended { seq: Seq(3), end: End::Broken }, Push::Revoked { seq: Seq(3) }] {
        let mut state = open();
        let out = acquire(&mut state, 100, want());
        let [Output::Call { call, what: What::Acquire { seq: Seq(3), .. }, .. }] = out[..] else {
            panic!("{out:?}")
        };
        let out = step(&mut state, 100, Event::Pushed(push));
        assert!(
            out.iter().any(|o| matches!(o, Output::Call { what: What::Finish { target: Seq(3), .. }, .. })),
            "{out:?}"
        );
        let _ = step(&mut state, 100, Event::Answered { call, answer: granted(1) });
        assert_eq!(state.machine.seq_of(KEY), None);
    }
}
