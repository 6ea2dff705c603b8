//! What the page of a history shows: of a short history all lines, of a long one the faults, the lines around
//! violations and the number of grants over time. Memory does not grow with the history.
//!
//! A violation may be found long after its moment (when a paused client reports the end of its hold), so a
//! long history is read twice: `Overview` finds the moments, `Windows` keeps the lines around them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use lockkeeper_history::{HistoryEvent, HistoryLine};

use crate::clock::{Clocks, Time};
use crate::report::{Violation, ViolationKind};

/// A history of at most this many lines is kept whole; also the limit of fault lines.
pub const WHOLE: usize = 20_000;
/// The violations that are kept.
pub const VIOLATIONS: usize = 50;
/// How long a violation's window lasts before its moment, and after it.
pub const WINDOW_NS: i64 = 2_000_000_000;
/// The lines of a window, at most: half of them before the beginning of the moment.
pub const WINDOW_LINES: usize = 2_000;
/// The density has between half of this number and this number of intervals.
const INTERVALS: usize = 2_048;
/// Open holds whose grants are remembered, for windows in which they end.
const OPEN: usize = 10_000;

/// A line, and its times on the clock of the first writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedLine {
    /// The line.
    pub line: HistoryLine,
    /// Nanoseconds from the writer's clock to that of the first writer.
    pub shift: i64,
}

impl PlacedLine {
    /// A time of this line on the clock of the first writer.
    #[must_use]
    pub fn place(&self, time: u64) -> Time {
        i64::try_from(time).unwrap_or(i64::MAX).saturating_add(self.shift)
    }

    /// When the event was certain: an end's last moment, the arrival of everything else.
    #[must_use]
    pub fn moment(&self) -> Time {
        match &self.line.event {
            HistoryEvent::Ended(event) => self.place(event.until),
            _ => self.place(self.line.at),
        }
    }

    /// When its call began, if it was one.
    #[must_use]
    pub fn asked(&self) -> Option<Time> {
        let asked = match &self.line.event {
            HistoryEvent::Granted(event) => event.asked,
            HistoryEvent::Downgraded(event) => event.asked,
            HistoryEvent::Denied(event) => event.asked,
            HistoryEvent::Status(event) => event.asked,
            HistoryEvent::Listed(event) => event.asked,
            HistoryEvent::Entered(event) => event.asked,
            HistoryEvent::Marked(event) => event.asked,
            HistoryEvent::Read(event) => event.asked,
            HistoryEvent::Wrote(event) => event.asked,
            _ => return None,
        };
        // A watch does not know when the service noticed: it writes 0.
        (asked > 0).then(|| self.place(asked))
    }
}

/// A violation, with its moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedViolation {
    /// What it contradicts.
    pub kind: ViolationKind,
    /// In a sentence.
    pub text: String,
    /// The lines that prove it, in the order of their moments.
    pub lines: Vec<PlacedLine>,
    /// The first and the last instant at which the promise was certainly broken.
    pub moment: (Time, Time),
}

impl PlacedViolation {
    fn new(violation: Violation, times: &Times) -> Self {
        let place = |line: HistoryLine| PlacedLine { shift: times.known(&line), line };
        let mut lines: Vec<PlacedLine> = violation.lines.into_iter().map(place).collect();
        lines.sort_by_key(PlacedLine::moment);
        let (ends, begins): (Vec<_>, Vec<_>) =
            lines.iter().partition(|placed| matches!(placed.line.event, HistoryEvent::Ended(_)));
        let begin = begins.last().or(ends.last()).map_or(0, |placed| placed.moment());
        let moment = if violation.kind == ViolationKind::Overlap {
            // From the later grant to the first end after it.
            let end = ends.iter().map(|placed| placed.moment()).find(|end| *end > begin);
            (begin, end.unwrap_or(begin))
        } else {
            (begins.last().and_then(|placed| placed.asked()).unwrap_or(begin).min(begin), begin)
        };
        Self { kind: violation.kind, text: violation.text, lines, moment }
    }
}

/// The times of all writers on one clock. A clock without bounds is placed by the order of the lines.
#[derive(Default)]
struct Times {
    clocks: Clocks,
    /// Of clocks without bounds: from the first line.
    guessed: HashMap<String, i64>,
    latest: Option<Time>,
}

impl Times {
    fn place(&mut self, line: &HistoryLine) -> PlacedLine {
        self.clocks.hear(line);
        let at = i64::try_from(line.at).unwrap_or(i64::MAX);
        let clock = self.clocks.of_writer(&line.by).unwrap_or(&line.by);
        let shift = match self.clocks.ahead(clock) {
            Some(ahead) => ahead.middle().saturating_neg(),
            None => match self.guessed.get(clock) {
                Some(shift) => *shift,
                None => {
                    let shift = self.latest.map_or(0, |latest| latest.saturating_sub(at));
                    self.guessed.insert(clock.clone(), shift);
                    shift
                }
            },
        };
        self.latest = self.latest.max(Some(at.saturating_add(shift)));
        PlacedLine { line: line.clone(), shift }
    }

    /// The number of clocks that can't be compared with the first one.
    fn guesses(&self) -> usize {
        let unknown = self.guessed.keys().filter(|clock| self.clocks.ahead(clock).is_none()).count();
        unknown.saturating_sub(usize::from(self.clocks.is_empty()))
    }

    /// The shift of a line that was placed before.
    fn known(&self, line: &HistoryLine) -> i64 {
        let clock = self.clocks.of_writer(&line.by).unwrap_or(&line.by);
        let measured = self.clocks.ahead(clock).map(|ahead| ahead.middle().saturating_neg());
        measured.or_else(|| self.guessed.get(clock).copied()).unwrap_or(0)
    }
}

/// How many grants there were in each interval of the whole span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Density {
    /// The first instant.
    pub from: Time,
    /// The length of an interval, in nanoseconds.
    pub width: i64,
    /// The grants of each interval.
    pub counts: Vec<u32>,
}

impl Density {
    const fn new(from: Time) -> Self {
        Self { from, width: 1, counts: Vec::new() }
    }

    /// Covers this instant; returns its interval.
    fn reach(&mut self, at: Time) -> usize {
        let offset = at.saturating_sub(self.from).max(0);
        while offset / self.width >= INTERVALS as i64 {
            self.counts = self.counts.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.width *= 2;
        }
        let index = usize::try_from(offset / self.width).unwrap_or_default();
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        index
    }
}

/// The first reading of a history.
#[derive(Default)]
pub struct Overview {
    times: Times,
    total: u64,
    /// All lines, or none once there were more than [`WHOLE`].
    whole: Vec<PlacedLine>,
    faults: Vec<PlacedLine>,
    fault_lines: u64,
    labels: HashMap<String, String>,
    violations: Vec<PlacedViolation>,
    by_kind: BTreeMap<ViolationKind, u64>,
    density: Option<Density>,
    span: Option<(Time, Time)>,
}

impl Overview {
    /// The next line.
    pub fn push(&mut self, line: &HistoryLine) {
        let placed = self.times.place(line);
        let at = placed.place(line.at);
        self.total += 1;
        match &line.event {
            HistoryEvent::Writer(event) => {
                self.labels.insert(line.by.clone(), event.label.clone());
            }
            HistoryEvent::Clock(_) => {}
            event => {
                let (first, last) = self.span.unwrap_or((at, at));
                self.span = Some((first.min(at), last.max(at)));
                let density = self.density.get_or_insert_with(|| Density::new(at));
                let interval = density.reach(at);
                if matches!(event, HistoryEvent::Granted(_)) {
                    density.counts[interval] = density.counts[interval].saturating_add(1);
                }
            }
        }
        if matches!(line.event, HistoryEvent::Fault(_)) {
            self.fault_lines += 1;
            if self.faults.len() < WHOLE {
                self.faults.push(placed.clone());
            }
        }
        if self.total <= WHOLE as u64 {
            self.whole.push(placed);
        } else {
            self.whole = Vec::new();
        }
    }

    /// The next violation.
    pub fn found(&mut self, violation: Violation) {
        *self.by_kind.entry(violation.kind).or_default() += 1;
        if self.violations.len() < VIOLATIONS {
            self.violations.push(PlacedViolation::new(violation, &self.times));
        }
    }

    /// Prepares the second reading, if the history is too long to be kept whole and has violations.
    #[must_use]
    pub fn windows(&self) -> Option<Windows> {
        let is_needed = self.total > WHOLE as u64 && !self.violations.is_empty();
        is_needed.then(|| Windows::new(&self.violations))
    }

    /// What there is to show.
    #[must_use]
    pub fn end(self, windows: Option<Windows>) -> Timeline {
        let is_whole = self.total <= WHOLE as u64;
        let mut lines = if is_whole { self.whole } else { self.faults };
        let mut kept = Vec::new();
        if let Some(windows) = windows {
            kept = windows.spans();
            lines.extend(windows.into_lines().filter(|it| !matches!(it.line.event, HistoryEvent::Fault(_))));
        }
        // The lines of a proof may be outside of its window.
        let mut there: HashSet<String> = lines.iter().map(|it| it.line.encode()).collect();
        let proofs = self.violations.iter().flat_map(|it| &it.lines);
        lines.extend(proofs.filter(|it| there.insert(it.line.encode())).cloned());
        lines.sort_by_key(|it| it.place(it.line.at));
        Timeline {
            lines,
            kept: (!is_whole).then_some(kept),
            total: self.total,
            fault_lines: self.fault_lines,
            labels: self.labels,
            violations: self.violations,
            by_kind: self.by_kind,
            density: self.density.unwrap_or_else(|| Density::new(0)),
            span: self.span.unwrap_or_default(),
            guessed: self.times.guesses(),
        }
    }
}

/// The second reading of a long history: the lines around its violations.
pub struct Windows {
    times: Times,
    windows: Vec<Window>,
    number: u64,
    /// The grants of open holds, by writer and hold.
    open: HashMap<(String, u64), NumberedLine>,
}

/// A line with its number in the history.
type NumberedLine = (u64, PlacedLine);

struct Window {
    moment: (Time, Time),
    before: VecDeque<KeptLine>,
    after: Vec<KeptLine>,
}

/// A line of a window; with the end of a hold, its grant, which may be older than the window.
#[derive(Clone)]
struct KeptLine {
    line: NumberedLine,
    grant: Option<NumberedLine>,
}

impl Windows {
    fn new(violations: &[PlacedViolation]) -> Self {
        let window =
            |it: &PlacedViolation| Window { moment: it.moment, before: VecDeque::new(), after: Vec::new() };
        Self {
            times: Times::default(),
            windows: violations.iter().map(window).collect(),
            number: 0,
            open: HashMap::new(),
        }
    }

    /// The next line, in the same order as in the first reading.
    pub fn push(&mut self, line: &HistoryLine) {
        self.number += 1;
        let placed = self.times.place(line);
        let at = placed.place(line.at);
        let mut grant = None;
        match &line.event {
            HistoryEvent::Granted(event) => {
                if self.open.len() >= OPEN {
                    self.forget();
                }
                self.open.insert((line.by.clone(), event.hold), (self.number, placed.clone()));
            }
            HistoryEvent::Ended(event) => grant = self.open.remove(&(line.by.clone(), event.hold)),
            _ => {}
        }
        let kept = KeptLine { line: (self.number, placed), grant };
        for window in self.windows.iter_mut().filter(|window| window.contains(at)) {
            window.push(at, &kept);
        }
    }

    /// Forgets the older half of the open holds: their clients died.
    fn forget(&mut self) {
        let mut numbers: Vec<u64> = self.open.values().map(|(number, _)| *number).collect();
        let (_, median, _) = numbers.select_nth_unstable(OPEN / 2);
        let median = *median;
        self.open.retain(|_, (number, _)| *number > median);
    }

    /// The spans of which all lines are kept, in order and apart.
    fn spans(&self) -> Vec<(Time, Time)> {
        let mut spans: Vec<_> = self.windows.iter().map(Window::span).collect();
        spans.sort_unstable();
        let mut apart: Vec<(Time, Time)> = Vec::new();
        for (begin, end) in spans {
            match apart.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => apart.push((begin, end)),
            }
        }
        apart
    }

    fn into_lines(self) -> impl Iterator<Item = PlacedLine> {
        let kept = self.windows.into_iter().flat_map(|window| window.before.into_iter().chain(window.after));
        let lines: BTreeMap<u64, PlacedLine> =
            kept.flat_map(|kept| kept.grant.into_iter().chain([kept.line])).collect();
        lines.into_values()
    }
}

impl Window {
    fn contains(&self, at: Time) -> bool {
        let (begin, end) = self.moment;
        (begin.saturating_sub(WINDOW_NS)..=end.saturating_add(WINDOW_NS)).contains(&at)
    }

    /// Keeps the line, if it is one of the nearest to the beginning of the moment.
    fn push(&mut self, at: Time, line: &KeptLine) {
        if at < self.moment.0 {
            self.before.push_back(line.clone());
            if self.before.len() > WINDOW_LINES / 2 {
                self.before.pop_front();
            }
        } else if self.after.len() < WINDOW_LINES / 2 {
            self.after.push(line.clone());
        }
    }

    /// The span of which all lines are kept.
    fn span(&self) -> (Time, Time) {
        let at = |kept: &KeptLine| kept.line.1.place(kept.line.1.line.at);
        let (begin, end) = self.moment;
        let is_full = |lines: usize| lines == WINDOW_LINES / 2;
        let first = self.before.front().filter(|_| is_full(self.before.len())).map(at);
        let last = self.after.last().filter(|_| is_full(self.after.len())).map(at);
        (first.unwrap_or(begin.saturating_sub(WINDOW_NS)), last.unwrap_or(end.saturating_add(WINDOW_NS)))
    }
}

/// What the page of a history shows.
pub struct Timeline {
    /// The lines that are kept, in the order of their times.
    pub lines: Vec<PlacedLine>,
    /// The spans of which all lines are kept; `None`: the whole history.
    pub kept: Option<Vec<(Time, Time)>>,
    /// The number of lines of the history.
    pub total: u64,
    /// The number of its fault lines.
    pub fault_lines: u64,
    /// What writers say of themselves.
    pub labels: HashMap<String, String>,
    /// The first violations.
    pub violations: Vec<PlacedViolation>,
    /// The number of all violations, by their kind.
    pub by_kind: BTreeMap<ViolationKind, u64>,
    /// Grants over time.
    pub density: Density,
    /// The first and the last instant.
    pub span: (Time, Time),
    /// The number of clocks that were placed by the order of the lines.
    pub guessed: usize,
}
