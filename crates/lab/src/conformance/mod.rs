//! `lockkeeper conformance`: gives any client a verdict for each promise.
//!
//! A *driver* is a small program around a client, which takes commands and answers in lines of JSON
//! (docs/write-a-client.md). The harness starts several processes of each driver, and a lock service behind
//! proxies. It stops, kills and cuts off both sides, and compares what the clients say of their holds.
//!
//! Reading order: `protocol.rs`, `scenarios/mod.rs` and one of its scenarios, `history.rs` (the judge),
//! `hold.rs` and `stage.rs` (what scenarios play with), `process.rs` and `log.rs` (a driver's input and
//! output).
//!
//! - A violation is reported only if it is certain: see `history.rs`.
//! - Each wait has a time limit. A driver that does not answer in time has broken the scenario's promise.
//! - A driver knows nothing of the scenarios.

mod history;
mod hold;
pub mod languages;
mod log;
mod process;
pub mod protocol;
mod scenarios;
mod stage;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::iter;
use lockkeeper_rig::{Redis, find, redis};

use crate::node::Node;
use history::{Violation, shortened};
use log::RunRecord;
use process::DriverProcess;
use protocol::{Hello, PROTOCOL};
use scenarios::{Pairs, SCENARIOS, Scenario};
use stage::{Cast, PlayedService, TestBed};

/// How many scenarios are played at once: most of their time, they wait.
const AT_ONCE: usize = 10;

/// How often a driver may take all of the patience in one scenario.
const LATE_ANSWERS: u32 = 3;

/// How long one scenario may take besides: as long as a driver's start, at which others start, too.
const SCENARIO_BASE: Duration = Duration::from_secs(60);

/// What a verdict is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Promise {
    /// The driver's own protocol.
    Protocol,
    /// A promise of docs/SAFETY.md, and likewise the others.
    P1,
    /// See `P1`.
    P2,
    /// See `P1`.
    P3,
    /// See `P1`.
    P4,
    /// See `P1`.
    P5,
    /// See `P1`.
    P6,
    /// See `P1`.
    P7,
    /// See `P1`.
    P8,
    /// See `P1`.
    P9,
    /// See `P1`.
    P10,
    /// See `P1`.
    P11,
    /// See `P1`.
    P12,
}

impl Promise {
    /// All, in their order.
    pub const ALL: [Self; 13] = [
        Self::Protocol,
        Self::P1,
        Self::P2,
        Self::P3,
        Self::P4,
        Self::P5,
        Self::P6,
        Self::P7,
        Self::P8,
        Self::P9,
        Self::P10,
        Self::P11,
        Self::P12,
    ];

    /// `P1`, …
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Protocol => "protocol".to_owned(),
            promise => format!("{promise:?}"),
        }
    }

    /// In a few words, for a client.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Protocol => "the driver answers as it should",
            Self::P1 => "holds never conflict",
            Self::P2 => "tokens rise",
            Self::P3 => "fenced sections",
            Self::P4 => "holds are stable",
            Self::P5 => "the client gives up first",
            Self::P6 => "keep-alives are confirmed",
            Self::P7 => "retries are harmless",
            Self::P8 => "first come, first served",
            Self::P9 => "a stall of the service ends no session",
            Self::P10 => "durable",
            Self::P11 => "an absent ability is an error",
            Self::P12 => "unknown is an answer",
        }
    }
}

/// The verdict on a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromiseVerdict {
    /// The promise.
    pub promise: Promise,
    /// The scenarios that were played for it.
    pub played: usize,
    /// What was seen, if it is broken.
    pub broken: Vec<String>,
    /// Why scenarios were left out.
    pub left_out: Vec<String>,
}

impl PromiseVerdict {
    const fn of(promise: Promise) -> Self {
        Self { promise, played: 0, broken: Vec::new(), left_out: Vec::new() }
    }
}

/// The harness itself failed.
#[derive(Debug)]
pub struct HarnessError {
    /// Whether it is the user who can mend it: a driver or a lock service that does not start.
    pub is_usage: bool,
    /// What failed.
    pub text: String,
}

type Outcome<T = ()> = Result<T, ScenarioError>;

/// Why a scenario did not come to its end.
enum ScenarioError {
    /// The promise is broken.
    Broken(String),
    /// It can't be played.
    LeftOut(String),
    /// The harness failed.
    Failed(String),
}

fn broken<T>(text: String) -> Outcome<T> {
    Err(ScenarioError::Broken(text))
}

/// What to play.
#[derive(Debug)]
pub struct Selection {
    /// Command lines of drivers, for `sh`.
    pub drivers: Vec<String>,
    /// The lock service; `None`: those that are started for it.
    pub locks: Option<String>,
    /// Only scenarios about these promises; all if there are none. Tokens, overlaps and the protocol are
    /// judged in each.
    pub promises: Vec<Promise>,
    /// How long an answer may take, and the lock service to come to a state.
    pub patience: Duration,
}

/// Plays the scenarios.
///
/// # Errors
/// [`HarnessError`]: nothing can be said.
///
/// # Panics
/// A server of others does not start: see `lockkeeper_rig`.
pub async fn conformance(selection: &Selection) -> Result<Vec<PromiseVerdict>, HarnessError> {
    let Selection { drivers, locks, promises, patience } = selection;
    let record = RunRecord::new(*patience);
    let mut named = Vec::new();
    for command in drivers {
        named.push((command.clone(), hello(command, &record).await?));
    }
    let services = services(&named, locks.as_deref())?;
    let played =
        services.into_iter().map(|service| play(service, &named, promises, RunRecord::new(*patience)));
    let mut verdicts = Verdicts::default();
    for (promise, seen) in try_join_all(played).await?.into_iter().flatten() {
        verdicts.add(promise, seen);
    }
    Ok(verdicts.all())
}

impl HarnessError {
    fn internal(text: impl ToString) -> Self {
        Self { is_usage: false, text: text.to_string() }
    }

    fn usage(text: String) -> Self {
        Self { is_usage: true, text }
    }
}

/// A driver's first line.
async fn hello(command: &str, record: &RunRecord) -> Result<Hello, HarnessError> {
    let hello = match DriverProcess::start(command, 0, record).await {
        Ok(driver) => driver.hello.clone(),
        Err(ScenarioError::Broken(text) | ScenarioError::LeftOut(text) | ScenarioError::Failed(text)) => {
            return Err(HarnessError::usage(text));
        }
    };
    if hello.protocol != PROTOCOL {
        let text = format!("`{command}` speaks protocol {}, and this harness {PROTOCOL}", hello.protocol);
        return Err(HarnessError::usage(text));
    }
    Ok(hello)
}

/// The lock services for these drivers.
fn services(drivers: &[(String, Hello)], locks: Option<&str>) -> Result<Vec<PlayedService>, HarnessError> {
    let services = match locks {
        Some(url) => vec![PlayedService::Given(url.to_owned())],
        None => {
            let mut services = Vec::new();
            let takes = |scheme: &str| drivers.iter().any(|(_, it)| it.schemes.iter().any(|it| it == scheme));
            if takes("lockkeeper") || takes("http") {
                let nodes = Node::cluster().map_err(HarnessError::internal)?;
                services.push(PlayedService::Cluster(RefCell::new(nodes)));
            }
            if takes("redis") && find(redis::SERVER.name).is_some() {
                let durable = ["--appendonly", "yes", "--appendfsync", "always"];
                services.push(PlayedService::Redis(Box::new(Redis::with(&durable))));
            }
            services
        }
    };
    for (command, hello) in drivers {
        if !services.iter().any(|service| service.takes(hello)) {
            let text = format!(
                "`{command}` takes URLs with {:?}, and none of the lock services; without --locks there are \
                 lockkeeper, http, and redis if {} is installed",
                hello.schemes,
                redis::SERVER.name
            );
            return Err(HarnessError::usage(text));
        }
    }
    Ok(services)
}

/// What was seen of a promise.
enum Observation {
    Held,
    Broken(String),
    LeftOut(String),
}

/// Plays all scenarios on a service.
async fn play(
    service: PlayedService,
    drivers: &[(String, Hello)],
    promises: &[Promise],
    record: RunRecord,
) -> Result<Vec<(Promise, Observation)>, HarnessError> {
    let name = service.name();
    let able = drivers.iter().filter(|(_, hello)| service.takes(hello)).cloned().collect();
    let stage = TestBed::new(service, able, record).await?;
    let casts = |at_end: bool| {
        // Most grants of one lock, whose tokens are compared, are those about P1.
        let judged = |it: &Scenario| it.promise == Promise::P1 && promises.contains(&Promise::P2);
        let is_chosen =
            move |it: &&Scenario| promises.is_empty() || promises.contains(&it.promise) || judged(it);
        let scenarios = SCENARIOS.iter().filter(is_chosen);
        let scenarios = scenarios.filter(move |it| (it.pairs == Pairs::AtEnd) == at_end);
        scenarios.flat_map(|scenario| Cast::all(&stage, scenario)).filter(|cast| !cast.is_beside_the_point())
    };
    let played = casts(false).map(|cast| async move { (cast, one(&cast).await) });
    let mut played: Vec<_> = iter(played).buffer_unordered(AT_ONCE).collect().await;
    for cast in casts(true) {
        played.push((cast, one(&cast).await));
    }
    let mut all = Vec::new();
    for (cast, outcome) in played {
        let seen = match outcome {
            Ok(()) => Observation::Held,
            Err(ScenarioError::Broken(text)) => {
                Observation::Broken(format!("{name}{}: {text}", cast.shown()))
            }
            Err(ScenarioError::LeftOut(text)) => {
                Observation::LeftOut(format!("{name}{}: {text}", cast.scenario.name))
            }
            Err(ScenarioError::Failed(text)) => {
                return Err(HarnessError::internal(format!("{}: {text}", cast.shown())));
            }
        };
        all.push((cast.scenario.promise, seen));
    }
    let history = stage.record.history();
    let has_tokens = stage.locks.capabilities().has_tokens();
    for Violation { promise, text } in shortened(history.judge(has_tokens)) {
        all.push((promise, Observation::Broken(format!("{name}{text}"))));
    }
    if history.len() > 1 {
        all.push((Promise::Protocol, Observation::Held));
    }
    all.push(match (has_tokens, history.has_compared()) {
        (true, true) => (Promise::P2, Observation::Held),
        (true, false) => {
            let text = format!("{name}no lock was granted twice, so no tokens were compared");
            (Promise::P2, Observation::LeftOut(text))
        }
        (false, _) => (Promise::P2, Observation::LeftOut(format!("{name}the service has no tokens"))),
    });
    Ok(all)
}

async fn one(cast: &Cast<'_>) -> Outcome {
    if let Some(why) = cast.lacks() {
        return Err(ScenarioError::LeftOut(why));
    }
    let limit = SCENARIO_BASE + cast.stage.record.patience * LATE_ANSWERS;
    match tokio::time::timeout(limit, (cast.scenario.play)(cast)).await {
        Ok(outcome) => outcome,
        Err(_) => broken(format!("it has not come to its end within {limit:?}")),
    }
}

/// The verdicts so far.
#[derive(Default)]
struct Verdicts(BTreeMap<Promise, PromiseVerdict>);

impl Verdicts {
    fn add(&mut self, promise: Promise, seen: Observation) {
        let verdict = self.0.entry(promise).or_insert_with(|| PromiseVerdict::of(promise));
        match seen {
            Observation::Held => verdict.played += 1,
            Observation::Broken(text) => verdict.broken.push(text),
            Observation::LeftOut(text) if verdict.left_out.contains(&text) => {}
            Observation::LeftOut(text) => verdict.left_out.push(text),
        }
    }

    /// One for each promise.
    fn all(mut self) -> Vec<PromiseVerdict> {
        let a_fence = "a fence is at the resource (docs/fencing.md)".to_owned();
        self.add(Promise::P3, Observation::LeftOut(a_fence));
        self.add(Promise::P6, Observation::LeftOut("it is the service's own".to_owned()));
        Promise::ALL.map(|promise| self.0.remove(&promise).unwrap_or(PromiseVerdict::of(promise))).to_vec()
    }
}
