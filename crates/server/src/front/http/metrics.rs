//! `/metrics`: the metrics in this process's recorder, and the replica's state at the time of the request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper_core::LockName;
use lockkeeper_replica::{Activity, Answer, Question};
use nix::time::ClockId;
use parking_lot::Mutex;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::front::callers::Caller;
use crate::front::calls::Calls;
use crate::front::statuses::unexpected;
use crate::observe;
use crate::options::MetricsPage;
use crate::process::ProcessUsage;

/// Maximum number of prefixes with series of their own, over the life of this process: each series costs the
/// Prometheus server memory for days.
const PREFIXES_MAX: usize = 100;
/// The minimum time over which the clock's rate is measured.
const RATE_TIME: Duration = Duration::from_secs(10);

/// The page of a node.
pub(in crate::front) struct Metrics {
    page: MetricsPage,
    state: Mutex<Shown>,
}

/// State from earlier requests.
#[derive(Default)]
struct Shown {
    prefixes: BTreeSet<LockName>,
    activity: Activity,
    /// Earlier readings of the system's clock and of the hardware clock.
    clocks: Option<(Duration, Duration)>,
}

impl Metrics {
    pub(in crate::front) fn new(page: MetricsPage) -> Self {
        let shown = Shown { clocks: clocks(), ..Shown::default() };
        Self { page, state: Mutex::new(shown) }
    }

    /// Sets the metrics of the node's state, and renders the page.
    pub(super) async fn page(&self, calls: &Arc<Calls>, caller: &Caller) -> Result<String, Status> {
        let answer = calls.ask(&MetadataMap::new(), &caller.identity, self.question()).await?;
        let Answer::Load(load) = answer else { return Err(unexpected()) };
        self.show(&load);
        let ends =
            calls.tls.as_ref().and_then(|tls| tls.expires().duration_since(SystemTime::UNIX_EPOCH).ok());
        if let Some(ends) = ends {
            observe::certificate_ends(ends);
        }
        observe::disk(calls.about.disk.reading());
        observe::process(&ProcessUsage::now());
        Ok((self.page.render)())
    }

    fn question(&self) -> Question {
        let state = self.state.lock();
        Question::Load {
            prefixes: state.prefixes.iter().cloned().collect(),
            segments: self.page.prefix_segments,
        }
    }

    fn show(&self, load: &lockkeeper_replica::Load) {
        let mut state = self.state.lock();
        observe::load(load, &state.activity);
        state.activity.clone_from(&load.activity);
        for (it, oldest) in &load.prefixes {
            if state.prefixes.len() < PREFIXES_MAX {
                state.prefixes.insert(it.prefix.clone());
            }
            if state.prefixes.contains(&it.prefix) {
                observe::prefix(it, *oldest);
            }
        }
        if let (Some((clock, raw)), Some((clock_before, raw_before))) = (clocks(), state.clocks) {
            let took = raw.saturating_sub(raw_before);
            if took >= RATE_TIME {
                observe::clock_correction(
                    clock.saturating_sub(clock_before).as_secs_f64() / took.as_secs_f64() - 1.0,
                );
                state.clocks = Some((clock, raw));
            }
        }
    }
}

/// The clock whose rate is corrected, and the hardware clock under it.
fn clocks() -> Option<(Duration, Duration)> {
    let clock = ClockId::CLOCK_MONOTONIC.now().ok()?;
    let raw = ClockId::CLOCK_MONOTONIC_RAW.now().ok()?;
    Some((clock.into(), raw.into()))
}
