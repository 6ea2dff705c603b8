//! The handshake of a connection between nodes. The side that opens the connection sends its hello; the other
//! side answers with its own hello, or with a refusal. Runs in tasks of the front.
//!
//! Responsible for: no handshake waits forever, and an unidentified node causes no large allocation.

use std::io;
use std::time::Duration;

use lockkeeper_wire::peer::hello_answer::What;
use lockkeeper_wire::peer::{Hello, HelloAnswer, Lane, Refusal, RefusalCode};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use crate::tls::{NodeTls, PeerStream};

/// The longest handshake message, in bytes: it contains some addresses for each node, and an entry for each
/// former member.
const GREETING_BYTES_MAX: usize = 1 << 20;
/// The first byte of TLS records; the version follows, 3.1 to 3.4. No plain handshake begins like this: read
/// as a length, these bytes exceed what a hello needs.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
/// The time limit of a handshake, connecting included.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// One node's side of a handshake.
pub(crate) trait Greeter: Send + Sync + 'static {
    /// The hello to node `to`; 0: to any node.
    fn hello(&self, to: u64, lane: Lane) -> Hello;

    /// The hello that begins a connection to the address of node `to`; 0: of any node.
    ///
    /// # Errors
    /// The system's random number generator failed.
    fn first_hello(&self, to: u64, lane: Lane) -> io::Result<Hello> {
        Ok(self.hello(to, lane))
    }

    /// Checks the hello of a node to whose address this node has connected.
    ///
    /// # Errors
    /// The reason for a refusal, as a text for the other node.
    fn admit(&self, hello: &Hello) -> Result<(), Refusal>;

    /// Checks the hello on an incoming connection, which any host can have opened.
    ///
    /// # Errors
    /// The reason for a refusal, as a text for the other node.
    fn admit_guest(&self, hello: &Hello) -> Result<(), Refusal>;

    /// The TLS configuration; `None`: connections are plain.
    fn tls(&self) -> Option<&NodeTls>;
}

/// The reason why there is no connection with a peer.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// The node is not reachable, or does not answer.
    Unreachable(io::Error),
    /// The other node refuses this one.
    Refused(Refusal),
    /// This node refuses the other one.
    Unwanted(Refusal),
}

impl From<io::Error> for NoLink {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error)
    }
}

impl std::fmt::Display for NoLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "{error}"),
            Self::Refused(refusal) => write!(f, "it refuses: {}", refusal.text),
            Self::Unwanted(refusal) => f.write_str(&refusal.text),
        }
    }
}

/// The reason why an incoming connection is not accepted.
#[derive(Debug)]
pub(crate) enum NoGuest {
    /// The other side did not identify itself.
    Silent(io::Error),
    /// This node refuses the node that the other side claims to be.
    Refused(u64, Refusal),
}

/// Connects to `address` and performs the handshake. Returns the connection and the other node's hello if
/// both sides accept each other.
///
/// # Errors
/// The reason why there is no connection.
pub(crate) async fn open(
    address: &str,
    to: u64,
    lane: Lane,
    own: &dyn Greeter,
) -> Result<(PeerStream, Hello), NoLink> {
    let greet = async {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let mut stream = connect_tls(socket, to, own.tls()).await?;
        write(&mut stream, &own.first_hello(to, lane)?).await?;
        let answer: HelloAnswer = read(&mut stream).await?;
        let what = answer.what.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok((stream, what))
    };
    let late = |_| Err(NoLink::Unreachable(io::ErrorKind::TimedOut.into()));
    match timeout(PATIENCE, greet).await.unwrap_or_else(late)? {
        (_, What::Refused(refusal)) => Err(NoLink::Refused(refusal)),
        (stream, What::Welcome(hello)) => {
            // With `to` 0 any node may answer; it must be the one that its certificate names.
            let is_certified = certified(&stream, hello.node, own.tls());
            match is_certified.and_then(|()| own.admit(&hello)) {
                Ok(()) => Ok((stream, hello)),
                Err(refusal) => Err(NoLink::Unwanted(refusal)),
            }
        }
    }
}

/// The client's side of the TLS handshake, if there is TLS. `to`: the node that must answer; 0: any.
async fn connect_tls(socket: TcpStream, to: u64, tls: Option<&NodeTls>) -> Result<PeerStream, NoLink> {
    let Some(tls) = tls else { return Ok(PeerStream::Left(socket)) };
    let stream =
        PeerStream::Right(Box::new(TlsStream::Client(tls.connect_peer(socket).await.map_err(explain)?)));
    certified(&stream, to, Some(tls)).map_err(NoLink::Unwanted)?;
    Ok(stream)
}

/// Adds advice to the error of a TLS handshake.
fn explain(error: io::Error) -> io::Error {
    let text = if is_close(error.kind()) {
        format!(
            "it has closed the connection during the TLS handshake ({error}): it stops, or was started without certificates"
        )
    } else {
        format!(
            "the TLS handshake failed: {error}; both nodes need certificates of the same authority, or neither"
        )
    };
    io::Error::new(error.kind(), text)
}

/// Whether the error means that the other side has closed the connection.
pub(super) fn is_close(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Checks that the certificate at the other end is that of node `node`; 0: of any node of the cluster.
fn certified(stream: &PeerStream, node: u64, tls: Option<&NodeTls>) -> Result<(), Refusal> {
    let (PeerStream::Right(stream), Some(tls)) = (stream, tls) else { return Ok(()) };
    tls.check_node(stream.get_ref().1.peer_certificates(), node).map_err(|text| Refusal {
        code: RefusalCode::Unspecified.into(),
        text,
        ..Refusal::default()
    })
}

/// Like [`open`], at the first of `addresses` where both sides accept each other.
///
/// # Errors
/// The first refusal, else the last I/O error.
pub(crate) async fn open_any(
    addresses: &[String],
    to: u64,
    lane: Lane,
    own: &dyn Greeter,
) -> Result<(PeerStream, Hello), NoLink> {
    let mut why = NoLink::Unreachable(io::Error::other("it takes part no more"));
    for address in addresses {
        match open(address, to, lane, own).await {
            Ok(opened) => return Ok(opened),
            Err(error) if matches!(why, NoLink::Unreachable(_)) => why = error,
            Err(_) => {}
        }
    }
    Err(why)
}

/// The accepting side of [`open`]. `lanes` are the purposes of connections that can be served now.
///
/// # Errors
/// The reason why there is no connection.
pub(super) async fn answer(
    socket: TcpStream,
    own: &dyn Greeter,
    lanes: &[Lane],
) -> Result<(PeerStream, Hello), NoGuest> {
    let greet = async {
        socket.set_nodelay(true)?;
        let mut stream = match own.tls() {
            None => PeerStream::Left(socket),
            Some(tls) => {
                let stream = tls.accept_peer(socket).await.map_err(explain)?;
                PeerStream::Right(Box::new(TlsStream::Server(stream)))
            }
        };
        let hello: Hello = read(&mut stream).await?;
        let admitted = certified(&stream, hello.node, own.tls()).and_then(|()| own.admit_guest(&hello));
        let refusal = match admitted {
            Ok(()) if lanes.contains(&hello.lane()) => None,
            Ok(()) => Some(Refusal {
                code: RefusalCode::Later.into(),
                text: "this node is only about to become a member: try again".to_owned(),
                ..Refusal::default()
            }),
            Err(refusal) => Some(refusal),
        };
        let what = match &refusal {
            None => What::Welcome(own.hello(hello.node, hello.lane())),
            Some(refusal) => What::Refused(refusal.clone()),
        };
        write(&mut stream, &HelloAnswer { what: Some(what) }).await?;
        Ok((stream, hello, refusal))
    };
    let greeted = timeout(PATIENCE, greet).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match greeted.map_err(NoGuest::Silent)? {
        (stream, hello, None) => Ok((stream, hello)),
        (_, hello, Some(refusal)) => Err(NoGuest::Refused(hello.node, refusal)),
    }
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> io::Result<()> {
    let mut bytes = (message.encoded_len() as u32).to_le_bytes().to_vec();
    message.encode(&mut bytes).map_err(io::Error::other)?;
    stream.write_all(&bytes).await?;
    // A TLS layer may keep bytes until then.
    stream.flush().await
}

async fn read<M: Message + Default>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<M> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if matches!(length, [TLS_ALERT | TLS_HANDSHAKE, 3, 1..=4, _]) {
        return Err(invalid(
            "the other side speaks TLS, and this node was started without: give both nodes certificates (`--tls-cert`, \
             `--tls-key`, `--tls-ca`), or neither"
                .to_owned(),
        ));
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > GREETING_BYTES_MAX {
        return Err(invalid(format!(
            "a greeting of {length} bytes; at most {GREETING_BYTES_MAX} are allowed: is it the address for clients?"
        )));
    }
    let mut bytes = Vec::new();
    stream.take(length as u64).read_to_end(&mut bytes).await?;
    M::decode(bytes.as_slice()).map_err(|error| invalid(format!("no greeting: {error}")))
}
