//! `cargo xtask chaos compare`: the same work and the same faults on the locks of everyone, through the
//! clients of other projects and through our library; a table in docs/choosing.md.
//!
//! Reading order: `rows.rs`, `contender.rs` (a process that takes the lock), `foreign.rs` (clients of
//! others), `section.rs` (the work), `strikes.rs` (the plan of faults), `round.rs` (one row), `service.rs`
//! and `contenders.rs` (processes), `sums.rs` (what a history shows), `table.rs`.

mod contender;
mod contenders;
mod foreign;
mod round;
mod rows;
mod section;
mod service;
mod strikes;
mod sums;
mod table;

use std::rc::Rc;

use lockkeeper_rig::Network;

use crate::Result;
use crate::options::CompareOptions;
use crate::run::{Programs, free_disk, private_disk};

pub(crate) use contender::run as contend;

/// Contenders for the lock of a row.
const CONTENDERS: usize = 4;

/// Runs all rows. Returns whether each is as [`sums::RowSums::is_well`] requires.
pub(crate) fn run(options: &CompareOptions) -> Result<bool> {
    let rows = rows::rows(&options.rows)?;
    // A missing client fails here, before an hour of work.
    rows.iter().try_for_each(|row| row.client.prepare())?;
    let folder = private_disk()?;
    let network = Rc::new(Network::around_this_thread(u8::try_from(service::NODES + CONTENDERS)?));
    let programs = Programs::copied(folder.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut done = Vec::new();
    let mut is_well = true;
    for row in rows {
        let place = folder.path().join(row.name);
        std::fs::create_dir_all(&place)?;
        let played = runtime.block_on(round::play(row, options, &network, &programs, &place));
        if let Some(keep) = &options.keep {
            round::keep(&place, &keep.join(row.name))?;
        }
        let sums = played.map_err(|error| format!("{}: {error}", row.name))?;
        is_well &= sums.is_well(row);
        println!("{}", table::line(row, &sums));
        done.push((row, sums));
        if options.record {
            table::record(&done)?;
        }
    }
    free_disk(&folder)?;
    println!("\n{}", table::table(&done));
    Ok(is_well)
}
