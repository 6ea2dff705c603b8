//! A worker process: many tasks that work under locks until its standard input says `end`, or ends.
//!
//! The library writes the history of the holds (`LOCKKEEPER_HISTORY`); `ledger.rs` writes the history of the
//! protected files, `gated.rs` that of the service behind the gate, `claims.rs` that of holds where a planted
//! mistake needs it.

pub(crate) mod answers;
mod claims;
pub(crate) mod crowd;
mod driven;
mod driver;
mod gated;
mod ledger;
mod tasks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_history::{HistoryWriter, host_clock};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::Result;
use crate::mutant::ChaosMutant;
use crate::options::WorkerOptions;
use claims::{Claims, WorkerClock};
use gated::GatedService;
use ledger::Ledger;
use tasks::WorkerTask;

/// The name of the lock service in all histories of a run.
pub(crate) const SERVICE: &str = "chaos";

/// Errors by their texts, for the log of a worker.
#[derive(Clone, Default)]
pub(crate) struct Errors(Arc<Mutex<BTreeMap<String, u64>>>);

impl Errors {
    pub(crate) fn count(&self, error: &impl std::fmt::Debug) {
        let text: String = format!("{error:?}").chars().take(160).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(text).or_default() += 1;
    }

    fn show(&self) {
        for (text, count) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            eprintln!("{count} × {text}");
        }
    }
}

/// One of these kinds of work, each as likely as its weight says.
fn weighted<W: Copy>(random: &mut fastrand::Rng, works: &[(W, u32)]) -> W {
    let mut at = random.u32(0..works.iter().map(|(_, weight)| weight).sum());
    for (work, weight) in works {
        match at.checked_sub(*weight) {
            Some(left) => at = left,
            None => return *work,
        }
    }
    unreachable!("a number below the sum of all weights is in one of them")
}

/// Works until the end of standard input.
pub(crate) fn run(options: &WorkerOptions) -> Result {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(work(options));
    // Sections at the ledgers block their threads.
    runtime.shutdown_timeout(Duration::from_secs(5));
    ended
}

async fn work(options: &WorkerOptions) -> Result {
    let clock = WorkerClock::new(options.mutant);
    let end = tokio::spawn(async {
        let mut line = String::new();
        let _ = BufReader::new(tokio::io::stdin()).read_line(&mut line).await;
    });
    tokio::pin!(end);
    if let Some(command) = &options.driver {
        return driven::work(command, options, end).await;
    }
    let locks = tokio::select! {
        _ = &mut end => return Ok(()),
        locks = connected(&options.url, &options.name) => locks?,
    };
    let now = clock.now();
    let by = format!("{}-{now}", options.name);
    let history =
        HistoryWriter::append(&options.history, by.clone(), host_clock()?, options.name.clone(), now)?;
    let service = options.service.clone();
    let claims = options.mutant.filter(|mutant| mutant.has_claims()).map(|mutant| Claims {
        history: history.clone(),
        clock,
        service: service.clone(),
        is_deaf: mutant == ChaosMutant::DeafWorker,
    });
    let ledger = Ledger::new((history, clock), service, &options.ledgers, by, options.mutant);
    let gated = options.gate.map(|gate| GatedService { gate, ledger: ledger.clone() });
    let errors = Errors::default();
    let tasks: Vec<_> = (0..options.tasks as u64)
        .map(|number| {
            let random = fastrand::Rng::with_seed(options.seed << 16 | number);
            let resources = (ledger.clone(), gated.clone(), claims.clone());
            let task = WorkerTask::new(locks.clone(), resources, random, errors.clone());
            tokio::spawn(task.work())
        })
        .collect();
    let _ = end.await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    for task in tasks {
        let _ = task.await;
    }
    let _ = locks.shutdown(Duration::from_secs(5)).await;
    errors.show();
    Ok(())
}

/// A worker may begin in the middle of a fault.
async fn connected(url: &str, name: &str) -> Result<Locks> {
    loop {
        match Locks::connect_as(url, name).await {
            Ok(locks) => return Ok(locks),
            Err(error) => {
                eprintln!("{error:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
