//! A proxy between a client and a lock service, which injects network faults and refusals of the service. A
//! *piece* is what one read from a socket returned; before a service whose protocol is given, pieces are
//! whole requests.

mod protocol;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::protocol::{Protocol, ServiceRefusal};
use self::protocol::{RequestFilter, Treated};

/// Faults of all proxies of a service. A client is named by a label; all its proxies share the label.
#[derive(Clone, Default)]
pub struct Faults {
    protocol: Option<Protocol>,
    state: Arc<Mutex<FaultState>>,
    /// Notified by [`Faults::let_go`].
    let_go: Arc<Condvar>,
}

#[derive(Default)]
struct FaultState {
    cut_off: BTreeSet<String>,
    /// Clients without any traffic in either direction, whose connections stay open.
    silent: BTreeSet<String>,
    lose_answers: u32,
    lose_calls: u32,
    hold_back: HoldBack,
    /// Connections without traffic for this long are closed.
    idle_limit: Option<Duration>,
    idle_cuts: usize,
    /// The error, and a text that a refused request contains.
    refusal: Option<(ServiceRefusal, String)>,
    refused: usize,
    /// For each client, by its label: addresses of nodes that are replaced in the traffic to it, each with
    /// its replacement of the same length.
    instead: BTreeMap<String, Vec<(String, String)>>,
    /// Servers whose new connections go to other servers.
    moved: BTreeMap<SocketAddr, SocketAddr>,
    /// All connections so far, in the order of their opening.
    connections: Vec<ProxiedConnection>,
}

/// Pieces of traffic that are delayed until released, with everything behind them on their connections.
#[derive(Default)]
struct HoldBack {
    /// A text, and how many more pieces that contain it are to be held back.
    next: Option<(String, usize)>,
    held: usize,
}

/// A connection of a client, open or closed.
struct ProxiedConnection {
    label: String,
    /// Its sockets, to the client and to the service; none once it is closed.
    sockets: Vec<TcpStream>,
    last: Instant,
    traffic: Traffic,
}

impl ProxiedConnection {
    fn close(&mut self) {
        self.sockets.drain(..).for_each(|socket| close(&socket));
    }
}

/// What a client has sent on one connection, and received.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// The number of pieces that the client has sent.
    pub calls: u64,
    /// Bytes in both directions.
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Faults {
    /// Faults of a service with this protocol, whose requests can be refused.
    #[must_use]
    pub fn of(protocol: Protocol) -> Self {
        Self { protocol: Some(protocol), ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds back the next `count` pieces to the service that contain `text`, and the traffic behind them on
    /// their connections, until [`Faults::let_go`].
    pub fn hold_back(&self, text: &str, count: usize) {
        self.state().hold_back = HoldBack { next: Some((text.to_owned(), count)), held: 0 };
    }

    /// The number of pieces held back.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.state().hold_back.held
    }

    /// Sends the pieces held back.
    pub fn let_go(&self) {
        self.state().hold_back = HoldBack::default();
        self.let_go.notify_all();
    }

    /// If this piece is to be held back, blocks until [`Faults::let_go`].
    fn pass_or_wait(&self, piece: &[u8]) {
        let mut state = self.state();
        let Some((text, left @ 1..)) = &mut state.hold_back.next else { return };
        if !contains(piece, text.as_bytes()) {
            return;
        }
        *left -= 1;
        state.hold_back.held += 1;
        let wait = self.let_go.wait_while(state, |state| state.hold_back.held > 0);
        let _unlocked = wait.unwrap_or_else(PoisonError::into_inner);
    }

    /// Blocks all traffic of this client and closes its connections.
    pub fn cut_off(&self, label: &str) {
        self.state().cut_off.insert(label.to_owned());
        self.close_connections(label);
    }

    /// Closes the connections of this client; it can open others.
    pub fn close_connections(&self, label: &str) {
        let mut state = self.state();
        state.connections.iter_mut().filter(|open| open.label == label).for_each(ProxiedConnection::close);
    }

    /// Like a pulled cable, or an address that swallows packets: blocks all traffic of this client, and
    /// neither side sees its connections close. New ones are accepted and not forwarded.
    pub fn silence(&self, label: &str) {
        self.state().silent.insert(label.to_owned());
    }

    /// Ends [`Faults::silence`] for new connections; those that were silent are closed.
    pub fn end_silence(&self, label: &str) {
        self.close_connections(label);
        self.state().silent.remove(label);
    }

    /// From now on, new connections through all proxies of `service` go to `to`, as an address that moves at
    /// a fail-over.
    pub fn redirect(&self, service: SocketAddr, to: SocketAddr) {
        self.state().moved.insert(service, to);
    }

    fn target(&self, service: SocketAddr) -> SocketAddr {
        self.state().moved.get(&service).copied().unwrap_or(service)
    }

    fn is_silent(&self, label: &str) -> bool {
        self.state().silent.contains(label)
    }

    /// Loses the next `count` pieces from the service, each with its connection.
    pub fn lose_answers(&self, count: u32) {
        self.state().lose_answers = count;
    }

    /// Loses the next `count` pieces to the service, each with its connection.
    pub fn lose_calls(&self, count: u32) {
        self.state().lose_calls = count;
    }

    fn loses(&self, label: &str, direction: Direction) -> bool {
        let mut state = self.state();
        if state.cut_off.contains(label) {
            return true;
        }
        let count = match direction {
            Direction::Up => &mut state.lose_calls,
            Direction::Down => &mut state.lose_answers,
        };
        let loses = *count > 0;
        *count = count.saturating_sub(1);
        loses
    }

    /// Closes connections without traffic in either direction for `limit`, as load balancers do, until
    /// [`Faults::spare_idle`].
    pub fn cut_idle(&self, limit: Duration) {
        self.state().idle_limit = Some(limit);
        let state = Arc::downgrade(&self.state);
        std::thread::spawn(move || {
            while let Some(state) = state.upgrade() {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.idle_limit != Some(limit) {
                    break;
                }
                let is_idle =
                    |open: &&mut ProxiedConnection| !open.sockets.is_empty() && open.last.elapsed() >= limit;
                let mut cuts = 0;
                state.connections.iter_mut().filter(is_idle).for_each(|idle| {
                    idle.close();
                    cuts += 1;
                });
                state.idle_cuts += cuts;
                drop(state);
                std::thread::sleep(limit / 8);
            }
        });
    }

    /// Ends [`Faults::cut_idle`].
    pub fn spare_idle(&self) {
        self.state().idle_limit = None;
    }

    /// The number of connections that [`Faults::cut_idle`] has closed.
    #[must_use]
    pub fn idle_cuts(&self) -> usize {
        self.state().idle_cuts
    }

    /// The service refuses requests of all clients with this error until [`Faults::stop_refusing`]. Which
    /// requests: [`Protocol`].
    pub fn refuse(&self, refusal: ServiceRefusal) {
        self.refuse_only(refusal, "");
    }

    /// As [`Faults::refuse`], of requests that contain this text.
    pub fn refuse_only(&self, refusal: ServiceRefusal, text: &str) {
        let mut state = self.state();
        (state.refusal, state.refused) = (Some((refusal, text.to_owned())), 0);
    }

    /// Ends [`Faults::refuse`].
    pub fn stop_refusing(&self) {
        self.state().refusal = None;
    }

    /// The number of requests refused with the current or last error.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.state().refused
    }

    /// The traffic of this client's connections so far, in the order of their opening.
    #[must_use]
    pub fn traffic(&self, label: &str) -> Vec<Traffic> {
        let state = self.state();
        state.connections.iter().filter(|open| open.label == label).map(|open| open.traffic).collect()
    }

    /// Starts a proxy to each node of a service for one client; returns their addresses. In the nodes'
    /// messages, addresses of nodes are replaced by those of the proxies, so that the client does not bypass
    /// them.
    ///
    /// # Panics
    /// No port is free, or a proxy's address is not as long as its node's.
    #[must_use]
    pub fn proxies(&self, label: &str, nodes: &[SocketAddr]) -> Vec<SocketAddr> {
        let listeners: Vec<_> = nodes.iter().map(|_| listen()).collect();
        let proxies: Vec<_> = listeners.iter().map(|(_, address)| *address).collect();
        let texts = nodes.iter().zip(&proxies).map(|(node, proxy)| (node.to_string(), proxy.to_string()));
        let texts: Vec<_> = texts.collect();
        assert!(
            texts.iter().all(|(node, proxy)| node.len() == proxy.len()),
            "lengths are on the wire: {texts:?}"
        );
        self.state().instead.insert(label.to_owned(), texts);
        for ((listener, _), node) in listeners.into_iter().zip(nodes) {
            self.serve(label, listener, *node);
        }
        proxies
    }

    /// Starts a proxy to the service for one client; returns its address.
    ///
    /// # Panics
    /// No port is free.
    #[must_use]
    pub fn proxy(&self, label: &str, service: SocketAddr) -> SocketAddr {
        let (listener, address) = listen();
        self.serve(label, listener, service);
        address
    }

    fn serve(&self, label: &str, listener: TcpListener, service: SocketAddr) {
        let (faults, label) = (self.clone(), label.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if faults.is_silent(&label) {
                    // A new connection is accepted and kept open, but not forwarded: nothing of this client
                    // may reach the service.
                    faults.opened(&label, vec![client]);
                } else if let Ok(server) = TcpStream::connect(faults.target(service)) {
                    // Fails if the client has closed its connection already.
                    let _ = faults.connect(&label, client, server);
                }
            }
        });
    }

    /// Records a connection; returns its index.
    fn opened(&self, label: &str, sockets: Vec<TcpStream>) -> usize {
        let mut state = self.state();
        let traffic = Traffic::default();
        state.connections.push(ProxiedConnection {
            label: label.to_owned(),
            sockets,
            last: Instant::now(),
            traffic,
        });
        state.connections.len() - 1
    }

    fn connect(&self, label: &str, client: TcpStream, server: TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let index = self.opened(label, vec![client.try_clone()?, server.try_clone()?]);
        let (client_too, server_too) = (client.try_clone()?, server.try_clone()?);
        self.pass(label, index, Direction::Up, client, server);
        self.pass(label, index, Direction::Down, server_too, client_too);
        Ok(())
    }

    fn pass(&self, label: &str, index: usize, direction: Direction, mut from: TcpStream, mut to: TcpStream) {
        let (faults, label) = (self.clone(), label.to_owned());
        let instead = match direction {
            Direction::Up => Vec::new(),
            Direction::Down => self.state().instead.get(&label).cloned().unwrap_or_default(),
        };
        let mut requests = self.protocol.filter(|_| direction == Direction::Up).map(RequestFilter::of);
        std::thread::spawn(move || {
            let mut buffer = [0; 64 << 10];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                if faults.is_silent(&label) {
                    continue;
                }
                let mut piece = buffer[..read].to_vec();
                faults.count(index, direction, read);
                for (from, to) in &instead {
                    replace(&mut piece, from.as_bytes(), to.as_bytes());
                }
                if let Some(requests) = &mut requests {
                    let treated = faults.refuse_some(requests, &piece);
                    // If the client has closed its connection, the next read ends the loop.
                    let _ = (&from).write_all(&treated.answers);
                    piece = treated.forward;
                    if piece.is_empty() {
                        continue;
                    }
                }
                if direction == Direction::Up {
                    faults.pass_or_wait(&piece);
                }
                if faults.loses(&label, direction) || to.write_all(&piece).is_err() {
                    break;
                }
            }
            if !faults.is_silent(&label) {
                faults.state().connections[index].close();
                close(&from);
                close(&to);
            }
        });
    }

    fn refuse_some(&self, requests: &mut RequestFilter, piece: &[u8]) -> Treated {
        let mut state = self.state();
        let refusal = |request: &[u8]| {
            let (refusal, text) = state.refusal.as_ref()?;
            contains(request, text.as_bytes()).then_some(*refusal)
        };
        let treated = requests.treat(piece, refusal);
        state.refused += treated.refused;
        treated
    }

    fn count(&self, index: usize, direction: Direction, bytes: usize) {
        let connection = &mut self.state().connections[index];
        connection.last = Instant::now();
        connection.traffic.bytes += bytes as u64;
        connection.traffic.calls += u64::from(direction == Direction::Up);
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("127.0.0.1 has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    (listener, address)
}

fn contains(piece: &[u8], text: &[u8]) -> bool {
    text.is_empty() || piece.windows(text.len()).any(|window| window == text)
}

fn replace(piece: &mut [u8], from: &[u8], to: &[u8]) {
    let mut start = 0;
    while let Some(found) = piece[start..].windows(from.len()).position(|window| window == from) {
        start += found;
        piece[start..start + to.len()].copy_from_slice(to);
        start += to.len();
    }
}

fn close(stream: &TcpStream) {
    // The stream may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}
