//! `dynamodb`: prepares a table for locks.

use lockkeeper::backends::dynamodb::init;

use crate::args::Dynamodb;
use crate::exit::{Failure, OK};
use crate::{output, settings};

pub(super) async fn dynamodb(task: Dynamodb) -> Result<u8, Failure> {
    let Dynamodb::Init { url } = task;
    let done = if init(&url).await? {
        "the table is there, and billed by request"
    } else {
        "the table was there, and suits"
    };
    output::say(format_args!("{}: {done}", settings::shown(&url)));
    Ok(OK)
}
