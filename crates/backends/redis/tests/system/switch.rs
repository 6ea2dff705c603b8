//! A TCP proxy that can be redirected to another server, and can delay a client's bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone)]
pub(crate) struct Switch {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
}

struct State {
    leads_to: SocketAddr,
    open: Vec<TcpStream>,
    /// If set, the next bytes of a client are kept back, and the client's socket is closed.
    keep_back: bool,
    kept: Option<(TcpStream, Vec<u8>)>,
}

impl Switch {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { leads_to: server, open: Vec::new(), keep_back: false, kept: None };
        let switch = Self { state: Arc::new(Mutex::new(state)), address };
        let accepting = switch.clone();
        std::thread::spawn(move || {
            listener.incoming().map_while(Result::ok).for_each(|client| accepting.connect(client));
        });
        switch
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Redirects new connections, and closes the present ones.
    pub(crate) fn turn_to(&self, server: SocketAddr) {
        let mut state = self.state();
        state.leads_to = server;
        state.open.drain(..).for_each(|stream| close(&stream));
    }

    /// Keeps back the next bytes of a client, and closes the client's socket.
    pub(crate) fn keep_next_back(&self) {
        self.state().keep_back = true;
    }

    pub(crate) fn has_kept(&self) -> bool {
        self.state().kept.is_some()
    }

    /// Sends the bytes that were kept back.
    pub(crate) fn deliver_late(&self) {
        let (mut server, piece) = self.state().kept.take().unwrap();
        server.write_all(&piece).unwrap();
        // The server reads these bytes, and then the end of the stream.
        server.shutdown(Shutdown::Write).unwrap();
    }

    fn connect(&self, client: TcpStream) {
        let server = TcpStream::connect(self.state().leads_to);
        let Ok(server) = server else { return };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let (client_too, server_too) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        self.state().open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        let switch = self.clone();
        std::thread::spawn(move || switch.pass_up(client, server));
        std::thread::spawn(move || pass_down(server_too, client_too));
    }

    fn pass_up(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = [0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut piece) {
            let mut state = self.state();
            if std::mem::take(&mut state.keep_back) {
                // Closes the client's socket. The server's stays open for `deliver_late`.
                close(&from);
                state.kept = Some((to, piece[..read].to_vec()));
                return;
            }
            drop(state);
            if to.write_all(&piece[..read]).is_err() {
                break;
            }
        }
        close(&from);
        close(&to);
    }
}

/// If a write to the client fails, leaves the server's socket open: bytes for the server may have been kept
/// back.
fn pass_down(mut from: TcpStream, mut to: TcpStream) {
    let mut piece = [0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..read]).is_err() {
            return;
        }
    }
    close(&to);
}

fn close(stream: &TcpStream) {
    // The stream may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}
