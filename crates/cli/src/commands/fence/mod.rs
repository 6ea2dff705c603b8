//! `fence`: the file fence for shell scripts; `marks` shows and sets the marks of any fence, for operators.

mod marks;
mod recorded;
mod store;

use std::env::var;
use std::io::Read;

use lockkeeper::{Mode, Token};
use lockkeeper_fence::{FileError, FileFence, Refused, Section};
use serde_json::json;

use crate::args::{Fence, FenceArgs, FenceMode};
use crate::exit::{Failure, IO, OK, STALE, USAGE, chain, code_below};
use crate::output;

pub(in crate::commands) use recorded::FenceHistory;
pub(in crate::commands) use store::FenceStore;
#[cfg(feature = "redis")]
pub(super) use store::redis;
#[cfg(feature = "postgres")]
pub(super) use store::{LIMIT, postgres};

pub(super) fn fence(command: &Fence) -> Result<u8, Failure> {
    let args = match command {
        Fence::Enter(args) | Fence::Check(args) => args,
        Fence::Write(write) => &write.args,
        Fence::Show(args) => return super::block_on(marks::show(args)),
        Fence::Reset(args) => return super::block_on(marks::reset(args)),
    };
    let section = section(args)?;
    let fence = FileFence::new(&args.file).map_err(|error| Failure::new(USAGE, chain(&error)))?;
    let history = FenceHistory::of_environment("fence", &var("LOCKKEEPER_URL").unwrap_or_default())?;
    let result = match command {
        Fence::Enter(_) => fence.enter(section),
        Fence::Write(write) => {
            // All input is read before the check, so that a slow pipe does not block other users of the
            // fence.
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes)?;
            if bytes.is_empty() && !write.allow_empty {
                let file = args.file.display();
                let text = format!(
                    "standard input is empty, so `{file}` was left as it is: did the command before the pipe fail? \
                     `--allow-empty` empties the file"
                );
                return Err(Failure::new(USAGE, text));
            }
            fence.write(section, &bytes)
        }
        _ => fence.check(section),
    };
    if let Some(history) = history {
        history.checked(&fence, section, &result);
    }
    if args.json {
        let refused = result.as_ref().err().and_then(stale);
        let highest = refused.map(|(_, highest)| highest.get());
        let says = result.as_ref().err().map(|error| chain(error));
        output::json(
            &json!({ "passed": result.is_ok(), "token": args.token.get(), "highest": highest, "says": says }),
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

fn stale(error: &FileError) -> Option<(Token, Token)> {
    match error {
        FileError::Refused(Refused::Stale { offered, highest }) => Some((*offered, *highest)),
        _ => None,
    }
}

fn section(args: &FenceArgs) -> Result<Section, Failure> {
    let mode = match args.mode {
        FenceMode::Exclusive => Mode::Exclusive,
        FenceMode::Shared => Mode::Shared,
        FenceMode::Permit => Mode::Permit,
    };
    Section::new(mode, args.slot, args.token).map_err(|error| Failure::new(USAGE, chain(&error)))
}
