//! The lifecycle of a node: start, serve, stop.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use lockkeeper_core::limits;
use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::storage::{Removal, Snapshots};
use lockkeeper_replica::{
    Config, ELECTION_TICKS, ENDS_PER_PART, Members, Replica, TAIL_BYTES, TURN_VISITS_MAX,
};
use lockkeeper_wire::peer::SnapshotOffer;
use lockkeeper_wire::store::{Candidate, Founding};
use sd_notify::NotifyState;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::access::{Access, AccessFiles};
use crate::audit::Audit;
use crate::clock;
use crate::data::{self, Addresses, Data, DirectoryContents, Unusable};
use crate::disk::DataDirectory;
use crate::disk_space::DiskSpace;
use crate::disk_worker::Chores;
use crate::error::ServeError;
use crate::file_limit::raise_file_limit;
use crate::files::{FilesError, Reload, keep_current};
use crate::front::{About, Front, HttpPort, answer_while_forming, pump};
use crate::hex::hex;
use crate::inbox::{Inbox, Outbox, ReplicaStatus};
use crate::leadership::Leadership;
use crate::node::NodeThread;
use crate::observe::{self, notify};
use crate::options::{HttpListen, ServerOptions};
use crate::peers::{Bulk, Directory, Handover, Others, PATIENCE, Peers, form, talk};
use crate::reports::Reports;
use crate::scheduled_backups::{BackupSchedule, keep_schedule};
use crate::tls::NodeTls;
use crate::traces::{AcquireTracer, TraceArrivals, TraceSink};

/// The backlog of the listening socket, in connections.
const BACKLOG: u32 = 4096;
/// At shutdown, clients have this long to read their last messages and to close their connections.
const FLUSH: Duration = Duration::from_secs(5);
/// At shutdown, a leader waits this long for another node to take over the leadership. The replica gives up
/// earlier, after some election time-outs, even at the greatest election time-out that may be set.
const HANDOVER: Duration = Duration::from_secs(35);

/// A node that serves.
#[derive(Clone, Debug)]
pub struct Running {
    address: SocketAddr,
    http_address: Option<SocketAddr>,
    stop: CancellationToken,
}

impl Running {
    /// The address on which the node listens for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address on which the node serves HTTP/JSON, if it does.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Stops the node, as SIGTERM does: streams are notified, buffers are sent, then [`run`] returns.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

/// Called once the node serves.
type OnReady<'a> = Box<dyn FnOnce(Running) + 'a>;

/// Serves until SIGTERM, SIGINT or [`Running::stop`]; blocks this thread, which must not be one of an async
/// runtime. A second signal ends it without waiting for clients.
///
/// `ready` is called once the node serves: it leads, or follows a leader.
///
/// # Errors
/// [`ServeError`]: the node can't start, or had to stop. A failed write of the log, except on a full disk,
/// aborts the process instead: the state of the disk is unknown then, and no further answer may be sent
/// (P10).
pub fn run(options: ServerOptions, ready: impl FnOnce(Running)) -> Result<(), ServeError> {
    run_node(options, Box::new(ready))
}

/// [`run`], but not generic: generic code is compiled in the caller's package, with that package's settings,
/// and so would be everything that is generic below it, such as the handlers of HTTP.
fn run_node(mut options: ServerOptions, ready: OnReady<'_>) -> Result<(), ServeError> {
    let tls = options.tls.as_ref().map(NodeTls::load).transpose()?;
    if let Some(tls) = &tls {
        options.take_certificate(&tls.name())?;
    }
    let address = options.address()?;
    let peer_address = options.peer_address()?;
    if peer_address.as_ref().is_some_and(|(peers, _)| *peers == address && address.port() != 0) {
        let why = format!("{address} is to serve both clients and other nodes: give each its own port");
        return Err(ServeError::Nodes { why });
    }
    let access = Access::load(&options.access)?;
    if tls.is_none() && options.access.tokens.is_some() && options.access.permissions.is_none() {
        tracing::warn!(
            "who shows no token may do everything: clients need one only with TLS, or with a file of permissions \
             (`--permissions FILE`)"
        );
    }
    let audit = Audit::open(options.audit.as_deref())?;
    let connections_max = raise_file_limit(options.connections_max, 1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::system("start the runtime"))?;
    let entered = runtime.enter();
    let mut signals = Signals::new()?;
    let mut files: Vec<Arc<dyn Reload>> = vec![];
    files.extend(tls.clone().map(|tls| tls as Arc<dyn Reload>));
    if options.access != AccessFiles::default() {
        files.push(access.clone());
    }
    let files_error = FilesError::default();
    tokio::spawn(keep_current(files, hangups()?, audit.clone(), files_error.clone()));
    // Listens before anything is written: a node whose port is in use must not bootstrap a cluster.
    let (listener, address) = listen(address)?;
    let http = listen_for_http(&options)?.map(|(listener, address)| {
        (HttpPort { listener, metrics: options.metrics.clone(), hazards: options.hazards.clone() }, address)
    });
    let peers = peer_address.map(|(address, typed)| Peering::new(address, typed)).transpose()?;
    data::refuse_foreign(&options.data)?;
    let disk = DataDirectory::own(&options.data).map_err(ServeError::Directory)?;
    let advertised = advertised(&options, address);
    let addresses = Addresses { client: &advertised, peer: peers.as_ref().map_or("", |it| &it.advertised) };
    let (data, peers) = match data::open(&disk, &options, addresses)? {
        DirectoryContents::Data(data) => {
            if let Some(tls) = &tls {
                options.certified(&tls.name(), data.founding.node)?;
            }
            let peers = peers.map_or_else(|| Peering::of_data(&options, &data), |peers| Ok(Some(peers)))?;
            (data, peers)
        }
        DirectoryContents::Candidate(candidate) => {
            let peers = peers.ok_or_else(|| ServeError::NotAlone {
                directory: options.data.clone(),
                node: options.node.unwrap_or_default(),
            })?;
            // Otherwise a service manager that starts the nodes one after the other would wait for the first
            // node, which waits for the second.
            notify(NotifyState::Ready);
            let (keeper, told) = (disk.clone(), options.clone());
            let keep = move |candidate: &Candidate| data::stand(&keeper, &told, candidate);
            let (progress, waits_for) = watch::channel("waiting for its cluster".to_owned());
            let others = Others::of(&options, &candidate);
            let forming = form(candidate, others, &peers.listener, progress, tls.clone(), keep);
            let formed = runtime.block_on(async {
                let (health, health_service) = tonic_health::server::health_reporter();
                set_health(&health, false).await;
                tokio::select! {
                    formed = forming => formed.map(Some),
                    () = signals.wait() => Ok(None),
                    never = answer_while_forming(&listener, health_service, connections_max, tls.clone(), waits_for) => match never {},
                }
            })?;
            let Some(founding) = formed else { return Ok(()) };
            (data::found(&disk, &options, &founding)?, Some(peers))
        }
    };
    observe::describe();
    let (id, cluster) = (data.founding.node, hex(&data.founding.cluster));
    tracing::info!(
        node = id,
        "lockkeeper {} starts as node {id} of the cluster {cluster}, with the data in `{}`",
        env!("CARGO_PKG_VERSION"),
        options.data.display()
    );
    let node = Started::start(disk.clone(), data, &options, &advertised, peers, tls.clone())?;
    let (limits, backups) = (options.connection_limits(connections_max), options.backups);
    let (inbox, about, traced) = (node.inbox.clone(), node.about.clone(), node.traced.clone());
    let about = About { files_error, ..about };
    let front = Front::new(inbox, about, tls, access, audit, traced, limits);
    let result = runtime.block_on(serve(node, front, backups, (listener, address), http, signals, ready));
    drop(entered);
    // Connections that did not end in time are dropped here. A backup on a disk that hangs is not waited for.
    runtime.shutdown_background();
    let verdict = match &result {
        Err(why @ ServeError::WrongTable { .. }) => Some((Unusable::WrongTable, why)),
        Err(why @ ServeError::EntriesLost { .. }) => Some((Unusable::EntriesLost, why)),
        _ => None,
    };
    if let Some((verdict, why)) = verdict
        && let Err(error) = data::condemn(&disk, verdict, &why.to_string())
    {
        tracing::error!(%error, "the next start can't be kept from using these data ({error}): see to that yourself");
    }
    result
}

fn advertised(options: &ServerOptions, address: SocketAddr) -> String {
    match &options.advertise {
        Some(advertise) => advertise.clone(),
        None if options.listen.ends_with(":0") => address.to_string(),
        None => options.listen.clone(),
    }
}

/// Notified at each SIGHUP.
fn hangups() -> Result<Arc<Notify>, ServeError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(ServeError::system("handle SIGHUP"))?;
    let notify = Arc::new(Notify::new());
    let notified = notify.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            notified.notify_one();
        }
    });
    Ok(notify)
}

/// The signals that stop the node.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(ServeError::system("handle SIGTERM"))?,
            interrupt: signal(SignalKind::interrupt()).map_err(ServeError::system("handle SIGINT"))?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Connections of a node that was just stopped may linger; they must not prevent a restart.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::AddressInUse { address },
        _ => ServeError::Listen { address, source },
    })
}

/// The listener for HTTP/JSON, if the node is to serve it.
fn listen_for_http(options: &ServerOptions) -> Result<Option<(TcpListener, SocketAddr)>, ServeError> {
    match &options.http {
        HttpListen::Off => Ok(None),
        HttpListen::At(typed) => listen(options.allowed(typed)?).map(Some),
        HttpListen::IfFree(typed) => match options.allowed(typed).and_then(listen) {
            Err(error @ (ServeError::AddressInUse { .. } | ServeError::Listen { .. })) => {
                tracing::warn!(%error, "HTTP is not served, since no address is given for it: {error}");
                Ok(None)
            }
            listening => listening.map(Some),
        },
    }
}

/// The listener for other nodes.
struct Peering {
    listener: TcpListener,
    /// The address that other nodes are given if neither `--cluster` nor the data have one; empty if
    /// `listener` is bound to a wildcard address.
    advertised: String,
}

impl Peering {
    fn new(address: SocketAddr, typed: String) -> Result<Self, ServeError> {
        let (listener, address) = listen(address)?;
        let advertised = match address.ip().is_unspecified() {
            true => String::new(),
            false if typed.ends_with(":0") => address.to_string(),
            false => typed,
        };
        Ok(Self { listener, advertised })
    }

    /// Listens at this node's peer address in the data. `None` for a node that is alone and has no peer
    /// address.
    fn of_data<D: Disk>(options: &ServerOptions, data: &Data<D>) -> Result<Option<Self>, ServeError> {
        let (mut nodes, node) = (data.nodes(), data.founding.node);
        let advertised = nodes.remove(&node).map(|member| member.peer_address).unwrap_or_default();
        match advertised.is_empty() {
            false => Self::new(options.allowed(&advertised)?, advertised).map(Some),
            true if nodes.is_empty() => Ok(None),
            // The node was bootstrapped alone and other nodes were added: without a peer address it would
            // wait for them forever, without an error.
            true => Err(ServeError::Unreachable {
                directory: options.data.clone(),
                node,
                others: nodes.into_keys().collect(),
            }),
        }
    }
}

/// The arguments of the tasks for peer connections.
struct Talk {
    listener: TcpListener,
    directory: Arc<Directory>,
    handover: Arc<Handover>,
    bulk: Arc<Bulk<DataDirectory>>,
    to_send: UnboundedReceiver<Box<SnapshotOffer>>,
}

/// The running threads of a node, and handles to them.
struct Started {
    inbox: Arc<Inbox>,
    outbox: Arc<Outbox>,
    about: About,
    /// `None`: acquires are not traced.
    traced: Option<Arc<TraceArrivals>>,
    snapshots: Snapshots<DataDirectory>,
    /// `None` for a node without peers.
    talk: Option<Talk>,
    replica: JoinHandle<Result<(), ServeError>>,
    chores: JoinHandle<()>,
}

impl Started {
    fn start(
        disk: DataDirectory,
        data: Data<DataDirectory>,
        options: &ServerOptions,
        advertised: &str,
        peering: Option<Peering>,
        tls: Option<Arc<NodeTls>>,
    ) -> Result<Self, ServeError> {
        let directory = options.data.display().to_string();
        let space = Arc::new(DiskSpace::new(directory.clone(), options.segment_bytes));
        space.measure(&options.data);
        let about = about(space.clone(), &data.founding, &data.recovered.members, advertised);
        let (inbox, outbox) = (Arc::new(Inbox::default()), Arc::new(Outbox::default()));
        let (members, rules) = (data.recovered.members.clone(), data.recovered.table.rules());
        let talk = peering.map(|peering| {
            let own = members.nodes.get(&data.founding.node).map(|member| member.peer_address.clone());
            let listed = options.cluster.get(&data.founding.node).cloned();
            // Precedence: `--cluster`, then the address in the data, then the listening address.
            let peer = listed.or(own.filter(|own| !own.is_empty())).unwrap_or(peering.advertised);
            let addresses = Addresses { client: advertised, peer: &peer };
            let timeout = options.election_timeout;
            let directory = Directory::new(data.founding.clone(), addresses, members, rules, timeout, tls);
            (peering.listener, directory, Arc::new(Handover::new(timeout)))
        });
        let peers = match &talk {
            None => Peers::none(inbox.clone()),
            Some((_, directory, handover)) => Peers::new(directory.clone(), inbox.clone(), handover.clone())
                .map_err(ServeError::system("wait for peers"))?,
        };
        let replica = Replica::start(config(&data.founding, options), data.recovered, clock::now())?;
        let (chores, todo) = mpsc::channel();
        let (finished, done) = mpsc::channel();
        let owned = disk.clone();
        let snapshots = data.snapshots.clone();
        let worker = Chores {
            is_in_place: Box::new(move || owned.is_in_place()),
            disk,
            snapshots: data.snapshots,
            spares: data.log.spare_maker(),
            todo,
            done: finished.clone(),
            inbox: inbox.clone(),
            unremoved: Removal::default(),
            space,
            directory: directory.clone(),
        };
        let (offers, to_send) = tokio::sync::mpsc::unbounded_channel();
        let talk = talk.map(|(listener, directory, handover)| Talk {
            listener,
            bulk: Arc::new(Bulk {
                directory: directory.clone(),
                snapshots: snapshots.clone(),
                inbox: inbox.clone(),
                done: finished.clone(),
                is_receiving: AtomicBool::new(false),
                patience: PATIENCE,
            }),
            directory,
            handover,
            to_send,
        });
        let traced = options.traces.as_ref().map(|_| Arc::<TraceArrivals>::default());
        let tracer = |(sink, arrivals): (&TraceSink, _)| {
            AcquireTracer::new(data.founding.node, sink.clone(), arrivals)
        };
        let node = NodeThread {
            tracer: options.traces.as_ref().zip(traced.clone()).map(tracer),
            node: data.founding.node,
            leadership: Leadership::new(data.founding.node, options.election_timeout),
            reports: Reports::default(),
            offers,
            incoming: BTreeMap::new(),
            replica,
            log: data.log,
            inbox: inbox.clone(),
            outbox: outbox.clone(),
            last_sync: Duration::ZERO,
            peers,
            chores,
            done,
            directory,
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let chores = thread("lockkeeper-disk")
            .spawn(move || worker.run())
            .map_err(ServeError::system("start a thread"))?;
        let replica = thread("lockkeeper-replica")
            .spawn(move || node.run())
            .map_err(ServeError::system("start a thread"))?;
        Ok(Self { inbox, outbox, about, traced, snapshots, talk, replica, chores })
    }

    /// Stops and joins the threads. Returns the error with which the replica's thread has ended, if any.
    fn end(self) -> Result<(), ServeError> {
        self.inbox.close();
        let result =
            self.replica.join().map_err(|_| ServeError::Panicked { thread: "lockkeeper-replica" })?;
        self.chores.join().map_err(|_| ServeError::Panicked { thread: "lockkeeper-disk" })?;
        result
    }
}

fn about(disk: Arc<DiskSpace>, founding: &Founding, members: &Members, advertised: &str) -> About {
    // Uses the present members: nodes that were added after the bootstrap may be in a snapshot only.
    let members = members.nodes.values().map(|member| (member.node, member.client_address.clone()));
    let mut clients: BTreeMap<u64, String> = members.collect();
    // This node's address may have changed since the bootstrap.
    clients.insert(founding.node, advertised.to_owned());
    let [cluster, incarnation] = [&founding.cluster, &founding.incarnation].map(|id| hex(id));
    About { node: founding.node, disk, cluster, incarnation, clients, files_error: FilesError::default() }
}

fn config(founding: &Founding, options: &ServerOptions) -> Config {
    let seed = founding.incarnation.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte));
    Config {
        node: founding.node,
        tail_bytes: TAIL_BYTES,
        seed,
        tokens_above: founding.tokens_above,
        rules: limits::RULES_VERSION,
        tick: options.election_timeout / ELECTION_TICKS as u32,
        snapshot_after: options.snapshot_after,
        turn_visits_max: TURN_VISITS_MAX,
        ends_per_part: ENDS_PER_PART,
        mutant: None,
    }
}

async fn serve(
    mut node: Started,
    front: Arc<Front>,
    backups: Option<BackupSchedule>,
    (listener, address): (TcpListener, SocketAddr),
    http: Option<(HttpPort, SocketAddr)>,
    mut signals: Signals,
    ready: OnReady<'_>,
) -> Result<(), ServeError> {
    front.has_data(node.snapshots.clone());
    let (health, health_service) = tonic_health::server::health_reporter();
    let (http, http_address) = http.unzip();
    let acceptor = front
        .acceptor(listener, http, health_service)
        .map_err(|error| ServeError::system("describe the interface")(io::Error::other(error)))?;
    let mut state = front.state();
    tokio::spawn(pump(front.clone(), acceptor.clone(), node.outbox.clone()));
    acceptor.run();
    let of_access = front.clone();
    tokio::spawn(async move { of_access.follow_access_files().await });
    if let Some(schedule) = backups {
        tokio::spawn(keep_schedule(schedule, front.clone()));
    }
    let (refused, mut refusal) = tokio::sync::mpsc::unbounded_channel();
    if let Some(Talk { listener, directory, handover, bulk, to_send }) = node.talk.take() {
        front.has_peers(directory.clone());
        talk(listener, directory, handover, node.inbox.clone(), bulk, to_send, refused.clone());
    }
    notify(NotifyState::Ready);
    let running = Running { address, http_address, stop: CancellationToken::new() };
    let mut ready = Some(ready);
    let mut result = Ok(());
    loop {
        let now = *state.borrow_and_update();
        match now {
            ReplicaStatus::Ended => break,
            ReplicaStatus::Waiting | ReplicaStatus::Left => {
                set_health(&health, false).await;
                notify(NotifyState::Status("no leader"));
            }
            ReplicaStatus::Ready | ReplicaStatus::Following { .. } => {
                set_health(&health, true).await;
                let status = match now {
                    ReplicaStatus::Following { leader } => format!("follows node {leader}"),
                    _ => "leads".to_owned(),
                };
                notify(NotifyState::Status(&status));
                if let Some(ready) = ready.take() {
                    tracing::info!(%address, "serving clients at {address}");
                    if let Some(address) = http_address {
                        tracing::info!(%address, "serving HTTP at {address}");
                    }
                    ready(running.clone());
                }
            }
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { break },
            () = signals.wait() => break,
            () = running.stop.cancelled() => break,
            Some(why) = refusal.recv() => {
                result = Err(ServeError::Refused(why));
                break;
            }
        }
    }
    notify(NotifyState::Stopping);
    if *state.borrow() != ReplicaStatus::Ended {
        tracing::info!("stopping: clients are told to go elsewhere");
        set_health(&health, false).await;
        tokio::select! {
            () = flush(&front, &mut state) => {}
            () = signals.wait() => {}
        }
    }
    node.end().and(result)
}

/// Notifies all streams, and waits until every connection or the replica has ended, or the time is over.
async fn flush(front: &Front, state: &mut watch::Receiver<ReplicaStatus>) {
    front.shut_down();
    // The leadership is transferred first, so that streams end with the id of the new leader. Clients whose
    // connections ended earlier would reach nodes that still name this node as the leader.
    let has_left = state.wait_for(|state| matches!(state, ReplicaStatus::Left | ReplicaStatus::Ended));
    if tokio::time::timeout(HANDOVER, has_left).await.is_err() {
        tracing::warn!("the leadership was not handed over in time");
    }
    front.end_connections();
    let all_gone = async {
        while front.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = all_gone => {}
        _ = state.wait_for(|state| *state == ReplicaStatus::Ended) => {}
        () = tokio::time::sleep(FLUSH) => {
            let left = front.connections();
            tracing::warn!(connections = left, "{left} connections did not end in time and are cut");
        }
    }
}

/// Sets whether this node knows a leader. The health of the whole process, of the service named by an empty
/// string, is always good: a restart would not give the node a leader.
async fn set_health(health: &tonic_health::server::HealthReporter, has_leader: bool) {
    use lockkeeper_wire::v1::lockkeeper_server::SERVICE_NAME;
    use tonic_health::ServingStatus::{NotServing, Serving};
    health.set_service_status(SERVICE_NAME, if has_leader { Serving } else { NotServing }).await;
    health.set_service_status("", Serving).await;
}
