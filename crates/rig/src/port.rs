//! A reserved port on 127.0.0.1.
//!
//! Responsible for keeping a server's port free for it, also while the server is killed and started again.
//! Does not listen itself.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port that is reserved until this value is dropped.
///
/// The socket is bound, but does not listen. The kernel then gives the port neither to a socket that binds to
/// any free port nor to an outgoing connection. A server that names the port can still bind it, as both sides
/// set `SO_REUSEADDR` and only one of them listens. While the server is dead, connections are refused, as on
/// a machine without the server.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _bound: Socket,
}

impl Port {
    /// Reserves any free port.
    ///
    /// # Panics
    /// There is no free port.
    #[must_use]
    pub fn free() -> Self {
        let bound = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket can be made");
        bound.set_reuse_address(true).expect("a fresh socket takes SO_REUSEADDR");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        bound.bind(&any.into()).expect("127.0.0.1 has a free port");
        let address = bound.local_addr().expect("a bound socket has an address");
        let number = address.as_socket().expect("it is an IPv4 address").port();
        Self { number, _bound: bound }
    }

    /// The port number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}
