//! A history as one HTML file that needs no server: its figures, its violations as text with the lines that
//! prove them, and a timeline of what was kept, which the script of the page draws.

use std::collections::HashMap;
use std::fmt::Write as _;

use lockkeeper_history::{FenceVerdict, HistoryEvent, HoldEnd, HoldMode, TokenAnswer, WriteOutcome};
use serde_json::{Value, json};

use crate::report::{Counts, ViolationKind};
use crate::timeline::{PlacedLine, PlacedViolation, Timeline, VIOLATIONS, WHOLE, WINDOW_LINES};

const HTML: &str = include_str!("../page/timeline.html");
const CSS: &str = include_str!("../page/timeline.css");
/// The drawing builds on the model.
const SCRIPTS: [&str; 2] = [include_str!("../page/model.js"), include_str!("../page/timeline.js")];

/// The largest integer up to which JavaScript's numbers are exact.
const EXACT: u64 = 1 << 53;

/// The page. `files`: the names of the history's files.
#[must_use]
pub fn page(timeline: &Timeline, counts: &Counts, files: &str) -> String {
    // `<` is escaped in the data, so nothing in it ends the element.
    let data = data(timeline).replace('<', "\\u003c");
    let parts = [
        ("<!--style-->", format!("<style>\n{CSS}</style>")),
        ("<!--files-->", escaped(files)),
        ("<!--figures-->", figures(timeline, counts)),
        ("<!--left-out-->", left_out(timeline, counts)),
        ("<!--violations-->", violations(timeline, counts)),
        (
            "<!--script-->",
            format!(
                "<script type=\"application/json\" id=\"data\">{data}</script>\n<script>\n{}</script>",
                SCRIPTS.concat()
            ),
        ),
    ];
    let mut rest = HTML;
    let mut page = String::with_capacity(HTML.len() + data.len() + 100_000);
    // The template is searched, never what was inserted.
    for (marker, part) in parts {
        let (before, after) = rest.split_once(marker).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(&part);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// Text of others, between tags or in an attribute.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(char),
        }
    }
    out
}

/// A sentence in which names are between backticks.
fn marked(text: &str) -> String {
    let parts = escaped(text);
    let parts = parts.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 1 { format!("<code>{part}</code>") } else { part.to_owned() })
        .collect()
}

/// Writes to a string, which never fails.
macro_rules! push {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}

fn figures(timeline: &Timeline, counts: &Counts) -> String {
    let (first, last) = timeline.span;
    let mut out = String::new();
    let verdict = match counts.violations {
        0 => "<dd class=\"good\">none</dd>".to_owned(),
        many => {
            let kinds: Vec<String> =
                timeline.by_kind.iter().map(|(kind, count)| format!("{count} {}", kind.word())).collect();
            format!("<dd class=\"bad\">{}<small>{}</small></dd>", grouped(many), kinds.join(", "))
        }
    };
    push!(out, "<div><dt>Violations</dt>{verdict}</div>");
    let numbers = [
        ("Operations", counts.operations()),
        ("Grants", counts.grants),
        ("Denials", counts.denials),
        ("Questions", counts.questions),
        ("Fence and resource calls", counts.fenced),
        ("Faults", counts.faults),
        ("Writers", counts.writers),
    ];
    for (name, number) in numbers {
        push!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", grouped(number));
    }
    push!(out, "<div><dt>Time span</dt><dd>{}</dd></div>", duration(last.saturating_sub(first)));
    out
}

/// What the page lacks, in sentences.
fn left_out(timeline: &Timeline, counts: &Counts) -> String {
    let mut out = String::new();
    let mut add = |text: String| push!(out, "<p class=\"box\">{text}</p>");
    if timeline.kept.is_some() {
        let faults = if timeline.fault_lines > WHOLE as u64 {
            format!("the first {} of {} faults", grouped(WHOLE as u64), grouped(timeline.fault_lines))
        } else {
            "all faults".to_owned()
        };
        add(format!(
            "<b>Part of the history.</b> This page has {} of {} lines: {faults}; the lines that prove a violation; \
             and those up to 2 s before and after it, at most {} for each, with the grants of holds that end there. What is grey in the timeline was left \
             out. The strip above it counts all grants.",
            grouped(timeline.lines.len() as u64),
            grouped(timeline.total),
            grouped(WINDOW_LINES as u64),
        ));
    }
    if counts.violations > VIOLATIONS as u64 {
        add(format!(
            "<b>Not all violations.</b> The first {VIOLATIONS} of {} are here.",
            grouped(counts.violations)
        ));
    }
    if timeline.guessed > 0 {
        add("<b>Clocks that were not compared.</b> The history does not say how far some of its writers' clocks \
             are apart. Their times are placed by the order of the lines, and moments of two such clocks can't be \
             compared."
            .to_owned());
    }
    out
}

/// What is wrong with it, for people who do not know the promises.
const fn meaning(kind: ViolationKind) -> &'static str {
    match kind {
        ViolationKind::Overlap => {
            "Two clients that exclude each other counted on one lock at the same time: both may have changed what \
             it protects."
        }
        ViolationKind::TokenOrder => {
            "Tokens must rise with each grant. A fence that has seen the higher one refuses the later holder, or \
             lets an old one pass."
        }
        ViolationKind::QueueOrder => "A client that came later was served first.",
        ViolationKind::Permits => "More permits were granted than there are.",
        ViolationKind::Answer => {
            "What the lock service said of a holder was not so at any moment between question and answer."
        }
        ViolationKind::FenceOrder => {
            "The fence let a former holder pass, though it had seen a later one, or has forgotten that: a paused \
             client can overwrite the work of its successor."
        }
        ViolationKind::LostUpdate => "A write was acknowledged, and what came after it does not contain it.",
        ViolationKind::TwoLocks => "Clients with different locks do not exclude each other.",
    }
}

fn violations(timeline: &Timeline, counts: &Counts) -> String {
    if counts.violations == 0 {
        return "<p class=\"box good\">No violation: nothing in this history contradicts what the locks promise.</p>"
            .to_owned();
    }
    let first = timeline.span.0;
    let mut out = String::from("<ol>");
    for (index, violation) in timeline.violations.iter().enumerate() {
        let number = index + 1;
        push!(
            out,
            "<li id=\"v{number}\" class=\"violation\"><h3><button type=\"button\" data-violation=\"{index}\" \
             aria-expanded=\"true\" aria-controls=\"proof{number}\"><span class=\"kind\">{number}. {}</span>\
             <span class=\"at num\">at {}</span><span class=\"text\">{}</span></button></h3>\
             <div id=\"proof{number}\" class=\"proof\"><p>{}</p><ol>",
            violation.kind.word(),
            seconds(violation.moment.0.saturating_sub(first)),
            marked(&violation.text),
            meaning(violation.kind)
        );
        let start = violation.lines.first().map_or(0, PlacedLine::moment);
        for line in &violation.lines {
            push!(
                out,
                "<li><span class=\"when num\">+{}</span> <span class=\"what\">{}</span><details><summary>JSON\
                 </summary><code>{}</code></details></li>",
                duration(line.moment().saturating_sub(start)),
                marked(&sentence(line, violation)),
                escaped(line.line.encode().trim_end())
            );
        }
        out.push_str(
            "</ol><a class=\"to-timeline\" href=\"#timeline-title\">Its place in the timeline</a></div></li>",
        );
    }
    out.push_str("</ol>");
    out
}

/// What a line tells, in words.
fn sentence(placed: &PlacedLine, violation: &PlacedViolation) -> String {
    let by = &placed.line.by;
    let called = placed.asked().map_or(String::new(), |asked| {
        format!(" (the call began {} before)", duration(placed.moment().saturating_sub(asked)))
    });
    match &placed.line.event {
        HistoryEvent::Writer(it) => format!("{by} began: {}", it.label),
        HistoryEvent::Clock(it) => format!("{by} compared its clock with `{}`", it.other),
        HistoryEvent::Granted(_) => format!("{by} was granted {}{called}", held(placed)),
        HistoryEvent::Ended(it) => {
            let grant = violation.lines.iter().find(|other| match &other.line.event {
                HistoryEvent::Granted(grant) => grant.hold == it.hold && other.line.by == *by,
                _ => false,
            });
            let what = grant.map_or_else(|| format!("its hold {}", it.hold), held);
            let how = match it.how {
                HoldEnd::Released => "released it",
                HoldEnd::Lost => "then knew that it was lost",
            };
            format!("up to here {by} counted on {what}; it {how}")
        }
        HistoryEvent::Downgraded(it) => format!("{by} made its hold {} a shared one{called}", it.hold),
        HistoryEvent::Denied(it) => format!("{by} did not get {}: {}{called}", names(&it.locks), it.why),
        HistoryEvent::Status(it) => {
            let answer = match it.answer {
                TokenAnswer::Current => "is that of a hold",
                TokenAnswer::NotCurrent => "is that of no hold any more",
                TokenAnswer::NeverIssued => "was never issued",
            };
            format!("{} told {by}: token {} of `{}` {answer}{called}", it.service, it.token, it.lock)
        }
        HistoryEvent::Listed(it) => {
            let tokens: Vec<String> = it.tokens.iter().map(u64::to_string).collect();
            let holders = match &tokens[..] {
                [] => "nobody holds it".to_owned(),
                tokens => format!("all holders have token {}", tokens.join(", ")),
            };
            format!("{} told {by} of `{}`: {holders}{called}", it.service, it.lock)
        }
        HistoryEvent::Entered(it) => {
            let verdict = match it.verdict {
                FenceVerdict::Accepted => "accepted",
                FenceVerdict::Stale => "refused",
                FenceVerdict::Unknown => "did not answer for",
            };
            let (resource, token, lock) = (&it.resource, it.token, &it.lock);
            format!("the fence of `{resource}` {verdict} token {token} of `{lock}`, shown by {by}{called}")
        }
        HistoryEvent::Marked(it) => {
            format!("the mark of `{}` was {}, told to {by}{called}", it.resource, it.token)
        }
        HistoryEvent::Read(it) => format!("{by} read version `{}` of `{}`{called}", it.version, it.resource),
        HistoryEvent::Wrote(it) => {
            let outcome = match it.outcome {
                WriteOutcome::Done => "it was acknowledged",
                WriteOutcome::Stale => "the fence refused it",
                WriteOutcome::Unknown => "there was no answer",
            };
            let token = it.token.map_or("without a token".to_owned(), |token| format!("with token {token}"));
            let (resource, saw, made) = (&it.resource, &it.saw, &it.made);
            format!(
                "{by} replaced version `{saw}` of `{resource}` by `{made}`, under `{}` {token}: {outcome}{called}",
                it.lock
            )
        }
        HistoryEvent::Fault(it) => {
            format!("the fault {} of {} {}", it.fault, it.target, if it.begins { "began" } else { "ended" })
        }
    }
}

/// The locks of a grant, with its mode and token.
fn held(placed: &PlacedLine) -> String {
    let HistoryEvent::Granted(it) = &placed.line.event else { return String::new() };
    let mut text = names(&it.locks);
    if it.subtree {
        text.push_str(" and all names below it");
    }
    match it.mode {
        HoldMode::Exclusive => {}
        HoldMode::Shared => text.push_str(" (shared)"),
        HoldMode::Permit => {
            let slots: Vec<String> =
                it.slots.iter().map(|slot| format!("{} of {}", slot.slot, slot.limit)).collect();
            push!(text, " (permit {})", slots.join(", "));
        }
    }
    if let Some(token) = it.token {
        push!(text, " with token {token}");
    }
    text
}

fn names(locks: &[String]) -> String {
    locks.iter().map(|lock| format!("`{lock}`")).collect::<Vec<_>>().join(", ")
}

/// A number with a thin space between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    out
}

/// A duration with its unit, to the microsecond below a second.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn duration(nanoseconds: i64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds.unsigned_abs() {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns / 1e6),
        1_000_000_000..120_000_000_000 => format!("{:.3} s", ns / 1e9),
        120_000_000_000..7_200_000_000_000 => {
            format!("{} min {:02} s", nanoseconds / 60_000_000_000, nanoseconds / 1_000_000_000 % 60)
        }
        _ => format!("{} h {:02} min", nanoseconds / 3_600_000_000_000, nanoseconds / 60_000_000_000 % 60),
    }
}

/// A time since the first instant, as on the axis of the timeline.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn seconds(nanoseconds: i64) -> String {
    format!("{:.3} s", nanoseconds as f64 / 1e9)
}

/// What the script draws: the lines as in their files, but with writers as numbers, and times from the first
/// instant on.
fn data(timeline: &Timeline) -> String {
    let (first, last) = timeline.span;
    let mut writers: Vec<&str> = Vec::new();
    let mut number_of: HashMap<&str, usize> = HashMap::new();
    let mut index_of: HashMap<String, usize> = HashMap::new();
    let mut out = String::from("{\"lines\":[");
    for (index, placed) in timeline.lines.iter().enumerate() {
        let by = placed.line.by.as_str();
        let number = *number_of.entry(by).or_insert_with(|| {
            writers.push(by);
            writers.len() - 1
        });
        let text = placed.line.encode();
        push!(out, "{}{}", if index == 0 { "" } else { "," }, line_data(placed, &text, number, first));
        index_of.insert(text, index);
    }
    let violations: Vec<Value> = timeline
        .violations
        .iter()
        .map(|it| {
            let proof: Vec<Option<&usize>> =
                it.lines.iter().map(|line| index_of.get(&line.line.encode())).collect();
            json!({
                "kind": it.kind.word(), "moment": [it.moment.0.saturating_sub(first), it.moment.1.saturating_sub(first)],
                "proof": proof,
            })
        })
        .collect();
    let density = &timeline.density;
    let spans = |spans: &Vec<(i64, i64)>| -> Vec<[i64; 2]> {
        spans.iter().map(|(begin, end)| [begin.saturating_sub(first), end.saturating_sub(first)]).collect()
    };
    let others = json!({
        "end": last.saturating_sub(first),
        "writers": writers.iter().map(|by| json!([by, timeline.labels.get(*by)])).collect::<Vec<_>>(),
        "violations": violations,
        "density": { "from": density.from.saturating_sub(first), "width": density.width, "counts": density.counts },
        "kept": timeline.kept.as_ref().map(spans),
    });
    push!(out, "],{}", others.to_string().trim_start_matches('{'));
    out
}

/// A number that JavaScript would round becomes a text.
fn exact(value: &mut Value) {
    if let Some(number) = value.as_u64().filter(|number| *number > EXACT) {
        *value = json!(number.to_string());
    } else if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(exact);
    }
}

fn line_data(placed: &PlacedLine, text: &str, writer: usize, first: i64) -> Value {
    let Ok(Value::Object(mut line)) = serde_json::from_str(text) else { return Value::Null };
    for (key, value) in &mut line {
        match (key.as_str(), value.as_u64()) {
            ("at" | "asked" | "queued" | "until", Some(time)) => {
                *value = json!(placed.place(time).saturating_sub(first));
            }
            ("by", _) => *value = json!(writer),
            _ => exact(value),
        }
    }
    if placed.asked().is_none() {
        line.remove("asked");
    }
    Value::Object(line)
}
