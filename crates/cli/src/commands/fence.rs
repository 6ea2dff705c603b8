//! `fence`: the file fence for shell scripts; and the marks of any fence, for those who look after it.

use std::io::Read;

use lockkeeper::{Mode, Token};
use lockkeeper_fence::{FileError, FileFence, Marks, Pair, Refused, Section};
use serde_json::{Value, json};

use crate::args::{Fence, FenceArgs, FenceMode, FenceReset, FenceShow, FenceTarget};
use crate::exit::{Failure, IO, OK, STALE, USAGE, chain, code_below};
use crate::output;

pub(super) fn fence(command: &Fence) -> Result<u8, Failure> {
    let args = match command {
        Fence::Enter(args) | Fence::Check(args) | Fence::Write(args) => args,
        Fence::Show(args) => return show(args),
        Fence::Reset(args) => return reset(args),
    };
    let section = section(args)?;
    let fence = FileFence::new(&args.file).map_err(|error| Failure::new(USAGE, chain(&error)))?;
    let result = match command {
        Fence::Enter(_) => fence.enter(section),
        Fence::Check(_) => fence.check(section),
        _ => {
            // Whole before the check: a slow pipe must not keep others out.
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes)?;
            fence.write(section, &bytes)
        }
    };
    if args.json {
        let refused = result.as_ref().err().and_then(stale);
        let highest = refused.map(|(_, highest)| highest.get());
        let says = result.as_ref().err().map(|error| chain(error));
        output::json(
            &json!({ "passed": result.is_ok(), "token": args.token, "highest": highest, "says": says }),
        )?;
    }
    match result {
        Ok(()) => Ok(OK),
        Err(error) => {
            let failure = failed(&error);
            Err(if args.json { Failure::new(failure.code, "") } else { failure })
        }
    }
}

fn failed(error: &FileError) -> Failure {
    let code = match error {
        FileError::Refused(Refused::SharedWrite { .. }) => USAGE,
        FileError::Refused(_) => STALE,
        _ => code_below(error).unwrap_or(IO),
    };
    Failure::new(code, chain(error))
}

fn show(args: &FenceShow) -> Result<u8, Failure> {
    let marks = file_fence(&args.which)?.marks().map_err(|error| failed(&error))?;
    if args.which.json { output::json(&marks_json(&marks)) } else { output::line(marks_text(&marks)) }?;
    Ok(OK)
}

fn reset(args: &FenceReset) -> Result<u8, Failure> {
    let to = token(args.to)?;
    let fence = file_fence(&args.which)?;
    let before = fence.marks().map_err(|error| failed(&error))?;
    if !args.yes {
        let why = format!(
            "nothing was done: this would set the marks of `{}` to {to}; now they are: {}. A lower mark lets old tokens \
             in again: stop all writers, then repeat it with --yes",
            args.which.target.display(),
            marks_text(&before).replace('\n', "; ")
        );
        return Err(Failure::new(USAGE, why));
    }
    fence.reset(to).map_err(|error| failed(&error))?;
    let after = fence.marks().map_err(|error| failed(&error))?;
    if args.which.json {
        output::json(&json!({ "before": marks_json(&before), "after": marks_json(&after) }))?;
    } else {
        let indented = |marks| marks_text(marks).replace('\n', "\n        ");
        output::line(format!("before: {}\nafter:  {}", indented(&before), indented(&after)))?;
    }
    Ok(OK)
}

fn file_fence(which: &FenceTarget) -> Result<FileFence, Failure> {
    if let Some(resource) = &which.resource {
        let why = format!(
            "`{resource}` is one name too many: `{}` is a file, which has one fence",
            which.target.display()
        );
        return Err(Failure::new(USAGE, why));
    }
    FileFence::new(&which.target).map_err(|error| Failure::new(USAGE, chain(&error)))
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

fn token(typed: u64) -> Result<Token, Failure> {
    Token::new(typed).ok_or_else(|| Failure::new(USAGE, format!("{typed} is not a token; 1 to 2^53 − 1 are")))
}

fn stale(error: &FileError) -> Option<(Token, Token)> {
    match error {
        FileError::Refused(Refused::Stale { offered, highest }) => Some((*offered, *highest)),
        _ => None,
    }
}

fn section(args: &FenceArgs) -> Result<Section, Failure> {
    let token = token(args.token)?;
    let mode = match args.mode {
        FenceMode::Exclusive => Mode::Exclusive,
        FenceMode::Shared => Mode::Shared,
        FenceMode::Permit => Mode::Permit,
    };
    Section::new(mode, args.slot, token).map_err(|error| Failure::new(USAGE, chain(&error)))
}
