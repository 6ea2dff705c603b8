//! `fence`: the file fence for shell scripts.

use std::io::Read;

use lockkeeper::{Mode, Token};
use lockkeeper_fence::{FileError, FileFence, Refused, Section};
use serde_json::json;

use crate::args::{Fence, FenceArgs, FenceMode};
use crate::exit::{Failure, IO, OK, STALE, USAGE, chain, code_below};
use crate::output;

pub(super) fn fence(command: &Fence) -> Result<u8, Failure> {
    let (Fence::Enter(args) | Fence::Check(args) | Fence::Write(args)) = command;
    let section = section(args)?;
    let fence = FileFence::new(&args.file).map_err(|error| Failure::new(USAGE, chain(&error)))?;
    let result = match command {
        Fence::Enter(_) => fence.enter(section),
        Fence::Check(_) => fence.check(section),
        Fence::Write(_) => {
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
            let code = match &error {
                FileError::Refused(Refused::SharedWrite { .. }) => USAGE,
                FileError::Refused(_) => STALE,
                _ => code_below(&error).unwrap_or(IO),
            };
            Err(Failure::new(code, if args.json { String::new() } else { chain(&error) }))
        }
    }
}

fn stale(error: &FileError) -> Option<(Token, Token)> {
    match error {
        FileError::Refused(Refused::Stale { offered, highest }) => Some((*offered, *highest)),
        _ => None,
    }
}

fn section(args: &FenceArgs) -> Result<Section, Failure> {
    let token = Token::new(args.token)
        .ok_or_else(|| Failure::new(USAGE, format!("{} is not a token; 1 to 2^53 − 1 are", args.token)))?;
    let mode = match args.mode {
        FenceMode::Exclusive => Mode::Exclusive,
        FenceMode::Shared => Mode::Shared,
        FenceMode::Permit => Mode::Permit,
    };
    Section::new(mode, args.slot, token).map_err(|error| Failure::new(USAGE, chain(&error)))
}
