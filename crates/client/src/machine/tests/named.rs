//! Regression tests: event sequences that once failed here, and known bugs of other lock clients that apply
//! to the machine.

use lockkeeper_backend::{BackendError, BackendErrorKind};

use super::checker::Checked;
use super::*;

const KEY: Key = Key(1);

/// A session opened at second 100, without requests.
fn open() -> Checked {
    let mut state = Checked::new(spec());
    let _ = state.step(at(100), Event::Acquire { key: Key(0), limits: limits() }).unwrap();
    answer(&mut state, 100, &Answer::Opened);
    let _ = state.step(at(100), Event::Abandon { key: Key(0) }).unwrap();
    answer(&mut state, 100, &Answer::Finished(End::Left));
    state
}

/// Answers the latest call.
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

fn acquire(state: &mut Checked, secs: u64, limits: AcquireLimits) -> Vec<Output> {
    step(state, secs, Event::Acquire { key: KEY, limits })
}

/// A session with one hold, requested and granted at second 100.
fn held() -> Checked {
    let mut state = open();
    let _ = acquire(&mut state, 100, limits());
    assert!(matches!(answer(&mut state, 100, &granted(1))[..], [Output::Granted { .. }]));
    state
}

fn keep_alives(out: &[Output]) -> usize {
    out.iter().filter(|output| matches!(output, Output::Call { kind: CallKind::KeepAlive, .. })).count()
}

#[test]
fn a_retried_finish_does_not_cause_a_busy_loop() {
    let mut state = held();
    let _ = step(&mut state, 100, Event::Abandon { key: KEY });
    let _ = fail(&mut state, 100);
    let _ = step(&mut state, 101, Event::Wake);
    assert!(state.machine.next_wake() > Some(at(101)), "the second try is under way");
}

/// Regression: with a service that had no leader, `run --wait 2s` reported that the lock was busy.
#[test]
fn a_wait_that_ends_without_any_answer_reports_an_unreachable_backend() {
    let mut state = Checked::new(spec());
    let _ = acquire(&mut state, 100, AcquireLimits { wait_until: Some(at(102)), ..limits() });
    let out = step(&mut state, 102, Event::Wake);
    assert!(matches!(out[..], [Output::NotAcquired { why: NotAcquired::Unreachable, .. }]), "{out:?}");
    // The backend has answered, but not this request.
    let mut state = held();
    let late = AcquireLimits { wait_until: Some(at(102)), min_validity: TTL, ..limits() };
    let _ = step(&mut state, 100, Event::Acquire { key: Key(2), limits: late });
    let out = step(&mut state, 102, Event::Wake);
    let why = out.iter().find_map(|output| match output {
        Output::NotAcquired { key: Key(2), why } => Some(why),
        _ => None,
    });
    assert!(matches!(why, Some(NotAcquired::TimedOut)), "{out:?}");
}

/// Regression: a server that refused for the whole wait (READONLY) was reported as a busy lock.
#[test]
fn a_wait_without_an_answer_to_its_request_is_not_reported_as_busy() {
    let limits = AcquireLimits { wait_until: Some(at(102)), ..limits() };
    let why = |out: &[Output]| match out {
        [.., Output::NotAcquired { why, .. }] => why.clone(),
        _ => panic!("{out:?}"),
    };
    // Every attempt was refused.
    let mut state = open();
    let _ = acquire(&mut state, 100, limits);
    let call = last_call(&state);
    let _ = step(&mut state, 100, Event::Failed { call, sent: false });
    let out = step(&mut state, 102, Event::Wake);
    let ended = out.iter().find(|output| matches!(output, Output::NotAcquired { .. })).cloned();
    assert!(matches!(why(&[ended.unwrap()]), NotAcquired::Unreachable), "{out:?}");
    // One may have arrived: the answer to the Finish decides.
    let mut state = open();
    let _ = acquire(&mut state, 100, limits);
    let _ = fail(&mut state, 100);
    let _ = step(&mut state, 102, Event::Wake);
    let out = answer(&mut state, 102, &Answer::Finished(End::Gone));
    assert!(matches!(why(&out), NotAcquired::Unreachable), "{out:?}");
    // The backend has said before that the lock is not free.
    let mut state = open();
    let _ = acquire(&mut state, 100, limits);
    let call = last_call(&state);
    let Some(&CallKind::Acquire { seq, .. }) = state.machine.kind_of(call) else { panic!("an acquire") };
    let _ = step(&mut state, 100, Event::Pushed(Push::Queued { seq, position: 1 }));
    let _ = fail(&mut state, 100);
    let _ = step(&mut state, 102, Event::Wake);
    let out = answer(&mut state, 102, &Answer::Finished(End::Left));
    assert!(matches!(why(&out), NotAcquired::TimedOut), "{out:?}");
}

#[test]
fn patience_shorter_than_the_ttl_limits_the_wait_for_a_silent_backend() {
    let mut state = Checked::new(spec());
    let _ = acquire(&mut state, 100, AcquireLimits { patience: Some(Duration::from_secs(3)), ..limits() });
    assert!(step(&mut state, 102, Event::Wake).iter().all(|out| !matches!(out, Output::NotAcquired { .. })));
    assert!(state.machine.next_wake() <= Some(at(103)));
    let out = step(&mut state, 103, Event::Wake);
    assert!(matches!(out[..], [Output::NotAcquired { why: NotAcquired::Unreachable, .. }]), "{out:?}");
}

#[test]
fn an_acquire_after_shutdown_is_refused_at_once() {
    let mut state = held();
    let _ = step(&mut state, 100, Event::Shutdown);
    let out = step(&mut state, 100, Event::Acquire { key: Key(2), limits: limits() });
    assert!(matches!(out[..], [Output::NotAcquired { why: NotAcquired::ShuttingDown, .. }]));
}

#[test]
fn a_late_queue_position_is_not_reported_to_a_holder() {
    let mut state = held();
    let seq = state.machine.seq_of(KEY).unwrap();
    assert!(step(&mut state, 100, Event::Pushed(Push::Queued { seq, position: 0 })).is_empty());
}

#[test]
fn a_repeated_request_is_sent_after_the_finish_of_the_one_it_replaces() {
    let mut state = open();
    let _ = acquire(&mut state, 100, limits());
    let out = answer(&mut state, 100, &Answer::Finished(End::Broken));
    let [
        Output::Call { kind: CallKind::Finish { seq: end, .. }, .. },
        Output::Call { kind: CallKind::Acquire { seq, .. }, .. },
    ] = out[..]
    else {
        panic!("{out:?}")
    };
    assert!(end < seq);
}

/// The connection may have repeated the request after the permission was taken away, with the first attempt
/// on its way.
#[test]
fn a_denied_request_is_finished_since_an_earlier_attempt_may_be_granted() {
    for (kind, finishes) in [(BackendErrorKind::Denied, 1), (BackendErrorKind::Refused, 0)] {
        let mut state = open();
        let out = acquire(&mut state, 100, limits());
        let [Output::Call { kind: CallKind::Acquire { seq, .. }, .. }] = out[..] else { panic!("{out:?}") };
        let out = answer(&mut state, 100, &Answer::Refused(BackendError::new(kind, "no")));
        assert!(matches!(out[..], [Output::NotAcquired { why: NotAcquired::Refused(_), .. }, ..]), "{out:?}");
        let is_finish = |output: &&Output| matches!(output, Output::Call { kind: CallKind::Finish { target, .. }, .. } if *target == seq);
        assert_eq!(out.iter().filter(is_finish).count(), finishes, "{out:?}");
    }
}

#[test]
fn a_refused_keep_alive_ends_no_hold_before_its_deadline() {
    let mut state = held();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let refusal = BackendError::new(BackendErrorKind::Operator, "not now");
    assert!(answer(&mut state, 104, &Answer::Refused(refusal)).is_empty());
    assert_eq!(keep_alives(&step(&mut state, 105, Event::Wake)), 1, "tried again after a twelfth of the ttl");
    let _ = answer(&mut state, 105, &Answer::KeptAlive);
    assert_eq!(state.machine.lease_deadline, Some(at(105) + (TTL - TTL / 100)));
}

#[test]
fn a_request_that_waits_for_a_failing_renewal_causes_no_busy_loop() {
    let mut state = held();
    let _ = step(&mut state, 113, Event::Wake);
    let mut tries = keep_alives(&step(&mut state, 113, Event::Acquire { key: Key(2), limits: limits() }));
    for _ in 0..20 {
        if state.calls.is_empty() {
            break;
        }
        // The driver reports an immediate failure without a delay.
        tries += keep_alives(&fail(&mut state, 113));
    }
    assert!(tries <= 1, "{tries} tries in one moment");
}

/// After a stall of the service, a grant may arrive before the keep-alives are answered. Regression: the
/// client released such a grant and lost its place in the queue.
#[test]
fn a_grant_received_before_the_session_is_confirmed_keeps_its_turn() {
    let mut state = open();
    let _ = acquire(&mut state, 100, limits());
    let acquired = last_call(&state);
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let early = last_call(&state);
    assert_eq!(keep_alives(&step(&mut state, 110, Event::Wake)), 1);
    let late = last_call(&state);
    let ends = |out: &[Output]| {
        out.iter()
            .filter(|output| matches!(output, Output::Call { kind: CallKind::Finish { .. }, .. }))
            .count()
    };
    let is_granted = |out: &[Output]| out.iter().any(|output| matches!(output, Output::Granted { .. }));
    let out = answer_to(&mut state, 117, acquired, &granted(7));
    assert!(!is_granted(&out) && ends(&out) == 0, "nothing can be believed in yet: {out:?}");
    let out = answer_to(&mut state, 117, early, &Answer::KeptAlive);
    assert!(!is_granted(&out) && ends(&out) == 0, "what that says is over already: {out:?}");
    let out = answer_to(&mut state, 117, late, &Answer::KeptAlive);
    assert!(is_granted(&out) && ends(&out) == 0, "{out:?}");
    assert_eq!(state.machine.lease_deadline, Some(at(110) + (TTL - TTL / 100)));
}

/// A request that was granted early, and whose wait ends before the session is confirmed, leaves nothing at
/// the service.
#[test]
fn an_early_grant_is_released_if_its_caller_gives_up() {
    let mut state = open();
    let _ = acquire(&mut state, 100, AcquireLimits { wait_until: Some(at(118)), ..limits() });
    let acquired = last_call(&state);
    let _ = step(&mut state, 110, Event::Wake);
    let _ = answer_to(&mut state, 117, acquired, &granted(7));
    assert!(state.machine.next_wake() <= Some(at(118)));
    let out = step(&mut state, 118, Event::Wake);
    assert!(
        out.iter().any(|output| matches!(output, Output::Call { kind: CallKind::Finish { .. }, .. })),
        "{out:?}"
    );
}

/// Deadlines count from the sending of a keep-alive, not from its answer.
#[test]
fn a_slow_answer_does_not_lengthen_the_deadline() {
    let mut state = held();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let _ = answer(&mut state, 109, &Answer::KeptAlive);
    assert_eq!(state.machine.lease_deadline, Some(at(104) + (TTL - TTL / 100)));
}

/// The loss is signalled at the deadline even if a renewal is in flight.
#[test]
fn an_unanswered_renewal_does_not_delay_the_loss() {
    let mut state = held();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let out = step(&mut state, 112, Event::Wake);
    assert!(out.iter().any(|output| matches!(output, Output::Lost { cause: LossCause::Expired, .. })));
}

/// Failed renewals are retried, and a definite answer takes effect at once.
#[test]
fn a_hold_survives_failed_renewals_but_not_the_end_of_its_session() {
    let mut state = held();
    for secs in 104..110 {
        let _ = step(&mut state, secs, Event::Wake);
        assert!(fail(&mut state, secs).is_empty());
    }
    assert_eq!(keep_alives(&step(&mut state, 110, Event::Wake)), 1);
    let _ = answer(&mut state, 110, &Answer::KeptAlive);
    assert_eq!(state.machine.lease_deadline, Some(at(110) + (TTL - TTL / 100)));
    let _ = step(&mut state, 115, Event::Wake);
    let out = answer(&mut state, 115, &Answer::SessionGone);
    assert!(matches!(out[0], Output::Lost { cause: LossCause::SessionEnded, .. }));
}

/// A renewal acknowledged after the loss does not restore the hold.
#[test]
fn a_renewal_acknowledged_after_the_deadline_does_not_restore_a_hold() {
    let mut state = held();
    let _ = step(&mut state, 111, Event::Wake);
    let renewal = *state.calls.last_key_value().unwrap().0;
    let _ = step(&mut state, 112, Event::Wake);
    let _ = step(&mut state, 112, Event::Answered { call: renewal, answer: Answer::KeptAlive });
    assert_eq!(state.machine.seq_of(KEY), None);
}

#[test]
fn shutdown_at_a_silent_service_ends_with_the_session() {
    let mut state = held();
    let _ = step(&mut state, 101, Event::Shutdown);
    let _ = fail(&mut state, 101);
    assert!(!state.machine.is_closed(), "the release is still being sent");
    let over = state.machine.lease_deadline.expect("the session has a deadline");
    assert!(state.machine.next_wake().is_some_and(|wake| wake <= over), "it wakes for the end");
    let _ = state.step(over, Event::Wake).unwrap();
    assert!(state.machine.is_closed());
}

/// A session with `linger` of 1 s and one hold, requested and granted at second 100.
fn held_with_linger() -> Checked {
    let mut state = Checked::new(Spec { linger: Duration::from_secs(1), ..spec() });
    let _ = acquire(&mut state, 100, limits());
    answer(&mut state, 100, &Answer::Opened);
    assert!(matches!(answer(&mut state, 100, &granted(1))[..], [Output::Granted { .. }]));
    state
}

fn detach(state: &mut Checked, secs: u64) -> Vec<Output> {
    step(state, secs, Event::Pushed(Push::Detached { at: at(secs), announced: false }))
}

#[test]
fn a_stream_that_ends_leaves_linger_and_the_next_attach_restores_the_ttl() {
    let mut state = held_with_linger();
    let out = detach(&mut state, 102);
    assert_eq!(keep_alives(&out), 1, "asks for the next attach at once");
    assert_eq!(state.machine.lease_deadline, Some(at(102) + Duration::from_millis(990)));
    let _ = answer(&mut state, 102, &Answer::KeptAlive);
    assert_eq!(state.machine.lease_deadline, Some(at(102) + (TTL - TTL / 100)));
}

#[test]
fn an_acknowledgement_from_an_ended_stream_is_ignored() {
    let mut state = held_with_linger();
    assert_eq!(keep_alives(&step(&mut state, 104, Event::Wake)), 1);
    let before = *state.calls.last_key_value().unwrap().0;
    let _ = detach(&mut state, 105);
    let _ = step(&mut state, 105, Event::Answered { call: before, answer: Answer::KeptAlive });
    assert_eq!(state.machine.lease_deadline, Some(at(105) + Duration::from_millis(990)));
    let out = step(&mut state, 106, Event::Wake);
    assert!(out.iter().any(|output| matches!(output, Output::Lost { cause: LossCause::Expired, .. })));
}

#[test]
fn the_end_of_a_stream_never_extends_a_deadline_and_is_ignored_without_linger() {
    let mut state = held_with_linger();
    let until = state.machine.lease_deadline.unwrap();
    let late = BootInstant::from_nanos(until.as_nanos() - 1);
    let _ = state.step(late, Event::Pushed(Push::Detached { at: late, announced: false })).unwrap();
    assert_eq!(state.machine.lease_deadline, Some(until));
    let mut state = held();
    let until = state.machine.lease_deadline;
    assert!(matches!(detach(&mut state, 102)[..], [Output::Attached(false)]));
    assert_eq!(state.machine.lease_deadline, until);
}

/// The push that a request has ended can overtake its grant, if the caller's task processes the grant late.
#[test]
fn a_grant_received_after_the_end_of_its_request_is_ignored() {
    for push in [Push::Ended { seq: Seq(3), end: End::Broken }, Push::Revoked { seq: Seq(3), notice: None }] {
        let mut state = open();
        let out = acquire(&mut state, 100, limits());
        let [Output::Call { call, kind: CallKind::Acquire { seq: Seq(3), .. }, .. }] = out[..] else {
            panic!("{out:?}")
        };
        let out = step(&mut state, 100, Event::Pushed(push));
        assert!(
            out.iter()
                .any(|o| matches!(o, Output::Call { kind: CallKind::Finish { target: Seq(3), .. }, .. })),
            "{out:?}"
        );
        let _ = step(&mut state, 100, Event::Answered { call, answer: granted(1) });
        assert_eq!(state.machine.seq_of(KEY), None);
    }
}

#[test]
fn an_announced_end_of_a_stream_starts_no_linger() {
    let mut state = held_with_linger();
    let until = state.machine.lease_deadline;
    let ended = Event::Pushed(Push::Detached { at: at(102), announced: true });
    assert!(matches!(step(&mut state, 102, ended)[..], [Output::Attached(false)]));
    assert_eq!(state.machine.lease_deadline, until);
    assert!(matches!(step(&mut state, 103, Event::Pushed(Push::Attached))[..], [Output::Attached(true)]));
}

/// The caller's task may process the grant late; the recall must not wait for the next keep-alive then.
#[test]
fn a_recall_that_overtakes_its_grant_is_told_with_the_grant() {
    let mut state = open();
    let out = acquire(&mut state, 100, limits());
    let [Output::Call { call, kind: CallKind::Acquire { seq, .. }, .. }] = out[..] else { panic!("{out:?}") };
    assert!(step(&mut state, 100, Event::Pushed(Push::Recalled { seq })).is_empty());
    let out = step(&mut state, 100, Event::Answered { call, answer: granted(1) });
    assert!(matches!(out[..], [Output::Granted { .. }, Output::Recalled { key: KEY }]), "{out:?}");
}

fn try_limits() -> AcquireLimits {
    AcquireLimits { patience: Some(Duration::from_secs(10)), ..limits() }
}

#[test]
fn a_try_that_was_put_off_and_timed_out_is_busy() {
    let mut state = open();
    let out = acquire(&mut state, 100, try_limits());
    let [Output::Call { call, kind: CallKind::Acquire { seq, .. }, .. }] = out[..] else { panic!("{out:?}") };
    let _ = step(&mut state, 100, Event::Pushed(Push::Queued { seq, position: 0 }));
    let out = step(&mut state, 101, Event::Answered { call, answer: Answer::Finished(End::TimedOut) });
    assert!(
        out.iter().any(|it| matches!(it, Output::NotAcquired { key: KEY, why: NotAcquired::Busy(_) })),
        "{out:?}"
    );
}

#[test]
fn a_try_that_was_put_off_is_given_up_without_an_answer() {
    let mut state = open();
    let out = acquire(&mut state, 100, try_limits());
    let [Output::Call { kind: CallKind::Acquire { seq, .. }, .. }] = out[..] else { panic!("{out:?}") };
    let _ = step(&mut state, 100, Event::Pushed(Push::Queued { seq, position: 0 }));
    let mut now = 100;
    let mut out = Vec::new();
    while now < 110 && out.is_empty() {
        now = (now + 1).min(110);
        out = step(&mut state, now, Event::Wake);
        out.retain(|it| matches!(it, Output::NotAcquired { .. }));
    }
    assert!(matches!(out[..], [Output::NotAcquired { key: KEY, why: NotAcquired::Ambiguous }]), "{out:?}");
    assert_eq!(now, 110);
}

#[test]
fn a_settle_without_an_answer_is_sent_again_with_the_next_recall() {
    let mut state = held();
    let settled = |out: &[Output]| match out {
        [Output::Call { call, kind: CallKind::Settle { seq, .. }, .. }] => Some((*call, *seq)),
        _ => None,
    };
    let first = step(&mut state, 100, Event::Settle { key: KEY });
    let (call, seq) = settled(&first).expect("it is sent");
    assert!(step(&mut state, 100, Event::Settle { key: KEY }).is_empty(), "one is under way");
    assert!(step(&mut state, 101, Event::Failed { call, sent: true }).is_empty());
    let again = step(&mut state, 102, Event::Settle { key: KEY });
    let (call, new_seq) = settled(&again).expect("it is sent again");
    assert!(new_seq > seq);
    let out = step(&mut state, 102, Event::Answered { call, answer: Answer::Revoked });
    assert!(matches!(out[..], [Output::Lost { key: KEY, cause: LossCause::Broken }]), "{out:?}");
    assert!(step(&mut state, 102, Event::Settle { key: KEY }).is_empty(), "it is lost");
}

/// As a hostile service does, or one whose table is emptied again and again.
#[test]
fn service_that_ends_every_session_at_once_is_called_with_growing_pauses() {
    let opens = |out: &[Output]| {
        out.iter().filter(|output| matches!(output, Output::Call { kind: CallKind::Open { .. }, .. })).count()
    };
    let mut state = Checked::new(spec());
    let mut now = at(100);
    let mut opened = opens(&state.step(now, Event::Acquire { key: KEY, limits: limits() }).unwrap());
    while now < at(110) {
        let call = last_call(&state);
        let _ = state.step(now, Event::Answered { call, answer: Answer::Opened }).unwrap();
        let call = last_call(&state);
        let mut out = state.step(now, Event::Answered { call, answer: Answer::SessionGone }).unwrap();
        while opens(&out) == 0 {
            now = state.machine.next_wake().expect("a time to try again");
            out = state.step(now, Event::Wake).unwrap();
        }
        opened += 1;
    }
    assert!((10..=20).contains(&opened), "{opened} sessions in ten seconds");
}
