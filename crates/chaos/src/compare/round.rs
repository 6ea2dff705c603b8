//! One row: the service, the contenders, and one fault after the other.

use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use lockkeeper_history::{FaultEvent, HistoryEvent, HistoryWriter};
use lockkeeper_rig::Network;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use super::CONTENDERS;
use super::contenders::Contenders;
use super::rows::ComparedRow;
use super::section::now;
use super::service::ComparedService;
use super::strikes::{PlannedStrike, Strike, StrikePlan};
use super::sums::{RowSums, sums};
use crate::Result;
use crate::options::CompareOptions;
use crate::run::{Programs, fault_history};

const POLL: Duration = Duration::from_millis(1);
/// How long a fault may wait for its moment.
const MOMENT_WITHIN: Duration = Duration::from_secs(20);
/// How long all may stand still after a fault.
const GOES_ON_WITHIN: Duration = Duration::from_secs(40);
/// The duration of a server's fault, without [`PlannedStrike::beyond`].
const SERVER_FAULT: Duration = Duration::from_millis(1500);
/// How much longer than a fault the section of its holder lasts.
const OUTLASTS: Duration = Duration::from_millis(1000);

struct Round<'a> {
    row: &'static ComparedRow,
    service: ComparedService,
    contenders: Contenders,
    faults: &'a HistoryWriter,
}

/// Plays a row, with all its files in `place`.
pub(super) async fn play(
    row: &'static ComparedRow,
    options: &CompareOptions,
    network: &Rc<Network>,
    programs: &Programs,
    place: &Path,
) -> Result<RowSums> {
    let service = ComparedService::start(row, network, &programs.lockkeeper, place).await?;
    let routes = service.routes(CONTENDERS);
    let contenders = Contenders::start(row, routes, place, &programs.chaos, network, options.seed)?;
    let history = place.join("faults.history");
    let faults = fault_history(&history)?;
    let mut round = Round { row, service, contenders, faults: &faults };
    round.goes_on_after(SystemTime::now()).await?;
    let mut plan = StrikePlan::new(options.seed);
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let mut missed = 0;
    while Instant::now() < until {
        let planned = plan.next_for(row);
        if !round.strike(&planned).await? {
            missed += 1;
        }
        sleep(planned.then).await;
    }
    round.contenders.end().await?;
    round.service.end()?;
    let mut files = round.contenders.histories();
    files.push(history);
    if missed > 0 {
        eprintln!("{}: {missed} faults have found no holder", row.name);
    }
    sums(&files, place)
}

/// Copies histories and logs.
pub(super) fn keep(place: &Path, to: &Path) -> Result {
    fs::create_dir_all(to)?;
    let files = fs::read_dir(place)?.flatten().map(|entry| entry.path());
    for file in files.filter(|file| file.is_file()) {
        fs::copy(&file, to.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

impl Round<'_> {
    /// Injects a fault, heals it, and waits until the lock is granted again. `false`: it has found no
    /// holder.
    async fn strike(&mut self, planned: &PlannedStrike) -> Result<bool> {
        let ttl = Duration::from_millis(self.row.ttl_ms);
        let (victim, lasts) = (planned.pick % self.contenders.len(), SERVER_FAULT + planned.beyond);
        let name = planned.strike.name();
        match planned.strike {
            Strike::Stop | Strike::StopUntilNext => {
                let Some(victim) = self.stopped_holder().await? else { return Ok(false) };
                self.tell(name, victim, true);
                sleep(ttl / 2).await;
                if planned.strike == Strike::Stop {
                    sleep(ttl / 2 + planned.beyond).await;
                } else {
                    // A lock that lasts as long as its connection is not granted to anyone meanwhile.
                    let until = Instant::now() + ttl * 2;
                    while self.contenders.in_section(Some(victim)).is_none() && Instant::now() < until {
                        sleep(POLL).await;
                    }
                    sleep(planned.late).await;
                }
                self.contenders.signal(victim, Signal::SIGCONT)?;
                return self.healed(name, victim).await;
            }
            Strike::Kill => {
                let Some(victim) = self.stopped_holder().await? else { return Ok(false) };
                self.tell(name, victim, true);
                self.contenders.kill(victim)?;
                sleep(planned.beyond).await;
                self.contenders.begin(victim)?;
                return self.healed(name, victim).await;
            }
            Strike::Cut => {
                let lasts = ttl + planned.beyond;
                if !self.slow_holder(victim, lasts + OUTLASTS).await? {
                    return Ok(false);
                }
                self.tell(name, victim, true);
                self.service.cut(victim, lasts).await;
                return self.healed(name, victim).await;
            }
            Strike::ServerStopHeld | Strike::ServerKillHeld
                if !self.slow_holder(victim, lasts + OUTLASTS).await? =>
            {
                return Ok(false);
            }
            Strike::FailOver => {
                self.service.lag();
                if !self.slow_holder(victim, lasts + OUTLASTS).await? {
                    let victim = self.contenders.name(victim);
                    return Err(format!("{victim} does not get the lock while the replica lags").into());
                }
            }
            _ => {}
        }
        self.tell(name, victim, true);
        match planned.strike {
            Strike::ServerStop | Strike::ServerStopHeld => self.service.stop(planned.pick, lasts).await?,
            Strike::ServerCut => self.service.cut_leader(self.contenders.len(), lasts).await?,
            Strike::FailOver => self.service.fail_over()?,
            _ => self.service.kill(planned.pick, lasts).await?,
        }
        self.healed(name, victim).await
    }

    /// Waits until the lock is granted again.
    async fn healed(&self, name: &str, victim: usize) -> Result<bool> {
        self.goes_on_after(SystemTime::now()).await.map_err(|error| format!("after {name}: {error}"))?;
        self.tell(name, victim, false);
        Ok(true)
    }

    async fn goes_on_after(&self, then: SystemTime) -> Result {
        let until = Instant::now() + GOES_ON_WITHIN;
        while !self.contenders.goes_on_after(then) {
            if Instant::now() >= until {
                return Err(format!("nobody has got the lock for {GOES_ON_WITHIN:?}").into());
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Stops a contender in its section.
    async fn stopped_holder(&self) -> Result<Option<usize>> {
        let until = Instant::now() + MOMENT_WITHIN;
        while Instant::now() < until {
            if let Some(holder) = self.contenders.in_section(None) {
                self.contenders.signal(holder, Signal::SIGSTOP)?;
                if self.contenders.in_section_since(holder).is_some() {
                    return Ok(Some(holder));
                }
                self.contenders.signal(holder, Signal::SIGCONT)?;
            }
            sleep(POLL).await;
        }
        Ok(None)
    }

    /// Waits until a contender is in a section of this duration.
    async fn slow_holder(&self, victim: usize, lasts: Duration) -> Result<bool> {
        self.contenders.slow(victim, lasts)?;
        let until = Instant::now() + MOMENT_WITHIN;
        while !self.contenders.is_slow(victim) {
            if Instant::now() >= until {
                return Ok(false);
            }
            sleep(POLL).await;
        }
        Ok(true)
    }

    fn tell(&self, fault: &str, victim: usize, begins: bool) {
        let is_of_server = fault.starts_with("server");
        let target = if is_of_server { "server" } else { self.contenders.name(victim) };
        let event = FaultEvent { fault: fault.to_owned(), target: target.to_owned(), begins };
        self.faults.write(now(), HistoryEvent::Fault(event));
    }
}
