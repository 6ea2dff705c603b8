//! What can be typed for our own service: to run a node, and what only it answers.

use std::ffi::OsString;

use clap::Args;

use super::Service;

/// `sessions`.
#[derive(Args, Debug)]
pub struct Sessions {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: Service,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `set-limit`.
#[derive(Args, Debug)]
pub struct SetLimit {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub service: Service,
    /// The semaphore's name
    pub name: OsString,
    /// How many permits; `none` removes the number
    #[arg(value_name = "N", value_parser = permits)]
    pub permits: Permits,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A number of permits, or none stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permits(pub Option<u32>);

fn permits(typed: &str) -> Result<Permits, String> {
    if typed == "none" {
        return Ok(Permits(None));
    }
    let number = typed.parse().map_err(|_| "give a number of permits, or `none`".to_owned())?;
    Ok(Permits(Some(number)))
}
