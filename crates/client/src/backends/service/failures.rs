//! Why the nodes of the service do not serve, as texts for users.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Status};

use super::addresses::Address;
use super::driver::CONNECT_LIMIT;

/// Time limit for a node's answer to one call.
pub(super) const NODE_LIMIT: Duration = Duration::from_secs(5);

/// Metadata key in a node's refusal; the value is the leader's client address, or empty if unknown.
pub(super) const LEADER_METADATA: &str = "lockkeeper-leader";
/// Prefix of the system resolver's errors.
const LOOKUP: &str = "failed to lookup address";
/// The failure of a server that does not speak HTTP/2.
const FOREIGN: &str = "something else listens there, which does not speak Lockkeeper's protocol (gRPC)";
/// The failure of a server that speaks TLS.
const SPEAKS_TLS: &str = "it speaks TLS: write `lockkeepers://`";
/// How the TLS library reports that the other side has ended the connection.
const ALERT: &str = "received fatal alert";
/// The alerts about this client's certificate, and the texts that replace them.
const ALERTS: [(&str, &str); 4] = [
    ("UnknownCA", UNSIGNED),
    ("BadCertificate", UNSIGNED),
    ("DecryptError", UNSIGNED),
    ("CertificateUnknown", UNSIGNED),
];
/// The alert about a certificate that has ended or is not valid yet by the node's clock, though it is valid
/// by this host's, and the text that replaces it.
const ENDED: (&str, &str) = (
    "CertificateExpired",
    "by its clock, this client's certificate has ended or is not valid yet (`lockkeeper tls show FILE`)",
);
const UNSIGNED: &str = "its authority has not signed this client's certificate (`lockkeeper tls show FILE`)";
/// The failure of a server that ends a TLS connection without a reason. Whether its alert is reported, or
/// only that the connection has ended, depends on the order of threads.
const TURNED_AWAY: &str = "it ends the connection at once: perhaps its authority has not signed this client's certificate \
                           (`lockkeeper tls show FILE`), or it has too many connections";
/// How the TLS library reports that the other side has ended the connection before the handshake was over.
const HANDSHAKE_ENDED: &str = "tls handshake eof";
/// The failure of a server that ends a connection within the TLS handshake, and so before it has seen this
/// client's certificate. It can give no reason then.
const CROWDED: &str = "it ends the connection within the TLS handshake: most likely it has too many connections of this \
     network (see its log, and docs/security.md, \"Connections\")";
/// How the TLS library reports that the other side does not speak TLS, and the text instead.
const NO_TLS: (&str, &str) =
    ("received corrupt message", "it does not speak TLS; if it is a node without, write `lockkeeper://`");

const NO_ANSWER: &str = "no answer";
/// Of a node whose process is there and does nothing. The command looks for these words.
const HANGS: &str =
    "though connections to it are accepted: its process hangs or is stopped, or its host is overloaded";

/// How the HTTP/2 library reports a connection that ended before a call was sent on it, or while it was sent.
const CLOSED: [&str; 2] = ["connection closed", "stream closed because of a broken pipe"];
/// The first bytes of an HTTP/2 client: the preface and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const FRAME_HEAD_BYTES: usize = 9;
const FRAME_TYPE_AT: usize = 3;
/// The type of a SETTINGS frame.
const SETTINGS: u8 = 4;
/// The first bytes of a TLS alert record: its type, and the first byte of its version.
const TLS_ALERT: [u8; 2] = [21, 3];

/// The innermost cause, which is the most specific one.
pub(super) fn cause(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    // The bytes of any other protocol, read as an HTTP/2 frame, have a length that no frame may have.
    let text = error.to_string();
    if text.contains("frame with invalid size") {
        return FOREIGN.to_owned();
    }
    if text.contains(NO_TLS.0) { NO_TLS.1.to_owned() } else { text }
}

/// Why a connection could not be opened.
pub(super) fn not_connected(error: &dyn Error, has_tls: bool) -> String {
    let text = cause(error);
    let is_ended = text == HANDSHAKE_ENDED || text.starts_with("Connection reset");
    if has_tls && is_ended { CROWDED.to_owned() } else { text }
}

/// Replaces the text of the HTTP/2 library if it hides that the server at `address` speaks another protocol:
/// whether it reports the bytes that it could not read, or only that the connection is closed, depends on the
/// order of threads.
pub(super) async fn explained(address: &Address, why: Why, has_tls: bool) -> Why {
    match &why {
        Why::Silent(text) if has_tls && text.contains(ALERT) && text.contains(ENDED.0) => {
            Why::Denies(ENDED.1.to_owned())
        }
        Why::Silent(text) if has_tls && text.contains(ALERT) => {
            let known = ALERTS.iter().find(|(alert, _)| text.contains(alert));
            known.map_or(why.clone(), |(_, text)| Why::Silent((*text).to_owned()))
        }
        Why::Silent(text) if CLOSED.contains(&text.as_str()) || text == FOREIGN => {
            let found = if has_tls { Some(TURNED_AWAY) } else { protocol(address).await };
            found.map_or(why, |text| Why::Silent(text.to_owned()))
        }
        _ => why,
    }
}

/// Replaces the text of a node that has not answered in time, if the kernel of its host accepts connections
/// for it: then its process is there. A host that can't be reached, or on which nobody listens, accepts none.
pub(super) async fn explained_silence(address: &Address, why: Why) -> Why {
    let is_late = matches!(&why, Why::Silent(text) if text.starts_with(NO_ANSWER));
    if !is_late {
        return why;
    }
    let connected = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address.to_string())).await;
    if matches!(connected, Ok(Ok(_))) { Why::Silent(format!("{why}, {HANGS}")) } else { why }
}

/// Detects a server with another protocol by the first bytes that it sends. `None`: HTTP/2, which begins with
/// a SETTINGS frame, or no bytes.
async fn protocol(address: &Address) -> Option<&'static str> {
    let read = async {
        let mut stream = TcpStream::connect(address.to_string()).await.ok()?;
        stream.write_all(HELLO).await.ok()?;
        let mut head = Vec::new();
        // An error after some bytes, such as a reset, is their end.
        let _ = stream.take(FRAME_HEAD_BYTES as u64).read_to_end(&mut head).await;
        match head.as_slice() {
            head if head.starts_with(&TLS_ALERT) => Some(SPEAKS_TLS),
            head if head.len() == FRAME_HEAD_BYTES && head[FRAME_TYPE_AT] != SETTINGS => Some(FOREIGN),
            _ => None,
        }
    };
    tokio::time::timeout(NODE_LIMIT, read).await.ok().flatten()
}

/// Why a node does not serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// It answers, but knows no leader.
    NoLeader,
    /// It answers with the reason why it does not serve.
    Refuses(String),
    /// It answers, but does not serve this client.
    Denies(String),
    /// It can't be reached or does not answer.
    Silent(String),
}

impl Why {
    pub(super) fn no_answer(limit: Duration) -> Self {
        Self::Silent(format!("{NO_ANSWER} within {limit:?}"))
    }

    /// Why a call has failed.
    pub(super) fn of(status: &Status) -> Self {
        match status.metadata().get(LEADER_METADATA) {
            Some(leader) if leader.is_empty() => Self::NoLeader,
            // Only the local transport attaches a source.
            _ if status.source().is_some() => Self::Silent(cause(status)),
            _ if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                Self::Denies(status.message().to_owned())
            }
            _ => Self::Refuses(status.message().to_owned()),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLeader => f.write_str("it answers, but knows no leader"),
            Self::Refuses(text) | Self::Denies(text) | Self::Silent(text) => f.write_str(text),
        }
    }
}

/// A node that does not serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeFailure {
    /// Its address, or another text that identifies it.
    pub(super) node: String,
    pub(super) why: Why,
}

impl NodeFailure {
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.why, Why::Silent(_))
    }
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.why)
    }
}

/// Each node with its failure, and the conclusion if some of them answer.
pub(super) fn summary(failures: &[NodeFailure]) -> String {
    let mut each: Vec<String> = failures.iter().map(NodeFailure::to_string).collect();
    each.sort_unstable();
    let each = each.join("; ");
    let leaderless = failures.iter().filter(|failure| failure.why == Why::NoLeader).count();
    match failures.len() {
        all if all == leaderless && all > 0 => format!("no node leads at the moment: {each}"),
        _ if leaderless > 0 => format!("no majority of the nodes: {each}; start those that do not answer"),
        _ if failures.iter().all(NodeFailure::is_silent) => each,
        _ => format!("the lock service does not serve: {each}"),
    }
}

/// As [`summary`], with the remedy if no node answers.
pub(super) fn summary_with_remedy(failures: &[NodeFailure]) -> String {
    let text = summary(failures);
    if !failures.iter().all(NodeFailure::is_silent) {
        return text;
    }
    let are_unknown = failures.iter().all(|it| matches!(&it.why, Why::Silent(text) if text.contains(LOOKUP)));
    let some_hang = failures.iter().any(|it| matches!(&it.why, Why::Silent(text) if text.contains(HANGS)));
    let start = match (are_unknown, some_hang) {
        (true, _) => "",
        (false, true) => "look at its process there, or ",
        (false, false) => "start one with `lockkeeper serve`, or ",
    };
    format!("no lock service answers ({text}); {start}correct the address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(node: &str, why: Why) -> NodeFailure {
        NodeFailure { node: node.to_owned(), why }
    }

    #[test]
    fn a_lost_majority_is_named_with_the_remedy() {
        let [one, two] = ["a:1", "b:2"].map(|node| failure(node, Why::NoLeader));
        let dead = failure("c:3", Why::Silent("Connection refused".to_owned()));
        assert_eq!(
            summary(&[dead.clone(), one.clone()]),
            format!("no majority of the nodes: {one}; {dead}; start those that do not answer")
        );
        assert!(summary(&[one, two]).starts_with("no node leads at the moment: a:1"));
        assert_eq!(summary(std::slice::from_ref(&dead)), dead.to_string());
        assert!(summary_with_remedy(&[dead]).contains("start one with `lockkeeper serve`"));
    }

    /// A node that closes a connection before TLS has begun can give no reason.
    #[test]
    fn connection_that_ends_in_the_handshake_is_told_with_the_likely_reason() {
        let ended = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, HANDSHAKE_ENDED);
        let reset = std::io::Error::other("Connection reset by peer (os error 104)");
        for error in [&ended, &reset] {
            assert!(not_connected(error, true).contains("too many connections of this network"), "{error}");
        }
        assert_eq!(not_connected(&reset, false), reset.to_string());
    }

    /// Neither of them is mended by another `serve`.
    #[test]
    fn a_forming_node_and_an_unknown_host_get_no_advice_to_start_one() {
        let forming = failure("a:1", Why::Refuses("waiting for node 2".to_owned()));
        let dead = failure("c:3", Why::Silent("Connection refused".to_owned()));
        let said = summary_with_remedy(&[dead, forming]);
        assert_eq!(said, "the lock service does not serve: a:1: waiting for node 2; c:3: Connection refused");
        let hangs = failure("a:1", Why::Silent(format!("{NO_ANSWER} within 2s, {HANGS}")));
        let said = summary_with_remedy(&[hangs]);
        assert!(said.contains("look at its process") && !said.contains("serve`"), "{said}");
        let unknown =
            failure("typo:1", Why::Silent(format!("{LOOKUP} information: Name or service not known")));
        let said = summary_with_remedy(&[unknown]);
        assert!(said.contains("correct the address") && !said.contains("serve`"), "{said}");
    }
}
