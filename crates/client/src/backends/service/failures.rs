//! Why the nodes of the service do not serve, in words for users.

use std::error::Error;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Status;

use super::addresses::Address;
use super::search::NODE_LIMIT;

/// Metadata key in a node's refusal; the value is the leader's client address, or empty if unknown.
pub(super) const LEADER_METADATA: &str = "lockkeeper-leader";
/// The failure of a node that knows no leader.
pub(super) const NO_LEADER: &str = "it answers, but knows no leader";
/// The failure of a server that does not speak HTTP/2.
const FOREIGN: &str = "something else listens there, which does not speak Lockkeeper's protocol (gRPC)";

/// How the HTTP/2 library reports a connection that ended before a call was sent on it.
const CLOSED: &str = "connection closed";
/// What an HTTP/2 client sends first: the preface, and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const FRAME_HEAD_BYTES: usize = 9;
const FRAME_TYPE_AT: usize = 3;
/// The type of a SETTINGS frame.
const SETTINGS: u8 = 4;

/// The innermost cause, which is the most specific one.
pub(super) fn cause(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    // The bytes of any other protocol, read as an HTTP/2 frame, have a length that no frame may have.
    let text = error.to_string();
    if text.contains("frame with invalid size") { FOREIGN.to_owned() } else { text }
}

/// Replaces the text of the HTTP/2 library if it hides that the server at `address` speaks another protocol: whether it
/// reports the bytes that it could not read, or only that the connection is closed, depends on the order of threads.
pub(super) async fn explained(address: &Address, why: String) -> String {
    if why == CLOSED && is_foreign(address).await { FOREIGN.to_owned() } else { why }
}

/// Whether the server sends anything but a SETTINGS frame first, as every HTTP/2 server does.
async fn is_foreign(address: &Address) -> bool {
    let look = async {
        let mut stream = TcpStream::connect(address.to_string()).await.ok()?;
        stream.write_all(HELLO).await.ok()?;
        let mut head = [0; FRAME_HEAD_BYTES];
        stream.read_exact(&mut head).await.ok()?;
        Some(head[FRAME_TYPE_AT] != SETTINGS)
    };
    tokio::time::timeout(NODE_LIMIT, look).await.ok().flatten().unwrap_or(false)
}

/// The failure of a call.
pub(super) fn refused(status: &Status) -> String {
    match status.metadata().get(LEADER_METADATA) {
        Some(leader) if leader.is_empty() => NO_LEADER.to_owned(),
        // Only the local transport attaches a source.
        _ if status.source().is_some() => cause(status),
        _ => status.message().to_owned(),
    }
}

/// The failures of the nodes, each with the node's address. `Err` if some node answers, but none knows a leader: the
/// cause is known then.
pub(super) fn summary(mut failures: Vec<String>) -> Result<String, String> {
    failures.sort_unstable();
    let leaderless = failures.iter().filter(|failure| failure.ends_with(NO_LEADER)).count();
    let each = failures.join("; ");
    match leaderless {
        0 => Ok(each),
        all if all == failures.len() => Err(format!("no node leads at the moment: {each}")),
        _ => Err(format!("no majority of the nodes: {each}; start those that do not answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_majority_is_named_with_the_remedy() {
        let [one, two] = ["a:1", "b:2"].map(|node| format!("{node}: {NO_LEADER}"));
        let dead = "c:3: Connection refused".to_owned();
        let said = summary(vec![dead.clone(), one.clone()]);
        assert_eq!(
            said,
            Err(format!("no majority of the nodes: {one}; {dead}; start those that do not answer"))
        );
        assert!(summary(vec![one, two]).unwrap_err().starts_with("no node leads at the moment: a:1"));
        assert_eq!(summary(vec![dead.clone()]), Ok(dead));
    }
}
