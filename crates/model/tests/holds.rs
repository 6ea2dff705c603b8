//! With every rule in place, no promise breaks in any order of events.
//!
//! Each test asserts the number of states: a model that shrinks unnoticed would prove less.

use lockkeeper_model::{Model, explore};

/// The test runner already runs the tests in parallel.
const THREADS: usize = 1;

/// Two leaders, two streams, one renewal at a time, and none of the optional events.
const SMALL: Model = Model {
    leaders: 2,
    streams: 2,
    calls: 1,
    expiry: false,
    linger: false,
    breaks: false,
    drops: false,
    middlebox: false,
    without: None,
};

fn holds(model: Model, states: usize, must_reach: &[&str]) {
    let report = explore(model, &[], THREADS);
    assert!(report.broken.is_empty(), "{model:?} breaks {:#?}", report.broken);
    for event in must_reach {
        assert!(report.reached.contains(event), "{model:?} never reached: {event}");
    }
    assert_eq!(report.states, states, "{model:?} has another number of states than before");
}

const LATE: &str = "a deposed leader asks for a sign that came too late";
const CONFIRMED: &str = "a later leader is confirmed for a sign of life";
const INHERITS: &str = "a later leader inherits the session's end";
const ENDS: &str = "a later leader ends the session";
const MEANWHILE: &str = "a check finds a sign that came meanwhile";
const LINGERS: &str = "linger begins";
const TAKEN_BACK: &str = "a newer attach takes linger back";
const TOLD: &str = "a lock opens whose holder was told";
const NEVER_TOLD: &str = "a lock opens whose holder was never told";

#[test]
fn a_silent_session_ends_after_its_client_gave_up() {
    let world = Model { expiry: true, calls: 2, drops: true, ..SMALL };
    holds(world, 2_030_071, &[LATE, CONFIRMED, INHERITS, ENDS, MEANWHILE]);
}

#[test]
fn linger_ends_a_session_after_its_client_gave_up() {
    let world = Model { expiry: true, linger: true, calls: 2, drops: true, ..SMALL };
    holds(world, 2_808_588, &[LATE, CONFIRMED, INHERITS, ENDS, MEANWHILE, LINGERS, TAKEN_BACK]);
}

#[test]
fn revoked_hold_opens_after_its_holder_was_notified_or_gave_up() {
    let world = Model { breaks: true, leaders: 3, ..SMALL };
    holds(world, 1_859_866, &[LATE, CONFIRMED, TOLD, NEVER_TOLD]);
}

#[test]
fn three_successive_leaders_break_no_promise() {
    let world = Model { expiry: true, leaders: 3, ..SMALL };
    holds(world, 1_337_280, &[LATE, CONFIRMED, INHERITS, ENDS, MEANWHILE]);
}

#[test]
fn without_linger_a_middlebox_breaks_no_promise() {
    let world = Model { expiry: true, middlebox: true, ..SMALL };
    holds(world, 609_125, &[LATE, CONFIRMED, INHERITS, ENDS, MEANWHILE]);
}
