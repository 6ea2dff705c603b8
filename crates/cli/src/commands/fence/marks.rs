//! `fence show` and `fence reset`: show and set the marks of a resource.

use lockkeeper::Token;
use lockkeeper_fence::{Marks, Pair};
use serde_json::{Value, json};

use super::store::FenceStore;
use crate::args::{FenceReset, FenceShow};
use crate::exit::{Failure, OK, USAGE};
use crate::{output, settings};

pub(super) async fn show(args: &FenceShow) -> Result<u8, Failure> {
    let marks = FenceStore::open(&args.which).await?.marks().await?;
    if args.which.json { output::json(&marks_json(&marks)) } else { output::page(marks_text(&marks)) }?;
    Ok(OK)
}

pub(super) async fn reset(args: &FenceReset) -> Result<u8, Failure> {
    let to = args.to;
    let store = FenceStore::open(&args.which).await?;
    // Marks that can't be read do not prevent the reset: they may be the reason for it. (The file fence
    // itself refuses to reset unreadable marks.)
    let before = store.marks().await;
    if !args.yes {
        let now = match &before {
            Ok(marks) => marks_text(marks).replace('\n', "; "),
            Err(failure) => failure.message.clone(),
        };
        let target = args.which.target.to_string_lossy();
        let resource = args.which.resource.as_ref().map(|name| format!(" of `{name}`")).unwrap_or_default();
        let why = format!(
            "nothing was done: this would set the marks{resource} in `{}` to {to}; now they are: {now}. A lower mark lets \
             old tokens in again: stop all writers, then repeat it with --yes",
            if target.contains("://") { settings::shown(&target) } else { target.into_owned() },
        );
        return Err(Failure::new(USAGE, why));
    }
    store.reset(to).await?;
    let after = store.marks().await?;
    if args.which.json {
        let before = before.as_ref().ok().map(marks_json);
        output::json(&json!({ "before": before, "after": marks_json(&after) }))?;
    } else {
        let indented = |marks| marks_text(marks).replace('\n', "\n        ");
        let before = before.as_ref().map_or_else(|failure| output::printable(&failure.message), indented);
        output::page(format!("before: {before}\nafter:  {}", indented(&after)))?;
    }
    Ok(OK)
}

fn marks_text(marks: &Marks) -> String {
    let pair = |pair: Pair| {
        let token = |mark: Option<Token>| mark.map_or_else(|| "none".to_owned(), |token| token.to_string());
        format!("any {}, writer {}", token(pair.any), token(pair.writer))
    };
    let slots = marks.slots.iter().map(|(slot, own)| format!("\nslot {slot}: {}", pair(*own)));
    pair(marks.base) + &slots.collect::<String>()
}

fn marks_json(marks: &Marks) -> Value {
    let pair =
        |pair: &Pair| json!({ "any": pair.any.map(Token::get), "writer": pair.writer.map(Token::get) });
    let slots: serde_json::Map<String, Value> =
        marks.slots.iter().map(|(slot, own)| (slot.to_string(), pair(own))).collect();
    let mut value = pair(&marks.base);
    value["slots"] = slots.into();
    value
}
