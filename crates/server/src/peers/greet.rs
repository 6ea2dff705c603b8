//! The first message of a connection, from both sides: who is there, before anything counts. For the tasks of the front.
//!
//! Responsible for: nobody waits for ever for a stranger, and a stranger makes nobody allocate.

use std::io;
use std::time::Duration;

use lockkeeper_wire::peer::hello_answer::What;
use lockkeeper_wire::peer::{Hello, HelloAnswer, Lane, Refusal, RefusalCode};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A greeting holds some addresses for each node.
const GREETING_BYTES_MAX: usize = 1 << 20;
/// A connection, or an answer, has so long to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// How a node is to others, before they talk.
pub(crate) trait Greeter: Send + Sync + 'static {
    /// What it answers to node `to`, 0 for whoever is there.
    fn hello(&self, to: u64, lane: Lane) -> Hello;

    /// What it says at the begin of a connection that it opens to the address of node `to`, 0 for whoever is there.
    ///
    /// # Errors
    /// The system gives no random numbers.
    fn first_hello(&self, to: u64, lane: Lane) -> io::Result<Hello> {
        Ok(self.hello(to, lane))
    }

    /// Whether it talks to the one who answers this at an address that this node has connected to.
    ///
    /// # Errors
    /// Why not, in words for the other one.
    fn admit(&self, hello: &Hello) -> Result<(), Refusal>;

    /// Whether it talks to the sender of this hello on an incoming connection. Any stranger can have opened that.
    ///
    /// # Errors
    /// Why not, in words for the other one.
    fn admit_guest(&self, hello: &Hello) -> Result<(), Refusal>;
}

/// Why there is no connection with a peer.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// It is not there, or does not answer.
    Unreachable(io::Error),
    /// It won't talk to this node.
    Refused(Refusal),
    /// This node won't talk to it.
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

/// Why whoever has connected is not let in.
#[derive(Debug)]
pub(crate) enum NoGuest {
    /// It did not say who it is.
    Silent(io::Error),
    /// It says that it is this node, and this node won't talk to it.
    Refused(u64, Refusal),
}

/// Connects to `address`, and greets: whoever is there and lets this node in, with the connection, if `own` lets it in.
///
/// # Errors
/// Why there is no connection.
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

/// As [`open`], at the first of these addresses where the node lets this one in. The first of them that refuses says why.
///
/// # Errors
/// Why there is no connection.
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

/// The other side of [`open`]. `lanes` are those that can be served now.
///
/// # Errors
/// Why there is no connection.
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
            "a greeting of {length} bytes; at most {GREETING_BYTES_MAX} are allowed"
        )));
    }
    let mut bytes = Vec::new();
    socket.take(length as u64).read_to_end(&mut bytes).await?;
    M::decode(bytes.as_slice()).map_err(|error| invalid(format!("no greeting: {error}")))
}
