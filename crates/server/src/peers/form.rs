//! A node without data bootstraps a cluster with the other nodes of its list, or is added to one that exists.
//!
//! Responsible for: every decision of the `Bootstrap` is durable before any message that depends on it is
//! sent.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_replica::bootstrap::{Bootstrap, BootstrapStep};
use lockkeeper_wire::peer::{Hello, Lane, Refusal, RefusalCode};
use lockkeeper_wire::store::{Candidate, Founding, Member};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::dial::{PAUSE_MAX, PAUSE_MIN, is_final};
use super::handshake::{self, Greeter, NoLink};
use super::listen::listen;
use crate::error::ServeError;
use crate::observe::notify;
use crate::options::ServerOptions;
use crate::tls::NodeTls;

/// The interval at which the state of the other nodes is checked; changes are logged.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// After this time, the state is logged again although it has not changed.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// The other nodes that a node without a cluster asks.
pub(crate) struct Others {
    /// Addresses, each with the id that must answer there; 0: any.
    addresses: Vec<(u64, String)>,
    /// Whether the node may take a new id: see [`Bootstrap::rejoining`].
    rejoins: bool,
}

impl Others {
    pub(crate) fn of(options: &ServerOptions, own: &Candidate) -> Self {
        let member = own.member.clone().unwrap_or_default();
        // Nodes may have taken other ids since the list was written.
        let id = |node: u64| if options.rejoin { 0 } else { node };
        let listed = options.cluster.iter().filter(|(_, address)| **address != member.peer_address);
        let listed = listed.map(|(node, address)| (id(*node), address.clone()));
        let join = options.join.iter().map(|address| (0, address.clone()));
        Self { addresses: listed.chain(join).collect(), rejoins: options.rejoin }
    }
}

/// The outcome of [`form`].
#[derive(Clone, Debug)]
enum FormationOutcome {
    Found(Founding),
    Stop(Refusal),
}

/// Stores a candidate's state durably.
type Keep = Box<dyn Fn(&Candidate) -> Result<(), ServeError> + Send + Sync>;

/// The state of a node without a cluster, shared by its handshakes.
struct Forming {
    founder: Mutex<Bootstrap>,
    keep: Keep,
    outcome: watch::Sender<Option<FormationOutcome>>,
    failed: Mutex<Option<ServeError>>,
    /// The outcome of the latest handshake with each address, for the log.
    heard: Mutex<BTreeMap<String, String>>,
    /// Notified when this node's hello has changed.
    moved: Notify,
    /// What this node waits for, in words.
    progress: watch::Sender<String>,
    tls: Option<Arc<NodeTls>>,
}

/// Bootstraps or joins a cluster. Returns the bootstrap record, which makes this node a member once it is
/// written. `progress` gets what this node waits for, in words. `keep` makes a candidate durable.
///
/// # Errors
/// The cluster refuses this node, or a candidate can't be stored.
pub(crate) async fn form(
    own: Candidate,
    others: Others,
    listener: &TcpListener,
    progress: watch::Sender<String>,
    tls: Option<Arc<NodeTls>>,
    keep: impl Fn(&Candidate) -> Result<(), ServeError> + Send + Sync + 'static,
) -> Result<Founding, ServeError> {
    let (sender, mut outcome) = watch::channel(None);
    let forming = Arc::new(Forming {
        founder: Mutex::new(if others.rejoins { Bootstrap::rejoining(own) } else { Bootstrap::new(own) }),
        keep: Box::new(keep),
        outcome: sender,
        failed: Mutex::default(),
        heard: Mutex::default(),
        moved: Notify::new(),
        progress,
        tls,
    });
    forming.follow(|founder| founder.step()).map_err(ServeError::Refused)?;
    let mut tasks = JoinSet::new();
    for (node, address) in &others.addresses {
        tasks.spawn(forming.clone().ask(*node, address.clone()));
    }
    tasks.spawn(forming.clone().say(others));
    let greeter: Arc<dyn Greeter> = forming.clone();
    let decided = tokio::select! {
        decided = outcome.wait_for(Option::is_some) => decided.ok().and_then(|decided| decided.clone()),
        () = listen(listener, greeter, &[Lane::Greeting], || (), |(), _, _| {}) => None,
    };
    if let Some(error) = forming.failed.lock().take() {
        return Err(error);
    }
    match decided {
        Some(FormationOutcome::Found(founding)) => Ok(founding),
        Some(FormationOutcome::Stop(refusal)) => Err(ServeError::Refused(refusal)),
        None => Err(ServeError::Panicked { thread: "the caller's" }),
    }
}

impl Forming {
    /// Executes the steps of the `Bootstrap` until it waits for a message or is done.
    fn follow(&self, ask: impl FnOnce(&mut Bootstrap) -> BootstrapStep) -> Result<(), Refusal> {
        let mut founder = self.founder.lock();
        let mut step = ask(&mut founder);
        loop {
            match step {
                BootstrapStep::Wait { .. } => return Ok(()),
                BootstrapStep::Refuse(refusal) => return Err(refusal),
                BootstrapStep::Promise(own) => {
                    if let Err(error) = (self.keep)(&own) {
                        // A promise must be durable before it is sent, so nothing more is sent.
                        *self.failed.lock() = Some(error);
                        let text = "this node's disk failed".to_owned();
                        let refusal = Refusal { text, ..Refusal::default() };
                        self.outcome.send_replace(Some(FormationOutcome::Stop(refusal.clone())));
                        return Err(refusal);
                    }
                    founder.promised(own);
                    self.moved.notify_waiters();
                    step = founder.step();
                }
                BootstrapStep::Found(founding) => {
                    self.outcome.send_replace(Some(FormationOutcome::Found(founding)));
                    return Ok(());
                }
                BootstrapStep::Stop(refusal) if founder.refused_for_good() => return Err(refusal),
                BootstrapStep::Stop(refusal) => {
                    self.outcome.send_replace(Some(FormationOutcome::Stop(refusal.clone())));
                    return Err(refusal);
                }
            }
        }
    }

    /// Repeats handshakes with one node, so that each learns the other's state.
    async fn ask(self: Arc<Self>, node: u64, address: String) {
        let mut pause = PAUSE_MIN;
        loop {
            let moved = self.moved.notified();
            let heard = match handshake::open(&address, node, Lane::Greeting, &*self).await {
                Ok(_) => "it answers".to_owned(),
                Err(NoLink::Refused(refusal)) if self.is_final(&refusal) => {
                    if !self.founder.lock().refused_for_good() {
                        self.outcome.send_replace(Some(FormationOutcome::Stop(refusal)));
                        return;
                    }
                    refusal.text
                }
                Err(NoLink::Unreachable(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                    "nobody listens there".to_owned()
                }
                Err(NoLink::Unreachable(error)) if error.kind() == ErrorKind::TimedOut => {
                    "no answer".to_owned()
                }
                Err(why) => why.to_string(),
            };
            self.heard.lock().insert(address.clone(), heard);
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                () = moved => pause = PAUSE_MIN,
            }
        }
    }

    /// Logs what this node waits for: soon after its start, at each change, and from time to time.
    async fn say(self: Arc<Self>, others: Others) {
        let (mut said, mut last) = (String::new(), Instant::now());
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let text = self.waits_for(&others);
            if text != said || last.elapsed() >= SAY_AGAIN {
                tracing::info!("{text}");
                notify(sd_notify::NotifyState::Status(&text));
                self.progress.send_replace(text.clone());
                (said, last) = (text, Instant::now());
            }
        }
    }

    /// Whether the refusal is for good, and for this node. To a node that may rejoin, a cluster that was
    /// founded without it is one to be added to.
    fn is_final(&self, refusal: &Refusal) -> bool {
        let founder = self.founder.lock();
        let me = founder.own().member.as_ref().map_or(0, |member| member.node);
        let is_founded_without = refusal.code() == RefusalCode::Stranger && refusal.node == me;
        is_final(refusal, me) || (founder.rejoins() && is_founded_without)
    }

    fn waits_for(&self, others: &Others) -> String {
        let (step, own, is_lost, known_as) = {
            let founder = self.founder.lock();
            (founder.step(), founder.own().clone(), founder.is_lost(), founder.known_as())
        };
        let Member { node, peer_address, .. } = own.member.unwrap_or_default();
        if is_lost {
            let remedy = match known_as {
                Some(known) => format!("`lockkeeper cluster replace {known}`"),
                None => "`lockkeeper cluster add`, with its address for other nodes; if `cluster status` lists a lost node at \
                         that address, `cluster replace`"
                    .to_owned(),
            };
            return format!(
                "the cluster has other data of node {node}, or does not know it: this node waits for a new id ({remedy})"
            );
        }
        let heard = self.heard.lock();
        let state = |address: &str| heard.get(address).map_or("not asked yet", String::as_str);
        match (step, others.addresses.first()) {
            (BootstrapStep::Wait { missing }, _) if !missing.is_empty() => {
                let of = own.nodes.iter().filter(|listed| missing.contains(&listed.node));
                let nodes =
                    of.map(|it| format!("{} at {} ({})", it.node, it.peer_address, state(&it.peer_address)));
                format!(
                    "waiting for the other nodes of the new cluster: {}",
                    nodes.collect::<Vec<_>>().join(", ")
                )
            }
            (_, Some((_, member))) if own.nodes.is_empty() => format!(
                "waiting to be added to the cluster of {member} ({}): `lockkeeper cluster add {node}={peer_address}`",
                state(member)
            ),
            _ => "all nodes of the new cluster have answered".to_owned(),
        }
    }
}

impl Greeter for Forming {
    fn hello(&self, to: u64, lane: Lane) -> Hello {
        self.founder.lock().hello(to, lane)
    }

    fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        self.follow(|founder| founder.heard(hello))
    }

    fn tls(&self) -> Option<&NodeTls> {
        self.tls.as_deref()
    }

    /// On incoming connections a stop becomes a refusal: only a node at an address that the operator gave can
    /// make this node stop. If the sender is such a node, this node connects to it soon.
    fn admit_guest(&self, hello: &Hello) -> Result<(), Refusal> {
        self.follow(|founder| match founder.heard(hello) {
            BootstrapStep::Stop(refusal) => BootstrapStep::Refuse(refusal),
            step => step,
        })
    }
}
