//! A proxy between a client and the service, which injects network faults. A *piece* is what one read from a socket
//! returned.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Faults of all proxies of a service.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    state: Arc<Mutex<State>>,
    /// Notified by [`Faults::let_go`].
    let_go: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    cut_off: BTreeSet<String>,
    /// Clients without any traffic in either direction, whose connections stay open.
    silent: BTreeSet<String>,
    lose_answers: u32,
    lose_calls: u32,
    hold_back: HoldBack,
    /// For each client, by its label: addresses of nodes that are replaced in the traffic to it, each with its
    /// replacement of the same length.
    instead: BTreeMap<String, Vec<(String, String)>>,
    /// The sockets of every connection, to the client and to the service, with the label of the client.
    open: Vec<(String, TcpStream)>,
}

/// Pieces of traffic that are delayed until released, with everything behind them on their connections.
#[derive(Default)]
struct HoldBack {
    /// A text, and how many more pieces that contain it are to be held back.
    next: Option<(String, usize)>,
    held: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

#[allow(dead_code, reason = "each test binary that takes this file in causes some of the faults")]
impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Holds back the next `count` pieces to the service that contain `text`, and the traffic behind them on their
    /// connections, until [`Faults::let_go`].
    pub(crate) fn hold_back(&self, text: &str, count: usize) {
        self.state().hold_back = HoldBack { next: Some((text.to_owned(), count)), held: 0 };
    }

    /// The number of pieces held back.
    pub(crate) fn held_back(&self) -> usize {
        self.state().hold_back.held
    }

    /// Sends the pieces held back.
    pub(crate) fn let_go(&self) {
        self.state().hold_back = HoldBack::default();
        self.let_go.notify_all();
    }

    /// If this piece is to be held back, blocks until [`Faults::let_go`].
    fn pass_or_wait(&self, piece: &[u8]) {
        let mut state = self.state();
        let Some((text, left @ 1..)) = &mut state.hold_back.next else { return };
        if !piece.windows(text.len()).any(|window| window == text.as_bytes()) {
            return;
        }
        *left -= 1;
        state.hold_back.held += 1;
        let _unlocked = self.let_go.wait_while(state, |state| state.hold_back.held > 0).unwrap();
    }

    /// Blocks all traffic of this client and closes its connections.
    pub(crate) fn cut_off(&self, label: &str) {
        let mut state = self.state();
        state.cut_off.insert(label.to_owned());
        state.open.iter().filter(|(of, _)| of == label).for_each(|(_, stream)| close(stream));
    }

    /// Like a pulled cable: blocks all traffic of this client, and neither side sees its connections close.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "elsewhere a lease ends without a word"))]
    pub(crate) fn silence(&self, label: &str) {
        self.state().silent.insert(label.to_owned());
    }

    fn is_silent(&self, label: &str) -> bool {
        self.state().silent.contains(label)
    }

    /// Loses the next `count` pieces from the service, each with its connection.
    pub(crate) fn lose_answers(&self, count: u32) {
        self.state().lose_answers = count;
    }

    /// Loses the next `count` pieces to the service, each with its connection.
    pub(crate) fn lose_calls(&self, count: u32) {
        self.state().lose_calls = count;
    }

    fn loses(&self, label: &str, way: Way) -> bool {
        let mut state = self.state();
        if state.cut_off.contains(label) {
            return true;
        }
        let count = match way {
            Way::Up => &mut state.lose_calls,
            Way::Down => &mut state.lose_answers,
        };
        let loses = *count > 0;
        *count = count.saturating_sub(1);
        loses
    }

    /// Starts a proxy to each node of a service for one client; returns their addresses. In the nodes' messages,
    /// addresses of nodes are replaced by those of the proxies, so that the client does not bypass them.
    pub(crate) fn proxies(&self, label: &str, nodes: &[SocketAddr]) -> Vec<SocketAddr> {
        let listeners: Vec<_> = nodes.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let proxies: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let texts = nodes.iter().zip(&proxies).map(|(node, proxy)| (node.to_string(), proxy.to_string()));
        let texts: Vec<_> = texts.collect();
        assert!(
            texts.iter().all(|(node, proxy)| node.len() == proxy.len()),
            "lengths are on the wire: {texts:?}"
        );
        self.state().instead.insert(label.to_owned(), texts);
        for (listener, node) in listeners.into_iter().zip(nodes) {
            self.serve(label, listener, *node);
        }
        proxies
    }

    /// Starts a proxy to the service for one client; returns its address.
    pub(crate) fn proxy(&self, label: &str, service: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        self.serve(label, listener, service);
        address
    }

    fn serve(&self, label: &str, listener: TcpListener, service: SocketAddr) {
        let (faults, label) = (self.clone(), label.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if faults.is_silent(&label) {
                    // A new connection is accepted and kept open, but not forwarded: nothing of this client may reach
                    // the service.
                    faults.state().open.push((label.clone(), client));
                    continue;
                }
                let Ok(server) = TcpStream::connect(service) else { continue };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let mut state = faults.state();
                state.open.push((label.clone(), client.try_clone().unwrap()));
                state.open.push((label.clone(), server.try_clone().unwrap()));
                drop(state);
                let (client_too, server_too) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                faults.pass(&label, Way::Up, client, server);
                faults.pass(&label, Way::Down, server_too, client_too);
            }
        });
    }

    fn pass(&self, label: &str, way: Way, mut from: TcpStream, mut to: TcpStream) {
        let (faults, label) = (self.clone(), label.to_owned());
        let instead = match way {
            Way::Up => Vec::new(),
            Way::Down => self.state().instead.get(&label).cloned().unwrap_or_default(),
        };
        std::thread::spawn(move || {
            let mut piece = [0; 64 << 10];
            while let Ok(read @ 1..) = from.read(&mut piece) {
                if faults.is_silent(&label) {
                    continue;
                }
                for (from, to) in &instead {
                    replace(&mut piece[..read], from.as_bytes(), to.as_bytes());
                }
                if way == Way::Up {
                    faults.pass_or_wait(&piece[..read]);
                }
                if faults.loses(&label, way) || to.write_all(&piece[..read]).is_err() {
                    break;
                }
            }
            if !faults.is_silent(&label) {
                close(&from);
                close(&to);
            }
        });
    }
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
