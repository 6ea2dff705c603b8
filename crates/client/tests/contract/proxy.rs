//! What lies between a client and the service: a proxy that can lose what passes through it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Faults of all proxies of a service.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    state: Arc<Mutex<State>>,
    /// [`Faults::let_go`] was called.
    let_go: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    cut_off: BTreeSet<String>,
    /// Clients that hear nothing any more, nor are heard, while their connections stay.
    silent: BTreeSet<String>,
    lose_answers: u32,
    lose_calls: u32,
    hold_back: HoldBack,
    /// Addresses that a client is told, and what it is told instead: texts of the same length.
    instead: BTreeMap<String, Vec<(String, String)>>,
    /// Every connection with the label of its client.
    open: Vec<(String, TcpStream)>,
}

/// Pieces that reach the service only once they are let go, and everything behind them on their connections.
#[derive(Default)]
struct HoldBack {
    /// What the pieces contain, and how many more are held back.
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

    /// The next `count` pieces that go to the service with `text` in them stay here until [`Faults::let_go`], and with
    /// them what follows on their connections.
    pub(crate) fn hold_back(&self, text: &str, count: usize) {
        self.state().hold_back = HoldBack { next: Some((text.to_owned(), count)), held: 0 };
    }

    /// How many pieces are held back.
    pub(crate) fn held_back(&self) -> usize {
        self.state().hold_back.held
    }

    /// Sends what is held back.
    pub(crate) fn let_go(&self) {
        self.state().hold_back = HoldBack::default();
        self.let_go.notify_all();
    }

    /// Waits while this piece is to be held back.
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

    /// Nothing of this client passes any more, and its connections are closed.
    pub(crate) fn cut_off(&self, label: &str) {
        let mut state = self.state();
        state.cut_off.insert(label.to_owned());
        state.open.iter().filter(|(of, _)| of == label).for_each(|(_, stream)| close(stream));
    }

    /// As a cable that is pulled: nothing of this client passes any more, and nobody is told.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "elsewhere a lease ends without a word"))]
    pub(crate) fn silence(&self, label: &str) {
        self.state().silent.insert(label.to_owned());
    }

    fn is_silent(&self, label: &str) -> bool {
        self.state().silent.contains(label)
    }

    /// The next `count` pieces that come from the service are lost, each with its connection.
    pub(crate) fn lose_answers(&self, count: u32) {
        self.state().lose_answers = count;
    }

    /// The next `count` pieces that go to the service are lost, each with its connection.
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

    /// A proxy to each node of a service for one client; where they listen. Whatever a node tells of addresses is
    /// told as those of the proxies, so that the client does not go round them.
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

    /// A proxy to the service for one client; where it listens.
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
                    // Not even a connection gets through, for which the service would wait.
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
    // It may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}
