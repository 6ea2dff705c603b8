//! The handshake of a connection between nodes. The side that opens the connection sends its hello; the other side
//! answers with its own hello, or with a refusal. Runs in tasks of the front.
//!
//! Responsible for: no handshake waits forever, and an unidentified node causes no large allocation.

use std::io;
use std::time::Duration;

use lockkeeper_wire::peer::hello_answer::What;
use lockkeeper_wire::peer::{Hello, HelloAnswer, Lane, Refusal, RefusalCode};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest handshake message, in bytes: it contains some addresses for each node.
const GREETING_BYTES_MAX: usize = 1 << 20;
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

/// Connects to `address` and performs the handshake. Returns the connection and the other node's hello if both sides
/// accept each other.
///
/// # Errors
/// The reason why there is no connection.
pub(crate) async fn open(
    address: &str,
    to: u64,
    lane: Lane,
    own: &dyn Greeter,
) -> Result<(TcpStream, Hello), NoLink> {
    let greet = async {
        let mut socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        write(&mut socket, &own.first_hello(to, lane)?).await?;
        let answer: HelloAnswer = read(&mut socket).await?;
        Ok((socket, answer.what.ok_or(io::ErrorKind::InvalidData)?))
    };
    let greeted = timeout(PATIENCE, greet).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match greeted.map_err(NoLink::Unreachable)? {
        (_, What::Refused(refusal)) => Err(NoLink::Refused(refusal)),
        (socket, What::Welcome(hello)) => match own.admit(&hello) {
            Ok(()) => Ok((socket, hello)),
            Err(refusal) => Err(NoLink::Unwanted(refusal)),
        },
    }
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
) -> Result<(TcpStream, Hello), NoLink> {
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
    mut socket: TcpStream,
    own: &dyn Greeter,
    lanes: &[Lane],
) -> Result<(TcpStream, Hello), NoGuest> {
    let greet = async {
        socket.set_nodelay(true)?;
        let hello: Hello = read(&mut socket).await?;
        let refusal = match own.admit_guest(&hello) {
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
        write(&mut socket, &HelloAnswer { what: Some(what) }).await?;
        Ok((socket, hello, refusal))
    };
    let greeted = timeout(PATIENCE, greet).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match greeted.map_err(NoGuest::Silent)? {
        (socket, hello, None) => Ok((socket, hello)),
        (_, hello, Some(refusal)) => Err(NoGuest::Refused(hello.node, refusal)),
    }
}

async fn write(socket: &mut TcpStream, message: &impl Message) -> io::Result<()> {
    let mut bytes = (message.encoded_len() as u32).to_le_bytes().to_vec();
    message.encode(&mut bytes).map_err(io::Error::other)?;
    socket.write_all(&bytes).await
}

async fn read<M: Message + Default>(socket: &mut TcpStream) -> io::Result<M> {
    let length = socket.read_u32_le().await? as usize;
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if length > GREETING_BYTES_MAX {
        return Err(invalid(format!(
            "a greeting of {length} bytes; at most {GREETING_BYTES_MAX} are allowed: is it the address for clients?"
        )));
    }
    let mut bytes = Vec::new();
    socket.take(length as u64).read_to_end(&mut bytes).await?;
    M::decode(bytes.as_slice()).map_err(|error| invalid(format!("no greeting: {error}")))
}
