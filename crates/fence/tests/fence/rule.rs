//! Scenarios of the fence rules F-a to F-d, and counterexamples to simpler rules.

use lockkeeper_core::limits::PERMITS_MAX;
use lockkeeper_core::{ModeKind, Slot, Token};
use lockkeeper_fence::{Action, Marks, Pair, Passed, Refused, Section};

fn token(value: u64) -> Token {
    Token::new(value).expect("a token")
}

fn exclusive(value: u64) -> Section {
    Section::exclusive(token(value))
}

fn shared(value: u64) -> Section {
    Section::shared(token(value))
}

fn permit(slot: Slot, value: u64) -> Section {
    Section::permit(slot, token(value)).expect("a slot")
}

fn stale(offered: u64, highest: u64) -> Result<Passed, Refused> {
    Err(Refused::Stale { offered: token(offered), highest: token(highest) })
}

/// A resource with a number, which sections read, increment and write back.
#[derive(Default)]
struct Resource {
    marks: Marks,
    number: u64,
}

impl Resource {
    fn enter(&mut self, section: Section) -> Result<Passed, Refused> {
        self.marks.check(Action::Enter, section)
    }

    fn write(&mut self, section: Section, number: u64) -> Result<Passed, Refused> {
        let passed = self.marks.check(Action::Write, section)?;
        self.number = number;
        Ok(passed)
    }

    fn check_once(&mut self, section: Section) -> Result<Passed, Refused> {
        self.marks.check(Action::CheckOnce, section)
    }
}

/// Shows why `enter` exists: with a check on writes only, an update is lost if the stalled holder resumes
/// before the holder of the later token has written.
#[test]
fn a_check_on_writes_only_loses_an_update_and_enter_does_not() {
    let (a, b) = (exclusive(5), exclusive(6));

    let mut writes_only = Resource { number: 10, ..Resource::default() };
    let a_read = writes_only.number;
    let b_read = writes_only.number; // A has stalled, its lease has ended, B has the lock
    assert_eq!(writes_only.write(a, a_read + 1), Ok(Passed::Raised), "a wakes: nobody wrote with 6 yet");
    assert_eq!(writes_only.write(b, b_read + 1), Ok(Passed::Raised));
    assert_eq!(writes_only.number, 11, "two acknowledged updates, one of them lost");

    let mut entered = Resource { number: 10, ..Resource::default() };
    assert_eq!(entered.enter(a), Ok(Passed::Raised));
    let a_read = entered.number;
    assert_eq!(entered.enter(b), Ok(Passed::Raised));
    let b_read = entered.number;
    assert_eq!(entered.write(a, a_read + 1), stale(5, 6), "a wakes and is told");
    assert_eq!(entered.write(b, b_read + 1), Ok(Passed::Unchanged));
    assert_eq!(entered.number, 11, "one acknowledged update, and it is there");
}

#[test]
fn f6_permits_of_different_slots_run_concurrently() {
    let mut resource = Resource::default();
    assert_eq!(resource.enter(permit(1, 1)), Ok(Passed::Raised));
    assert_eq!(resource.enter(permit(0, 2)), Ok(Passed::Raised));
    assert_eq!(resource.write(permit(1, 1), 1), Ok(Passed::Unchanged), "slot 1 has its own marks (P3-a)");
    assert_eq!(resource.write(permit(0, 1), 1), stale(1, 2), "within a slot the later one counts");
}

/// P3-a requires *all* sections to enter: an update can be lost if a single one does not.
#[test]
fn f7_a_later_section_that_does_not_enter_loses_the_update_of_one_that_did() {
    let mut resource = Resource { number: 10, ..Resource::default() };
    let (first, reckless) = (exclusive(1), exclusive(2));
    assert_eq!(resource.enter(first), Ok(Passed::Raised));
    let first_read = resource.number;
    let reckless_read = resource.number;
    assert_eq!(resource.write(first, first_read + 1), Ok(Passed::Unchanged));
    assert_eq!(resource.write(reckless, reckless_read + 1), Ok(Passed::Raised));
    assert_eq!(resource.number, 11, "the update of 1 is lost");
}

#[test]
fn f8_a_slot_never_seen_has_the_marks_of_the_base() {
    let mut resource = Resource::default();
    assert_eq!(resource.enter(exclusive(2)), Ok(Passed::Raised));
    assert_eq!(resource.enter(permit(0, 1)), stale(1, 2));
    assert_eq!(resource.write(permit(0, 1), 1), stale(1, 2));
    assert_eq!(resource.enter(permit(0, 3)), Ok(Passed::Raised));
}

#[test]
fn f9_a_write_is_never_checked_by_the_shared_rule() {
    let mut resource = Resource::default();
    assert_eq!(resource.enter(shared(1)), Ok(Passed::Raised));
    assert_eq!(resource.enter(shared(2)), Ok(Passed::Raised));
    for action in [Action::Write, Action::CheckOnce] {
        let before = resource.marks.clone();
        assert_eq!(resource.marks.check(action, shared(3)), Err(Refused::SharedWrite { action }));
        assert_eq!(resource.marks, before);
    }
    assert_eq!(resource.write(exclusive(1), 1), stale(1, 2), "nor may it slip under a reader as exclusive");
}

#[test]
fn f14_downgraded_holder_and_later_reader_both_pass() {
    let mut resource = Resource::default();
    assert_eq!(resource.write(exclusive(1), 1), Ok(Passed::Raised));
    assert_eq!(resource.enter(shared(1)), Ok(Passed::Unchanged), "downgraded: shared from here on");
    assert_eq!(resource.enter(shared(2)), Ok(Passed::Raised));
    assert_eq!(resource.enter(shared(1)), Ok(Passed::Unchanged), "the live holder is not turned away");
    assert_eq!(resource.write(exclusive(1), 2), stale(1, 2), "a write it sent before its downgrade is");
}

#[test]
fn a_resource_never_seen_accepts_any_token() {
    for section in [exclusive(1), shared(1), permit(7, 1), exclusive((1 << 53) - 1)] {
        assert_eq!(Resource::default().enter(section), Ok(Passed::Raised));
    }
}

#[test]
fn equal_tokens_pass_except_at_check_once() {
    let mut resource = Resource::default();
    assert_eq!(resource.check_once(exclusive(4)), Ok(Passed::Raised));
    assert_eq!(resource.check_once(exclusive(4)), Err(Refused::Repeated { token: token(4) }));
    assert_eq!(resource.check_once(exclusive(3)), stale(3, 4));
    assert_eq!(resource.write(exclusive(4), 1), Ok(Passed::Unchanged));
    assert_eq!(resource.write(exclusive(4), 2), Ok(Passed::Unchanged));
}

/// F-d: `check_once` replaces enter and write; after enter it always finds its own token.
#[test]
fn check_once_after_enter_is_a_repeat() {
    let mut resource = Resource::default();
    assert_eq!(resource.enter(exclusive(4)), Ok(Passed::Raised));
    assert_eq!(resource.check_once(exclusive(4)), Err(Refused::Repeated { token: token(4) }));
}

#[test]
fn live_readers_all_pass_and_a_late_writer_below_them_is_stale() {
    let mut resource = Resource::default();
    for reader in [2, 4, 3, 2] {
        assert!(resource.enter(shared(reader)).is_ok(), "reader {reader}");
    }
    assert_eq!(resource.write(exclusive(3), 1), stale(3, 4));
    assert_eq!(resource.write(exclusive(5), 1), Ok(Passed::Raised));
    assert_eq!(resource.enter(shared(4)), stale(4, 5), "a reader below a writer is stale");
}

/// F-b: a token without a slot is checked against the marks of every slot, and raises them all.
#[test]
fn token_without_a_slot_is_checked_against_and_raises_every_slot() {
    for without_slot in
        [exclusive, |value| Section::new(ModeKind::Permit, None, token(value)).expect("a section")]
    {
        let mut resource = Resource::default();
        assert_eq!(resource.enter(permit(0, 5)), Ok(Passed::Raised));
        assert_eq!(resource.enter(permit(9, 8)), Ok(Passed::Raised));
        assert_eq!(resource.write(without_slot(7), 1), stale(7, 8), "slot 9 has seen 8");
        assert_eq!(resource.write(without_slot(10), 1), Ok(Passed::Raised));
        for slot in [0, 9, 44] {
            assert_eq!(resource.enter(permit(slot, 9)), stale(9, 10), "slot {slot}");
        }
    }
}

#[test]
fn reader_is_checked_against_the_writers_of_every_slot_and_makes_lower_ones_stale() {
    let mut resource = Resource::default();
    assert_eq!(resource.enter(permit(0, 5)), Ok(Passed::Raised));
    assert_eq!(resource.enter(shared(4)), stale(4, 5));
    assert_eq!(resource.enter(shared(7)), Ok(Passed::Raised));
    assert_eq!(resource.enter(shared(6)), Ok(Passed::Unchanged), "no writer is above 6");
    assert_eq!(resource.write(permit(0, 6), 1), stale(6, 7));
    assert_eq!(resource.write(permit(1, 6), 1), stale(6, 7), "a slot never seen, too");
}

#[test]
fn slots_not_above_the_base_are_dropped() {
    let mut resource = Resource::default();
    for slot in 0..100 {
        assert_eq!(resource.enter(permit(slot, u64::from(slot) + 1)), Ok(Passed::Raised));
    }
    assert_eq!(resource.marks.slots.len(), 100);
    assert_eq!(resource.enter(exclusive(200)), Ok(Passed::Raised));
    let mark = Some(token(200));
    assert_eq!(resource.marks, Marks { base: Pair { any: mark, writer: mark }, ..Marks::default() });
}

#[test]
fn a_slot_needs_a_permit_and_has_a_limit() {
    for mode in [ModeKind::Exclusive, ModeKind::Shared] {
        assert_eq!(Section::new(mode, Some(3), token(1)), Err(Refused::SlotWithoutPermit { mode, slot: 3 }));
    }
    assert!(Section::permit(PERMITS_MAX - 1, token(1)).is_ok());
    let slot = PERMITS_MAX;
    assert_eq!(Section::permit(slot, token(1)), Err(Refused::SlotTooHigh { slot }));
}

#[test]
fn refusal_text_names_the_fault_and_the_remedy() {
    let mut resource = Resource::default();
    assert!(resource.enter(exclusive(6)).is_ok());
    let text = resource.write(exclusive(5), 1).expect_err("stale").to_string();
    assert!(
        text.contains("token 5 is stale: token 6 has been here") && text.contains("Acquire the lock again"),
        "{text}"
    );
    let text = Refused::SlotTooHigh { slot: 70_000 }.to_string();
    assert!(text.contains("70000") && text.contains("65536") && text.contains("65535"), "{text}");
    let text = Refused::SharedWrite { action: Action::CheckOnce }.to_string();
    assert!(text.contains("mode shared") && text.contains("check_once"), "{text}");
}
