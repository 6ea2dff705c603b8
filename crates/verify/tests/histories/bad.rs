//! Hand-made histories of each kind of violation, and their nearest good neighbours.

use lockkeeper_history::{GrantedEvent, HoldMode, TokenAnswer, WriteOutcome};
use lockkeeper_verify::ViolationKind;

use crate::play::{Play, exclusive};

fn kinds(make: impl FnOnce(&mut Play) -> &mut Play) -> Vec<ViolationKind> {
    make(&mut Play::default()).kinds()
}

#[test]
fn two_holders_at_once_overlap() {
    // B was granted while A still counted on its hold; told when A ends, or when B does.
    let bad = kinds(|it| it.takes("a", (1, 10), 1).takes("b", (11, 20), 2).ends("a", 1, 30, 31));
    assert_eq!(bad, [ViolationKind::Overlap]);
    let later = |a: u64, b: u64| {
        kinds(|it| {
            it.takes("a", (1, 10), 1).takes("b", (11, 20), 2).ends("b", 2, b, b).ends("a", 1, a, a + 50)
        })
    };
    assert_eq!(later(21, 40), [ViolationKind::Overlap]);
    // A was told of its loss late, but had given up before.
    assert_eq!(later(20, 40), []);
    // Of one that never said how it ended, only the moment of its grant is certain.
    assert_eq!(kinds(|it| it.takes("a", (1, 10), 1).takes("b", (11, 20), 2)), []);
    assert_eq!(
        kinds(|it| it
            .takes("a", (1, 10), 1)
            .takes("dead", (5, 20), 2)
            .takes("b", (11, 40), 3)
            .ends("a", 1, 30, 31)),
        [ViolationKind::Overlap]
    );
}

#[test]
fn violations_come_with_the_lines_that_prove_them() {
    let mut play = Play::default();
    play.takes("a", (1, 10), 1).takes("c", (1, 5), 7).takes("b", (11, 20), 8).ends("a", 1, 30, 31);
    let violations = play.violations();
    let overlap = violations.iter().find(|it| it.text.contains("by b")).unwrap();
    assert_eq!(overlap.text, "`x` was held by a with token 1 and by b with token 8 at once");
    let lines: Vec<(u64, &str)> = overlap.lines.iter().map(|line| (line.at, &*line.by)).collect();
    assert_eq!(lines, [(10, "a"), (20, "b"), (31, "a")]);
}

#[test]
fn readers_share_and_writers_do_not() {
    let shared = || GrantedEvent { mode: HoldMode::Shared, ..exclusive("x") };
    let two = |writer: bool| {
        kinds(|it| {
            let third = if writer { exclusive("x") } else { shared() };
            it.grant("a", shared(), (1, 10), 1).grant("b", shared(), (1, 20), 2);
            it.ends("a", 1, 25, 26).grant("c", third, (22, 30), 3).ends("b", 2, 40, 40).ends("c", 3, 50, 50)
        })
    };
    assert_eq!((two(false), two(true)), (vec![], vec![ViolationKind::Overlap]));
}

#[test]
fn downgraded_hold_is_shared_from_then_on() {
    let reader = |times| {
        kinds(|it| {
            let shared = GrantedEvent { mode: HoldMode::Shared, ..exclusive("x") };
            it.takes("a", (1, 10), 1).grant("b", shared, times, 2).downgrades("a", 1, (30, 35));
            it.ends("b", 2, 60, 60).ends("a", 1, 70, 70)
        })
    };
    assert_eq!((reader((11, 20)), reader((11, 30))), (vec![ViolationKind::Overlap], vec![]));
}

#[test]
fn permits_are_counted_by_their_slots() {
    let held = |slot, limit| {
        kinds(|it| {
            it.permit("a", (1, 10), (0, 2), 1).permit("b", (1, 20), (slot, limit), 2).ends("a", 1, 30, 30)
        })
    };
    assert_eq!(held(1, 2), []);
    assert_eq!(held(0, 2), [ViolationKind::Overlap]);
    assert_eq!(held(2, 2), [ViolationKind::Permits]);
}

#[test]
fn subtree_covers_the_names_below_it() {
    let tree = || GrantedEvent { subtree: true, ..exclusive("a") };
    let beside = |lock: &str, tree_first: bool| {
        kinds(|it| {
            if tree_first {
                it.grant("t", tree(), (1, 10), 1).grant("b", exclusive(lock), (11, 20), 2);
                it.ends("t", 1, 30, 30).ends("b", 2, 40, 40)
            } else {
                it.grant("b", exclusive(lock), (1, 10), 1).grant("t", tree(), (11, 20), 2);
                it.ends("b", 1, 30, 30).ends("t", 2, 40, 40)
            }
        })
    };
    for tree_first in [true, false] {
        assert_eq!(beside("a/b/c", tree_first).first(), Some(&ViolationKind::Overlap), "{tree_first}");
        assert_eq!((beside("ab", tree_first), beside("b/a", tree_first)), (vec![], vec![]), "{tree_first}");
    }
}

#[test]
fn several_names_of_one_acquire_are_each_held() {
    let both = || GrantedEvent { locks: vec!["y".to_owned(), "x".to_owned()], ..exclusive("") };
    let bad = kinds(|it| it.grant("a", both(), (1, 10), 1).takes("b", (11, 20), 2).ends("a", 1, 30, 30));
    assert_eq!(bad, [ViolationKind::Overlap]);
}

#[test]
fn locks_of_two_services_do_not_exclude_each_other() {
    let other = || GrantedEvent { service: "t".to_owned(), ..exclusive("x") };
    assert_eq!(
        kinds(|it| it.takes("a", (1, 10), 1).grant("b", other(), (11, 20), 2).ends("a", 1, 30, 30)),
        []
    );
}

#[test]
fn token_must_be_above_those_known_when_it_was_asked_for() {
    let second = |asked: u64, token: u64| {
        kinds(|it| it.takes("a", (1, 10), 5).ends("a", 5, 11, 12).takes("b", (asked, 30), token))
    };
    assert_eq!(second(13, 6), []);
    assert_eq!(second(13, 4), [ViolationKind::TokenOrder]);
    assert_eq!(second(9, 4), [], "B may have been granted before A");
    assert_eq!(second(9, 5), [ViolationKind::TokenOrder], "no token is issued twice");
}

#[test]
fn queue_is_in_the_order_of_arrival() {
    let first = |queued: Option<u64>, asked: u64| {
        kinds(|it| {
            let waited = GrantedEvent { queued, ..exclusive("x") };
            it.takes("late", (asked, 20), 5).ends("late", 5, 21, 22).grant("early", waited, (1, 30), 6)
        })
    };
    assert_eq!(first(Some(10), 11), [ViolationKind::QueueOrder]);
    assert_eq!(first(Some(10), 9), [], "it may have been before");
    assert_eq!(first(None, 11), [], "the service promises no order");
}

#[test]
fn answers_about_tokens_were_so_at_some_moment() {
    use TokenAnswer::{Current, NeverIssued, NotCurrent};
    let asked = |times, token, answer| {
        kinds(|it| {
            it.takes("a", (1, 10), 1).ends("a", 1, 20, 21).takes("b", (22, 30), 2);
            it.asks(times, token, answer).ends("b", 2, 60, 61)
        })
    };
    assert_eq!(asked((32, 40), 1, Current), [ViolationKind::Answer], "2 was granted since");
    assert_eq!((asked((29, 40), 1, Current), asked((32, 40), 2, Current)), (vec![], vec![]));
    assert_eq!(asked((32, 40), 2, NotCurrent), [ViolationKind::Answer], "held all the time");
    assert_eq!((asked((29, 40), 2, NotCurrent), asked((32, 62), 2, NotCurrent)), (vec![], vec![]));
    assert_eq!(asked((32, 40), 2, NeverIssued), [ViolationKind::Answer]);
    assert_eq!(asked((32, 40), 3, NeverIssued), []);
}

#[test]
fn lists_of_holders_were_so_at_some_moment() {
    let listed = |times, tokens: &[u64]| {
        kinds(|it| {
            it.takes("a", (1, 10), 1).ends("a", 1, 20, 21).takes("b", (22, 30), 2);
            it.lists(times, tokens).ends("b", 2, 60, 61)
        })
    };
    assert_eq!((listed((32, 40), &[2]), listed((22, 40), &[])), (vec![], vec![]));
    assert_eq!(listed((32, 40), &[]), [ViolationKind::Answer]);
    assert_eq!(listed((32, 40), &[1, 2]), [ViolationKind::Answer]);
}

#[test]
fn marks_of_a_fence_never_go_back() {
    let after = |asked: u64, token: u64| kinds(|it| it.enters("x", (1, 10), 5).marks((asked, 20), token));
    assert_eq!(
        (after(11, 4), after(9, 4), after(11, 5), after(11, 9)),
        (vec![ViolationKind::FenceOrder], vec![], vec![], vec![])
    );
    let entered = |asked: u64| kinds(|it| it.marks((1, 10), 5).enters("x", (asked, 20), 4));
    assert_eq!((entered(11), entered(9)), (vec![ViolationKind::FenceOrder], vec![]));
}

#[test]
fn fence_accepts_no_older_token() {
    let second =
        |asked: u64, token: u64| kinds(|it| it.enters("x", (1, 10), 5).enters("x", (asked, 20), token));
    assert_eq!(
        (second(11, 4), second(9, 4), second(11, 5)),
        (vec![ViolationKind::FenceOrder], vec![], vec![])
    );
}

#[test]
fn resource_is_used_under_one_lock() {
    let mut play = Play::default();
    play.enters("x", (1, 10), 5).enters("y", (11, 20), 6).enters("y", (21, 30), 7);
    let violations = play.violations();
    assert_eq!(violations.len(), 1, "told once");
    assert!(
        violations[0].kind == ViolationKind::TwoLocks
            && violations[0].text.contains("do not exclude each other")
    );
}

use WriteOutcome::{Done, Stale, Unknown};

#[test]
fn acknowledged_updates_stay() {
    // Both have read 0: the second has replaced the first.
    assert_eq!(
        kinds(|it| it.writes((1, 10), ("0", "1"), Done).writes((2, 20), ("0", "2"), Done)),
        [ViolationKind::LostUpdate]
    );
    assert_eq!(kinds(|it| it.writes((1, 10), ("0", "1"), Done).writes((11, 20), ("1", "2"), Done)), []);
    assert_eq!(kinds(|it| it.writes((1, 10), ("0", "1"), Done).writes((2, 20), ("0", "2"), Stale)), []);
    // An unknown write was done after all, and both of the others are in the chain.
    let with_unknown = |saw: &str| {
        kinds(|it| {
            it.writes((1, 10), ("0", "1"), Done).writes((11, 20), ("1", "u"), Unknown);
            it.writes((21, 30), ("u", "2"), Done).writes((31, 40), (saw, "3"), Done)
        })
    };
    assert_eq!(with_unknown("2"), []);
    assert_eq!(with_unknown("u"), [ViolationKind::LostUpdate], "2 is lost");
    assert_eq!(with_unknown("1"), [ViolationKind::LostUpdate], "2 is lost");
}

#[test]
fn reader_sees_what_was_acknowledged() {
    let read = |asked: u64, version: &str| {
        kinds(|it| {
            it.writes((1, 10), ("0", "1"), Done)
                .writes((11, 20), ("1", "2"), Done)
                .reads((asked, 30), version)
        })
    };
    assert_eq!((read(21, "2"), read(19, "1")), (vec![], vec![]));
    assert_eq!(
        (read(21, "1"), read(21, "0")),
        (vec![ViolationKind::LostUpdate], vec![ViolationKind::LostUpdate])
    );
    assert_eq!(read(21, "written by someone who is still waiting for the answer"), []);
}

#[test]
fn late_line_of_a_write_settles_what_was_read() {
    let late = |saw: &str| {
        kinds(|it| {
            it.writes((1, 10), ("0", "1"), Done).writes((11, 20), ("1", "2"), Done);
            // Whose version that was is known only afterwards.
            it.reads((21, 30), "m").writes((15, 40), (saw, "m"), Unknown)
        })
    };
    assert_eq!((late("2"), late("1")), (vec![], vec![ViolationKind::LostUpdate]));
}

#[test]
fn clocks_are_compared_by_their_bounds() {
    // On B's own clock everything happened a second earlier.
    let bad = |ahead: Option<(i64, i64)>| {
        kinds(|it| {
            it.writer("a", "clock a").writer("b", "clock b");
            if let Some((min, max)) = ahead {
                it.clock("a", "clock b", min, max);
            }
            it.takes("a", (2_001, 2_010), 1).takes("b", (1_011, 1_020), 2).ends("a", 1, 2_050, 2_051)
        })
    };
    assert_eq!(bad(Some((-1_000, -1_000))), [ViolationKind::Overlap]);
    assert_eq!(bad(Some((-1_029, -990))), [ViolationKind::Overlap], "at the latest at 2049");
    assert_eq!(bad(Some((-1_040, -990))), [], "perhaps at 2060");
    assert_eq!(bad(None), [], "nothing is known of B's clock");
}

#[test]
fn grant_on_a_vague_clock_without_an_end_proves_nothing() {
    let beside = |ahead: (i64, i64)| {
        kinds(|it| {
            it.writer("a", "clock a").writer("b", "clock b").clock("a", "clock b", ahead.0, ahead.1);
            // B's client died. Its grant was at 20, or between 20 and 2, when A had not asked yet.
            it.takes("b", (1, 20), 1).takes("a", (5, 10), 2).ends("a", 2, 50, 51)
        })
    };
    assert_eq!((beside((0, 0)).len(), beside((0, 18))), (1, vec![]));
}
