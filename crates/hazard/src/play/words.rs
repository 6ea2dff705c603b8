//! The texts of steps and messages.

use std::time::Duration;

use lockkeeper::machine::{Answer, CallKind, Event, Push};
use lockkeeper_fence::Refused;

use crate::trace::MessageKind;

/// Why the fence refuses a client.
pub(super) fn refusal(name: &str, refused: Refused) -> String {
    match refused {
        Refused::Stale { offered, highest } => {
            format!("refuses {name}: token {offered} is older than {highest}")
        }
        other => format!("refuses {name}: {other}"),
    }
}

/// The text of a call, and its kind.
pub(super) fn call_text(kind: &CallKind) -> (&'static str, MessageKind) {
    match kind {
        CallKind::Open { .. } => ("open a session", MessageKind::Session),
        CallKind::KeepAlive => ("keep-alive", MessageKind::Session),
        CallKind::Acquire { .. } => ("acquire", MessageKind::Lock),
        CallKind::Finish { .. } => ("release", MessageKind::Lock),
        CallKind::Settle { .. } => ("settle", MessageKind::Lock),
        CallKind::Close => ("close the session", MessageKind::Session),
    }
}

/// The text of an event for a machine, and its kind.
pub(super) fn answer_text(event: &Event) -> (String, MessageKind) {
    match event {
        Event::Answered { answer: Answer::Granted(grant), .. } => {
            let token = grant.token.map_or_else(String::new, |token| format!(", token {token}"));
            (format!("granted{token}"), MessageKind::Lock)
        }
        Event::Answered { answer: Answer::Finished(_), .. } => ("released".to_owned(), MessageKind::Lock),
        Event::Pushed(Push::Queued { .. }) => ("queued".to_owned(), MessageKind::Lock),
        Event::Answered { answer: Answer::SessionGone, .. } | Event::Pushed(Push::Lost(_)) => {
            ("the session has ended".to_owned(), MessageKind::Lock)
        }
        Event::Pushed(Push::HoldLost { .. }) => ("the lock is lost".to_owned(), MessageKind::Lock),
        _ => ("confirmed".to_owned(), MessageKind::Session),
    }
}

/// A duration for people.
pub(super) fn shown(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}
