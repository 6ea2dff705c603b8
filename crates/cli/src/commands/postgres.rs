//! `postgres`: prepares a database for locks.

use lockkeeper::backends::postgres::{init, schema_sql};

use crate::args::Postgres;
use crate::exit::{Failure, OK};
use crate::{output, settings};

pub(super) async fn postgres(task: Postgres) -> Result<u8, Failure> {
    let Postgres::Init { url, role, print } = task;
    let role = role.as_deref();
    match url {
        Some(url) if !print => {
            init(&url, role).await?;
            output::say(format_args!("{}: the schema `lockkeeper` is there", settings::shown(&url)));
        }
        _ => output::page(schema_sql(role).trim_end())?,
    }
    Ok(OK)
}
