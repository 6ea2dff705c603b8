//! A line of a history as an event.

use std::borrow::Cow;

use serde::Deserialize;

use crate::event::{
    ClockEvent, DeniedEvent, DowngradedEvent, EndedEvent, EnteredEvent, FaultEvent, FenceVerdict,
    GrantedEvent, HistoryEvent, HistoryLine, HoldEnd, HoldMode, ListedEvent, MarkedEvent, ReadEvent, SlotOf,
    StatusEvent, TokenAnswer, WriteOutcome, WriterEvent, WroteEvent,
};

/// Why a line is none of a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineError(String);

impl std::fmt::Display for LineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LineError {}

/// All fields of all events: one pass over the text, whatever the order of the fields. Fields that are not
/// known are ignored, so that a newer writer can say more.
#[derive(Deserialize)]
struct Fields<'a> {
    at: u64,
    #[serde(borrow)]
    by: Cow<'a, str>,
    #[serde(borrow)]
    event: Cow<'a, str>,
    format: Option<u32>,
    clock: Option<String>,
    label: Option<String>,
    other: Option<String>,
    ahead_min: Option<i64>,
    ahead_max: Option<i64>,
    hold: Option<u64>,
    service: Option<String>,
    locks: Option<Vec<String>>,
    lock: Option<String>,
    #[serde(default)]
    subtree: bool,
    #[serde(borrow)]
    mode: Option<Cow<'a, str>>,
    #[serde(default)]
    slots: Vec<(u32, u32)>,
    token: Option<u64>,
    tokens: Option<Vec<u64>>,
    #[serde(default)]
    cached: bool,
    asked: Option<u64>,
    queued: Option<u64>,
    until: Option<u64>,
    #[serde(borrow)]
    how: Option<Cow<'a, str>>,
    why: Option<String>,
    #[serde(borrow)]
    answer: Option<Cow<'a, str>>,
    resource: Option<String>,
    #[serde(borrow)]
    verdict: Option<Cow<'a, str>>,
    version: Option<String>,
    saw: Option<String>,
    made: Option<String>,
    #[serde(borrow)]
    outcome: Option<Cow<'a, str>>,
    fault: Option<String>,
    target: Option<String>,
    begins: Option<bool>,
}

/// Reads a line. `None`: an event that this version does not know, and therefore ignores.
///
/// # Errors
/// The line is not JSON, or a field of its event is missing or wrong.
pub fn parse(line: &str) -> Result<Option<HistoryLine>, LineError> {
    let fields: Fields<'_> = serde_json::from_str(line).map_err(|error| LineError(error.to_string()))?;
    let (at, by) = (fields.at, fields.by.clone().into_owned());
    let Some(event) = fields.event()? else { return Ok(None) };
    Ok(Some(HistoryLine { at, by, event }))
}

impl Fields<'_> {
    fn event(self) -> Result<Option<HistoryEvent>, LineError> {
        let event = self.event.clone();
        let missing = |field: &'static str| {
            let text = format!("an event `{event}` needs the field `{field}`");
            move || LineError(text)
        };
        macro_rules! field {
            ($name:ident) => {
                self.$name.ok_or_else(missing(stringify!($name)))?
            };
        }
        macro_rules! word {
            ($name:ident, $type:ty) => {{
                let word = field!($name);
                <$type>::of_word(&word)
                    .ok_or_else(|| LineError(format!("`{word}` is no value of `{}`", stringify!($name))))?
            }};
        }
        Ok(Some(match &*self.event {
            "writer" => HistoryEvent::Writer(WriterEvent {
                format: field!(format),
                clock: field!(clock),
                label: field!(label),
            }),
            "clock" => HistoryEvent::Clock(ClockEvent {
                other: field!(other),
                ahead_min: field!(ahead_min),
                ahead_max: field!(ahead_max),
            }),
            "granted" => {
                let locks = field!(locks);
                if locks.is_empty() {
                    return Err(LineError("a grant is of at least one lock".to_owned()));
                }
                HistoryEvent::Granted(GrantedEvent {
                    hold: field!(hold),
                    service: field!(service),
                    locks,
                    subtree: self.subtree,
                    mode: word!(mode, HoldMode),
                    slots: self.slots.into_iter().map(|(slot, limit)| SlotOf { slot, limit }).collect(),
                    token: self.token,
                    cached: self.cached,
                    asked: field!(asked),
                    queued: self.queued,
                })
            }
            "ended" => HistoryEvent::Ended(EndedEvent {
                hold: field!(hold),
                until: field!(until),
                how: word!(how, HoldEnd),
            }),
            "downgraded" => {
                HistoryEvent::Downgraded(DowngradedEvent { hold: field!(hold), asked: field!(asked) })
            }
            "denied" => HistoryEvent::Denied(DeniedEvent {
                service: field!(service),
                locks: field!(locks),
                asked: field!(asked),
                why: field!(why),
            }),
            "status" => HistoryEvent::Status(StatusEvent {
                service: field!(service),
                lock: field!(lock),
                token: field!(token),
                asked: field!(asked),
                answer: word!(answer, TokenAnswer),
            }),
            "listed" => HistoryEvent::Listed(ListedEvent {
                service: field!(service),
                lock: field!(lock),
                asked: field!(asked),
                tokens: field!(tokens),
            }),
            "entered" => HistoryEvent::Entered(EnteredEvent {
                resource: field!(resource),
                service: field!(service),
                lock: field!(lock),
                token: field!(token),
                asked: field!(asked),
                verdict: word!(verdict, FenceVerdict),
            }),
            "marked" => HistoryEvent::Marked(MarkedEvent {
                resource: field!(resource),
                asked: field!(asked),
                token: field!(token),
            }),
            "read" => HistoryEvent::Read(ReadEvent {
                resource: field!(resource),
                asked: field!(asked),
                version: field!(version),
            }),
            "wrote" => HistoryEvent::Wrote(WroteEvent {
                resource: field!(resource),
                service: field!(service),
                lock: field!(lock),
                token: self.token,
                asked: field!(asked),
                saw: field!(saw),
                made: field!(made),
                outcome: word!(outcome, WriteOutcome),
            }),
            "fault" => HistoryEvent::Fault(FaultEvent {
                fault: field!(fault),
                target: field!(target),
                begins: field!(begins),
            }),
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events() -> impl Strategy<Value = HistoryEvent> {
        // HistoryLine feeds, quotes and all.
        let text = "(?s).*";
        let number = || 0..u64::MAX;
        let mode = prop_oneof![Just(HoldMode::Exclusive), Just(HoldMode::Shared), Just(HoldMode::Permit)];
        let slots = prop::collection::vec((any::<u32>(), any::<u32>()), 0..3);
        let locks = prop::collection::vec(text, 1..3);
        let grant = (number(), text, locks.clone(), any::<bool>(), mode, slots, any::<Option<u64>>());
        let grant = (grant, number(), any::<Option<u64>>()).prop_map(|(first, asked, queued)| {
            let (hold, service, locks, subtree, mode, slots, token) = first;
            let slots = slots.into_iter().map(|(slot, limit)| SlotOf { slot, limit }).collect();
            let cached = subtree;
            HistoryEvent::Granted(GrantedEvent {
                hold,
                service,
                locks,
                subtree,
                mode,
                slots,
                token,
                cached,
                asked,
                queued,
            })
        });
        let wrote = ([text, text, text, text, text], number());
        let wrote = (wrote, any::<Option<u64>>()).prop_map(
            |(([resource, service, lock, saw, made], asked), token)| {
                let outcome = WriteOutcome::Unknown;
                HistoryEvent::Wrote(WroteEvent { resource, service, lock, token, asked, saw, made, outcome })
            },
        );
        let three = [text, text, text];
        prop_oneof![
            grant,
            wrote,
            (any::<u32>(), text, text).prop_map(|(format, clock, label)| HistoryEvent::Writer(WriterEvent {
                format,
                clock,
                label
            })),
            (text, any::<i64>(), any::<i64>()).prop_map(|(other, ahead_min, ahead_max)| {
                HistoryEvent::Clock(ClockEvent { other, ahead_min, ahead_max })
            }),
            (number(), number())
                .prop_map(|(hold, asked)| HistoryEvent::Downgraded(DowngradedEvent { hold, asked })),
            (number(), number()).prop_map(|(hold, until)| HistoryEvent::Ended(EndedEvent {
                hold,
                until,
                how: HoldEnd::Lost
            })),
            (text, locks, number(), text).prop_map(|(service, locks, asked, why)| {
                HistoryEvent::Denied(DeniedEvent { service, locks, asked, why })
            }),
            (text, text, number(), number()).prop_map(|(service, lock, token, asked)| {
                HistoryEvent::Status(StatusEvent {
                    service,
                    lock,
                    token,
                    asked,
                    answer: TokenAnswer::NeverIssued,
                })
            }),
            (text, text, number(), any::<Vec<u64>>()).prop_map(|(service, lock, asked, tokens)| {
                HistoryEvent::Listed(ListedEvent { service, lock, asked, tokens })
            }),
            (three, number(), number()).prop_map(|([resource, service, lock], token, asked)| {
                let verdict = FenceVerdict::Stale;
                HistoryEvent::Entered(EnteredEvent { resource, service, lock, token, asked, verdict })
            }),
            (text, number(), number()).prop_map(|(resource, asked, token)| {
                HistoryEvent::Marked(MarkedEvent { resource, asked, token })
            }),
            (text, number(), text).prop_map(|(resource, asked, version)| {
                HistoryEvent::Read(ReadEvent { resource, asked, version })
            }),
            (text, text, any::<bool>()).prop_map(|(fault, target, begins)| {
                HistoryEvent::Fault(FaultEvent { fault, target, begins })
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_line_round_trips(at: u64, by in "(?s).*", event in events()) {
            let line = HistoryLine { at, by, event };
            let text = line.encode();
            prop_assert!(text.ends_with('\n') && !text[..text.len() - 1].contains('\n'));
            prop_assert_eq!(parse(&text).unwrap(), Some(line));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text: String) {
            let _ = parse(&text);
        }
    }

    #[test]
    fn missing_fields_and_wrong_words_are_named() {
        for (line, words) in [
            ("{", "EOF"),
            (r#"{"at":1,"event":"ended"}"#, "`by`"),
            (r#"{"at":1,"by":"a","event":"ended","hold":1,"until":2}"#, "`how`"),
            (
                r#"{"at":1,"by":"a","event":"ended","hold":1,"until":2,"how":"gone"}"#,
                "`gone` is no value of `how`",
            ),
            (
                r#"{"at":1,"by":"a","event":"granted","hold":1,"service":"s","locks":[],"mode":"shared","asked":1}"#,
                "at least one lock",
            ),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(parse(r#"{"at":1,"by":"a","event":"later","new":[1]}"#), Ok(None), "of a newer version");
    }
}
