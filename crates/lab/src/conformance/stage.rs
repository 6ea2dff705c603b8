//! What a scenario plays with: a lock service, processes of drivers behind proxies, and a client of the
//! harness that inspects.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockkeeper::{ConnectError, LockInfo, Locks};
use lockkeeper_rig::{Faults, Redis};
use tokio::sync::OnceCell;

use super::hold::Want;
use super::log::RunRecord;
use super::process::DriverProcess;
use super::protocol::{Hello, LockMode};
use super::scenarios::{Need, Pairs, Scenario};
use super::{HarnessError, Outcome, ScenarioError, broken};
use crate::node::Node;

/// The ttl of clients whose holds are to end.
pub(super) const SHORT: Duration = Duration::from_secs(2);
/// The ttl of clients whose holds are to survive each fault.
pub(super) const LONG: Duration = Duration::from_secs(15);

/// How often a condition of the lock service is looked up.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// A driver's label at its proxies.
const LABEL: &str = "driver";

/// A lock service.
pub(super) enum PlayedService {
    /// That of the user: no faults.
    Given(String),
    /// Three nodes of our own.
    Cluster(RefCell<Vec<Node>>),
    /// Redis.
    Redis(Box<Redis>),
}

impl PlayedService {
    /// What comes before the verdicts about it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Given(_) | Self::Cluster(_) => "",
            Self::Redis(_) => "redis: ",
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Given(url) => url.clone(),
            Self::Cluster(nodes) => {
                listed("lockkeeper", nodes.borrow().iter().map(|it| &it.serves.listening))
            }
            Self::Redis(redis) => redis_url(&format!("127.0.0.1:{}", redis.port())),
        }
    }

    /// Whether a driver takes its URLs.
    pub(super) fn takes(&self, hello: &Hello) -> bool {
        let schemes: &[&str] = match self {
            Self::Given(url) => &[url.split_once(':').map_or("", |(scheme, _)| scheme)],
            Self::Cluster(_) => &["lockkeeper", "http"],
            Self::Redis(_) => &["redis"],
        };
        hello.schemes.iter().any(|it| schemes.contains(&it.as_str()))
    }

    /// The URL for one process of a driver that takes such URLs. Its connections go through proxies of its
    /// own.
    fn url_for(&self, hello: &Hello, faults: &Faults) -> Outcome<String> {
        Ok(match self {
            Self::Given(url) => url.clone(),
            Self::Redis(redis) => {
                let address = SocketAddr::from(([127, 0, 0, 1], redis.port()));
                redis_url(&faults.proxy(LABEL, address).to_string())
            }
            Self::Cluster(nodes) => {
                let is_grpc = hello.schemes.iter().any(|scheme| scheme == "lockkeeper");
                let address = |node: &Node| match is_grpc {
                    true => node.serves.listening.clone(),
                    false => node.serves.http.as_deref().unwrap_or_default().replace("http://", ""),
                };
                let parsed: Result<Vec<SocketAddr>, _> =
                    nodes.borrow().iter().map(|node| address(node).parse()).collect();
                let nodes =
                    parsed.map_err(|error| ScenarioError::Failed(format!("a node's address: {error}")))?;
                listed(if is_grpc { "lockkeeper" } else { "http" }, faults.proxies(LABEL, &nodes).iter())
            }
        })
    }
}

fn redis_url(address: &str) -> String {
    format!("redis://{address}?fencing=counter")
}

fn listed(scheme: &str, addresses: impl Iterator<Item: ToString>) -> String {
    format!("{scheme}://{}", addresses.map(|it| it.to_string()).collect::<Vec<_>>().join(","))
}

/// A process of a driver.
pub(super) struct Actor {
    driver: Rc<DriverProcess>,
    faults: Faults,
}

impl Deref for Actor {
    type Target = Rc<DriverProcess>;
    fn deref(&self) -> &Rc<DriverProcess> {
        &self.driver
    }
}

impl Actor {
    /// Neither side receives anything any more, and no connection closes.
    pub(super) fn silence(&self) {
        self.faults.silence(LABEL);
    }

    /// Ends [`Self::silence`].
    pub(super) fn end_silence(&self) {
        self.faults.end_silence(LABEL);
    }

    /// Closes its connections; it can open others.
    pub(super) fn close_connections(&self) {
        self.faults.close_connections(LABEL);
    }

    /// Its next call is lost, with its connection.
    pub(super) fn lose_call(&self) {
        self.faults.lose_calls(1);
    }

    /// The next answer to it is lost, with its connection.
    pub(super) fn lose_answer(&self) {
        self.faults.lose_answers(1);
    }
}

/// One lock service, and the drivers that can use it.
pub(super) struct TestBed {
    pub(super) service: PlayedService,
    /// The harness's client.
    pub(super) locks: Locks,
    pub(super) record: RunRecord,
    /// Command lines and first lines of the drivers.
    pub(super) drivers: Vec<(String, Hello)>,
    /// For each driver, two processes that scenarios share.
    shared: Vec<[OnceCell<Actor>; 2]>,
    processes: Cell<usize>,
}

impl TestBed {
    pub(super) async fn new(
        service: PlayedService,
        drivers: Vec<(String, Hello)>,
        record: RunRecord,
    ) -> Result<Self, HarnessError> {
        let is_usage = matches!(service, PlayedService::Given(_));
        let failed = |error: ConnectError| HarnessError { is_usage, text: error.to_string() };
        let locks = Locks::connect_as(&service.url(), "conformance").await.map_err(failed)?;
        let shared = drivers.iter().map(|_| Default::default()).collect();
        Ok(Self { service, locks, record, drivers, shared, processes: Cell::new(0) })
    }

    /// Starts a process of a driver, which is not connected; and its URL.
    async fn start(&self, driver: usize) -> Outcome<(Actor, String)> {
        let (command, hello) = &self.drivers[driver];
        let faults = Faults::default();
        let url = self.service.url_for(hello, &faults)?;
        self.processes.set(self.processes.get() + 1);
        let driver = DriverProcess::start(command, self.processes.get(), &self.record).await?;
        Ok((Actor { driver: Rc::new(driver), faults }, url))
    }

    async fn connected(&self, driver: usize, ttl: Duration) -> Outcome<Actor> {
        let (actor, url) = self.start(driver).await?;
        match actor.connect(&url, ttl).await? {
            Ok(()) => Ok(actor),
            Err(error) => broken(format!("{} can't connect to {url}: {error:?}", actor.name)),
        }
    }

    async fn shared(&self, driver: usize, which: usize) -> Outcome<&Actor> {
        self.shared[driver][which].get_or_try_init(|| self.connected(driver, LONG)).await
    }

    /// Waits until `is_so` is true of the lock service.
    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Outcome {
        let deadline = Instant::now() + self.record.patience;
        while !is_so().await {
            if Instant::now() > deadline {
                return broken(format!("{what}, still after {:?}", self.record.patience));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// All nodes of the cluster.
    pub(super) fn nodes(&self) -> Outcome<&RefCell<Vec<Node>>> {
        match &self.service {
            PlayedService::Cluster(nodes) => Ok(nodes),
            _ => Err(ScenarioError::Failed("the service has no nodes".to_owned())),
        }
    }
}

/// The drivers that play in a scenario, and its locks.
#[derive(Clone, Copy)]
pub(super) struct Cast<'a> {
    pub(super) stage: &'a TestBed,
    pub(super) scenario: &'static Scenario,
    /// The driver that is examined.
    pub(super) subject: usize,
    /// The one beside it.
    pub(super) partner: usize,
}

impl<'a> Cast<'a> {
    /// The scenario with each driver beside the next one.
    pub(super) fn everyone(&self) -> Vec<Self> {
        let count = self.stage.drivers.len();
        let cast = |subject| Self { subject, partner: (subject + 1) % count, ..*self };
        (0..count).map(cast).collect()
    }

    /// The scenario with each driver that plays in it.
    pub(super) fn all(stage: &'a TestBed, scenario: &'static Scenario) -> Vec<Self> {
        let first = Self { stage, scenario, subject: 0, partner: 0 };
        let count = stage.drivers.len();
        match scenario.pairs {
            Pairs::AtEnd => vec![first],
            Pairs::Next => first.everyone(),
            Pairs::All => (0..count * count)
                .map(|pair| Self { subject: pair / count, partner: pair % count, ..first })
                .collect(),
        }
    }

    /// What it is about, for texts.
    pub(super) fn shown(&self) -> String {
        let name = |driver: usize| &self.stage.drivers[driver].1.driver;
        match self.scenario.pairs {
            Pairs::AtEnd => self.scenario.name.to_owned(),
            _ => format!("{}: {} beside {}", self.scenario.name, name(self.subject), name(self.partner)),
        }
    }

    /// Whether the scenario is about our own service, and is played on that.
    pub(super) fn is_beside_the_point(&self) -> bool {
        let is_own = |need: &Need| matches!(need, Need::Own | Need::Cluster);
        matches!(self.stage.service, PlayedService::Redis(_)) && self.scenario.needs.iter().any(is_own)
    }

    /// Why the scenario can't be played: an ability is not claimed.
    pub(super) fn lacks(&self) -> Option<String> {
        let (subject, partner) = (&self.stage.drivers[self.subject].1, &self.stage.drivers[self.partner].1);
        let can = self.stage.locks.capabilities();
        self.scenario.needs.iter().find_map(|need| match need {
            Need::Mode(mode) => {
                let lacking = [subject, partner].into_iter().find(|hello| !hello.modes.contains(mode));
                let service = match mode {
                    LockMode::Exclusive => true,
                    LockMode::Shared => can.shared,
                    LockMode::Permit => can.permits,
                };
                let mode = format!("{mode:?}").to_lowercase();
                lacking
                    .map(|hello| format!("{} has no mode {mode}", hello.driver))
                    .or_else(|| (!service).then(|| format!("the service has no mode {mode}")))
            }
            Need::Feature(feature) => {
                let has = |hello: &&Hello| !hello.features.iter().any(|it| it == feature);
                let lacking = [subject, partner].into_iter().find(has);
                let service = (*feature != "all" || can.multi) && (*feature != "subtree" || can.subtree);
                lacking
                    .map(|hello| format!("{} has no {feature}", hello.driver))
                    .or_else(|| (!service).then(|| format!("the service has no {feature}")))
            }
            Need::Own => (can.backend != "lockkeeper").then(|| "it needs our own service".to_owned()),
            Need::Cluster if matches!(self.stage.service, PlayedService::Cluster(_)) => None,
            Need::Cluster => {
                Some("it needs nodes of our own service that the harness has started".to_owned())
            }
            Need::Proxy if !matches!(self.stage.service, PlayedService::Given(_)) => None,
            Need::Proxy => Some("it needs a service that the harness has started".to_owned()),
            Need::Fair => (!can.fair).then(|| "the service grants in no order".to_owned()),
        })
    }

    /// A process of the subject for this scenario only.
    pub(super) async fn fresh(&self, ttl: Duration) -> Outcome<Actor> {
        self.stage.connected(self.subject, ttl).await
    }

    /// The same, not connected; and its URL.
    pub(super) async fn unconnected(&self) -> Outcome<(Actor, String)> {
        self.stage.start(self.subject).await
    }

    /// A process of the subject that others use, too.
    pub(super) async fn subject(&self) -> Outcome<&Actor> {
        self.stage.shared(self.subject, 0).await
    }

    /// A process of the partner that others use, too.
    pub(super) async fn partner(&self) -> Outcome<&Actor> {
        self.stage.shared(self.partner, 1).await
    }

    /// A lock of this scenario only.
    pub(super) fn lock(&self, name: &str) -> Want {
        let Self { scenario, subject, partner, .. } = self;
        let run = std::process::id();
        let scenario_name = scenario.name.replace(' ', "-");
        let name = format!("conformance-{run}/{scenario_name}/{subject}-{partner}/{name}");
        Want::lock(name, scenario.promise)
    }

    /// Waits until this is true of a lock. Errors may pass, as while there is no leader.
    async fn until(&self, want: &Want, what: &str, is_so: impl Fn(&LockInfo) -> bool) -> Outcome {
        let what = format!("`{}` {what}", want.name());
        let look = async || self.stage.locks.inspect(want.name()).await.is_ok_and(|info| is_so(&info));
        self.stage.until(&what, look).await
    }

    /// Waits until so many wait for the lock.
    pub(super) async fn waiters(&self, want: &Want, count: usize) -> Outcome {
        let what = format!("does not have {count} waiters");
        self.until(want, &what, |info| info.waiter_count == count).await
    }

    /// Waits until so many hold the lock.
    pub(super) async fn holders(&self, want: &Want, count: usize) -> Outcome {
        let what = format!("does not have {count} holders");
        self.until(want, &what, |info| info.hold_count == count).await
    }

    /// Whether one holds the lock now.
    pub(super) async fn has_holder(&self, want: &Want) -> bool {
        self.stage.locks.inspect(want.name()).await.is_ok_and(|info| info.hold_count == 1)
    }

    /// Waits until nobody holds the lock or waits for it.
    pub(super) async fn is_free(&self, want: &Want) -> Outcome {
        let what = "is held or waited for, although nobody should";
        self.until(want, what, |info| info.waiter_count == 0 && info.hold_count == 0).await
    }
}
