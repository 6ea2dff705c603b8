//! What the page of a history keeps, and that it is safe with names of others.

use lockkeeper_history::{
    ClockEvent, EndedEvent, FaultEvent, GrantedEvent, HistoryEvent, HistoryLine, HoldEnd, WriterEvent,
};
use lockkeeper_verify::{
    Checker, Counts, Overview, PlacedLine, Timeline, VIOLATIONS, ViolationKind, WHOLE, WINDOW_LINES,
    WINDOW_NS, page,
};

use crate::play::{Play, exclusive};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Reads a history as the command does: twice, if that is needed.
fn read(lines: &[HistoryLine]) -> (Timeline, Counts) {
    let (mut checker, mut overview) = (Checker::default(), Overview::default());
    for line in lines {
        overview.push(line);
        checker.push(line.clone());
        checker.take_violations().into_iter().for_each(|violation| overview.found(violation));
    }
    let mut windows = overview.windows();
    if let Some(windows) = &mut windows {
        lines.iter().for_each(|line| windows.push(line));
    }
    (overview.end(windows), checker.counts())
}

fn line(at: u64, by: &str, event: HistoryEvent) -> HistoryLine {
    HistoryLine { at, by: by.to_owned(), event }
}

fn writer(by: &str, clock: &str) -> HistoryLine {
    let event = WriterEvent { format: 1, clock: clock.to_owned(), label: format!("label of {by}") };
    line(SECOND, by, HistoryEvent::Writer(event))
}

fn granted(at: u64, by: &str, lock: &str, token: u64) -> HistoryLine {
    let event = GrantedEvent { hold: token, asked: at - 1, token: Some(token), ..exclusive(lock) };
    line(at, by, HistoryEvent::Granted(event))
}

fn ended(until: u64, at: u64, by: &str, hold: u64) -> HistoryLine {
    line(at, by, HistoryEvent::Ended(EndedEvent { hold, until, how: HoldEnd::Released }))
}

fn fault(at: u64, begins: bool) -> HistoryLine {
    let (fault, target) = ("kill".to_owned(), "node1".to_owned());
    line(at, "chaos", HistoryEvent::Fault(FaultEvent { fault, target, begins }))
}

/// A hold a millisecond for `seconds`, in `SECONDS` to `SECONDS + seconds`, of a lock that nobody else uses.
fn busy(seconds: u64) -> Vec<HistoryLine> {
    let mut lines =
        vec![writer("busy", "c"), writer("paused", "c"), writer("other", "c"), writer("chaos", "c")];
    for number in 1..=seconds * 1_000 {
        let at = SECOND + number * MS;
        lines.extend([granted(at, "busy", "busy", number), ended(at + MS / 2, at + MS / 2, "busy", number)]);
    }
    lines
}

fn at(placed: &PlacedLine) -> i64 {
    placed.place(placed.line.at)
}

#[test]
fn a_short_history_is_kept_whole() {
    let lines = busy(9);
    let (timeline, counts) = read(&lines);
    assert_eq!((timeline.lines.len(), timeline.kept, timeline.total), (lines.len(), None, counts.lines));
    assert_eq!(timeline.span, ((SECOND + MS) as i64, (10 * SECOND + MS / 2) as i64));
    assert_eq!(timeline.labels["paused"], "label of paused");
}

/// A paused client reports the end of its hold 20 s after the violation.
#[test]
fn of_a_long_history_the_faults_and_the_lines_around_violations_are_kept() {
    let mut lines = busy(60);
    let moment = 30 * SECOND;
    lines.extend([granted(2 * SECOND, "paused", "x", 1), granted(moment, "other", "x", 2)]);
    lines.push(ended(moment + 8 * MS, moment + 8 * MS, "other", 2));
    lines.push(ended(moment + 5 * MS, moment + 20 * SECOND, "paused", 1));
    lines.extend((0..40).map(|number| fault(SECOND + number * SECOND, number % 2 == 0)));
    lines.sort_by_key(|line| line.at);
    assert!(lines.len() > 100_000);
    let (timeline, counts) = read(&lines);
    let violation = &timeline.violations[0];
    assert_eq!((timeline.violations.len(), counts.violations), (1, 1));
    assert_eq!(violation.moment, (moment as i64, (moment + 5 * MS) as i64));
    assert!(violation.lines.iter().all(|proof| timeline.lines.contains(proof)));
    // Bounded: by the number of lines on both sides of the moment here, as there are 4,000 a second.
    let faults = timeline.lines.iter().filter(|it| matches!(it.line.event, HistoryEvent::Fault(_))).count();
    let others = timeline.lines.len() - faults;
    assert_eq!((faults, timeline.fault_lines, timeline.total), (40, 40, lines.len() as u64));
    assert!((WINDOW_LINES..=WINDOW_LINES + 5).contains(&others), "{others}");
    // All lines within the spans that are said to be whole are there, and those next to the moment are.
    let [(begin, end)] = timeline.kept.as_deref().unwrap() else { panic!("{:?}", timeline.kept) };
    assert!(*begin < moment as i64 && *end > (moment + 8 * MS) as i64);
    assert!(*begin >= moment as i64 - WINDOW_NS && *end <= moment as i64 + 2 * WINDOW_NS);
    let inside = |at: i64| (*begin..=*end).contains(&at);
    let wanted = lines.iter().filter(|line| inside(line.at as i64)).count();
    assert_eq!(timeline.lines.iter().filter(|it| inside(at(it))).count(), wanted);
    // The density counts all grants.
    let counted: u64 = timeline.density.counts.iter().map(|count| u64::from(*count)).sum();
    assert_eq!(counted, counts.grants);
    assert!((1_000..=2_048).contains(&timeline.density.counts.len()), "{}", timeline.density.counts.len());
}

/// A few lines a second: the window is bounded by time.
#[test]
fn a_window_ends_two_seconds_from_its_moment_and_has_the_grants_of_its_holds() {
    let mut lines = busy(30);
    let moment = 1_000 * SECOND;
    let early = moment - 500 * SECOND;
    lines.push(granted(early, "busy", "long", 1_000_000));
    lines.extend([granted(moment, "paused", "x", 7), granted(moment + MS, "other", "x", 7)]);
    lines.push(ended(moment + SECOND, moment + SECOND, "busy", 1_000_000));
    lines.extend([fault(moment - 3 * SECOND, true), granted(moment + 5 * SECOND, "busy", "busy", 2_000_000)]);
    lines.sort_by_key(|line| line.at);
    assert!(lines.len() > WHOLE);
    let (timeline, _) = read(&lines);
    assert_eq!(timeline.violations[0].kind, ViolationKind::TokenOrder);
    let kept: Vec<i64> = timeline.lines.iter().map(at).collect();
    let expected = [early, moment - 3 * SECOND, moment, moment + MS, moment + SECOND];
    assert_eq!(kept, expected.map(|at| at as i64));
}

#[test]
fn violations_beyond_the_limit_are_only_counted() {
    let mut lines = busy(1);
    for number in 0..VIOLATIONS as u64 + 10 {
        let (at, lock) = (3 * SECOND + number * MS, format!("x{number}"));
        lines.extend([granted(at, "paused", &lock, 5), granted(at + 10, "other", &lock, 5)]);
    }
    let (timeline, counts) = read(&lines);
    assert_eq!((timeline.violations.len(), counts.violations), (VIOLATIONS, VIOLATIONS as u64 + 10));
    assert_eq!(timeline.by_kind[&ViolationKind::TokenOrder], counts.violations);
    assert!(page(&timeline, &counts, "h").contains("The first 50 of 60 are here."));
}

#[test]
fn times_are_placed_on_the_clock_of_the_first_writer() {
    let mut lines = vec![writer("a", "one"), writer("b", "two"), writer("c", "three")];
    let ahead = 100 * SECOND as i64;
    let compared = ClockEvent { other: "two".to_owned(), ahead_min: ahead - 10, ahead_max: ahead + 10 };
    lines.push(line(2 * SECOND, "a", HistoryEvent::Clock(compared)));
    lines.push(granted(103 * SECOND, "b", "x", 1));
    lines.push(granted(7_000 * SECOND, "c", "x", 2));
    let (timeline, counts) = read(&lines);
    assert_eq!(timeline.guessed, 1);
    let placed = |by: &str| at(timeline.lines.iter().rfind(|it| it.line.by == by).unwrap());
    assert_eq!(placed("b"), 3 * SECOND as i64);
    assert!(page(&timeline, &counts, "h").contains("Clocks that were not compared."));
}

/// Names that would end an element, or begin one.
#[test]
fn names_of_others_are_text() {
    const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\"'&<!--script-->`";
    let mut play = Play::default();
    play.grant(HOSTILE, exclusive(HOSTILE), (9, 10), 5).grant("b", exclusive(HOSTILE), (12, 20), 6);
    play.ends(HOSTILE, 5, 30, 31);
    let (timeline, counts) = read(play.lines());
    assert_eq!(counts.violations, 1);
    let page = page(&timeline, &counts, HOSTILE);
    assert!(!page.contains("<img") && page.matches("</script>").count() == 2, "{page}");
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let data: serde_json::Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["writers"][0][0], HOSTILE);
    assert!(page.contains("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;"));
}

/// JavaScript would round them.
#[test]
fn large_tokens_and_times_are_exact() {
    let begin = 1_700_000_000_000_000_001;
    let token = (1 << 60) + 1;
    let lines = [writer("a", "c"), granted(begin, "a", "x", token), granted(begin + 3, "a", "x", token + 1)];
    let (timeline, counts) = read(&lines);
    let page = page(&timeline, &counts, "h");
    assert!(page.contains(&format!("\"token\":\"{token}\"")) && page.contains("\"at\":3"), "{page}");
}
