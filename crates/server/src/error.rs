//! Errors that keep a node from starting or make it stop. Most texts have advice.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use lockkeeper_replica::storage::OpenError;
use lockkeeper_replica::{Difference, Fatal, LostEntries};
use lockkeeper_wire::peer::Refusal;

use crate::disk::DirectoryError;
use crate::tls::NodeName;

/// The reason why a node can't serve, or stopped serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The given address is no address to listen on.
    #[error(
        "`{address}` is no address to listen on ({why}); give HOST:PORT, as in `127.0.0.1:5625` or `[::1]:5625`"
    )]
    Address {
        /// The text that was given as the address.
        address: String,
        /// The fault of the address.
        why: String,
    },
    /// The address can be reached from other machines.
    #[error(
        "listening on `{address}` is refused: other machines can reach it, and without TLS whoever reaches it can break \
         every lock. Give it certificates (`lockkeeper tls init` makes them; `--tls-cert`, `--tls-key`, `--tls-ca`), \
         listen on 127.0.0.1 or [::1], or say `--insecure` if the network itself keeps strangers out"
    )]
    NotLoopback {
        /// The text that was given as the address.
        address: String,
    },
    /// The files for TLS can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The certificate is of another node than this one.
    #[error("`{}` is the certificate of {certified}, and this is node {node}: give each node its own", file.display())]
    Certificate {
        /// The certificate's file.
        file: PathBuf,
        /// The node in the certificate.
        certified: NodeName,
        /// This node.
        node: u64,
    },
    /// The address is a wildcard, which clients can't connect to.
    #[error(
        "`{address}` stands for every address of this machine, clients can't be told to connect to it; say \
         `--advertise HOST:PORT` with the one that they can reach"
    )]
    Wildcard {
        /// The text that was given as the address.
        address: String,
    },
    /// The options about nodes are missing or contradict each other.
    #[error("{why}")]
    Nodes {
        /// The fault, with advice.
        why: String,
    },
    /// The cluster has other nodes, and neither the data nor the options have this node's peer address.
    #[error(
        "the data directory `{directory}` is of node {node} of a cluster with other nodes ({}), and neither the data nor \
         the command line say where those reach this one: add `--peer-listen HOST:PORT`, with the address that it had when \
         they were added, or another that they can reach",
        listed(others)
    )]
    Unreachable {
        /// The data directory.
        directory: PathBuf,
        /// The node that the data belong to.
        node: u64,
        /// The other nodes.
        others: Vec<u64>,
    },
    /// The directory has files, and none of them is a node's.
    #[error(
        "`{directory}` is not empty and holds no data of a node: `{found}` is there; give a directory of its own to \
         `--data`, one that is empty or does not exist"
    )]
    NotOurs {
        /// The directory.
        directory: PathBuf,
        /// One of the files in it.
        found: String,
    },
    /// The data are of another node than the one that was to be started.
    #[error(
        "the data directory `{directory}` belongs to node {found}, not to node {given}: start it with `--node {found}`, or \
         give node {given} its own directory"
    )]
    AnotherNode {
        /// The data directory.
        directory: PathBuf,
        /// The node that the data belong to.
        found: u64,
        /// The node id that the options give.
        given: u64,
    },
    /// The data directory is of a node that was about to bootstrap or join a cluster with others.
    #[error(
        "the data directory `{directory}` is of node {node}, which was about to become part of a cluster with other nodes: \
         start it with the same `--cluster` or `--join` as before; or, for another cluster, with an empty directory"
    )]
    NotAlone {
        /// The data directory.
        directory: PathBuf,
        /// The node that the data belong to.
        node: u64,
    },
    /// The cluster refuses this node, or has removed it.
    #[error("{}", _0.text)]
    Refused(Refusal),
    /// The cluster was bootstrapped with newer rules of the table than this program has.
    #[error(
        "this cluster uses version {rules} of the table's rules, this program knows versions up to {known}: start the \
         release that the other nodes run"
    )]
    NewerRules {
        /// The cluster's version.
        rules: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// Another process listens on the address.
    #[error(
        "`{address}` is in use by another process (`ss -ltnp` names it); stop that one, or give another `--listen` (for \
         peers: `--peer-listen`)"
    )]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The system refused to listen on the address.
    #[error("cannot listen on `{address}`: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The data directory can't be owned.
    #[error("{}", with_cause(_0))]
    Directory(#[source] DirectoryError),
    /// The content of the data directory can't be used.
    #[error("the data directory `{directory}` can't be used: {}", with_cause(source))]
    Open {
        /// The data directory.
        directory: PathBuf,
        /// The file concerned, with advice.
        source: OpenError,
    },
    /// The newest snapshot's checksums are right, but its content is not a valid table.
    #[error(
        "snapshot {index} in the data directory `{directory}` can't be used: {why}. Nothing was changed; this is a bug \
         of ours, or of the program that wrote it: keep the directory, and start the version that wrote it"
    )]
    Snapshot {
        /// The data directory.
        directory: PathBuf,
        /// The snapshot's position in the log.
        index: u64,
        /// The fault of the snapshot.
        why: String,
    },
    /// The wall clock can't be the source of a new table's first tokens.
    #[error(
        "this machine's clock is before 2026, so the tokens of a new table could be lower than tokens issued before: \
         set the clock, or say `--tokens-above N` with the highest token that was ever issued for these locks (0 if \
         there are none)"
    )]
    ClockBehind,
    /// The given lower bound is above the greatest token.
    #[error("tokens can't start above {above}: the greatest token is {max}; give a lower `--tokens-above`")]
    TokensAbove {
        /// The lower bound that was given.
        above: u64,
        /// The greatest value that is allowed.
        max: u64,
    },
    /// The disk is full.
    #[error(
        "the disk under `{directory}` is full ({source}), so the log can't go on; nothing that was acknowledged is \
         lost: free space and start again"
    )]
    DiskFull {
        /// The data directory.
        directory: String,
        /// The system's error.
        source: io::Error,
    },
    /// The data directory was deleted, moved or replaced.
    #[error(
        "the data directory `{directory}` was deleted, moved or replaced while this node ran: nothing that it \
         acknowledged from now on would be found again, so it stops. Put the directory back and start again. If it is lost: \
         a node that is alone starts with an empty one, whose tokens are above the old ones; a node of a cluster is \
         started with an empty one and `--rejoin`, then `lockkeeper cluster replace` takes it in"
    )]
    DirectoryGone {
        /// The data directory.
        directory: String,
    },
    /// The replica reported an error that it can't recover from.
    #[error("this node must stop: {0}")]
    Stopped(#[from] Fatal),
    /// From the same log, this node has built a table that differs from that of the other nodes.
    #[error(
        "node {node} stops: after entry {} of the log its table has the digest {:032x}, and {:032x} is right (node {} says \
         so, as a majority of the voters does). What this node knows of locks can't be trusted: don't start it with these \
         data again; `lockkeeper cluster remove {node}`, then add it with an empty directory under a new id. It was memory \
         or a disk that fails, or a bug of ours: keep the directory, and tell us",
        .difference.index, .difference.own, .difference.theirs, .difference.node
    )]
    WrongTable {
        /// This node.
        node: u64,
        /// Both digests, and the log entry after which they were compared.
        difference: Difference,
    },
    /// Log entries that this node had acknowledged are missing: the disk lost them, or the directory was
    /// replaced by an older copy (P10).
    #[error(
        "node {node} stops: the log in the data directory `{directory}` ends at entry {}, and by node {} this node has, or must \
         have, entry {}. Entries that it had acknowledged are gone: the disk has lost what it confirmed, or the directory is \
         an older copy. With what is left it could help to undo what was granted: don't start it with these data again; \
         `lockkeeper cluster remove {node}`, then add it with an empty directory under a new id. Look at the disk first",
        .lost.last, .lost.peer, .lost.acknowledged
    )]
    EntriesLost {
        /// This node.
        node: u64,
        /// The data directory.
        directory: String,
        /// The missing entries, and the peer whose message showed that they are missing.
        lost: LostEntries,
    },
    /// An earlier run with these data stopped for [`ServeError::EntriesLost`].
    #[error("the data in `{directory}` are damaged, and must not be used again: {why}")]
    LostBefore {
        /// The data directory.
        directory: PathBuf,
        /// The message of that run.
        why: String,
    },
    /// An earlier run with these data stopped for [`ServeError::WrongTable`].
    #[error(
        "the data in `{directory}` must not be used again: {why} (Only where you know that this node was right and the \
         others were wrong: remove the file `wrong-table` there.)"
    )]
    Condemned {
        /// The data directory.
        directory: PathBuf,
        /// The message of that run.
        why: String,
    },
    /// The system refused to create a thread, a signal handler or the like.
    #[error("cannot {doing}: {source}")]
    System {
        /// The step, as a verb.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A thread of this process panicked.
    #[error("the thread `{thread}` has panicked: this is a bug of ours; the panic's text stands above")]
    Panicked {
        /// The thread's name.
        thread: &'static str,
    },
}

impl ServeError {
    /// For `map_err`; `doing` is the failed step, as a verb.
    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }
}

/// Formats node ids as in `node 2, node 3`.
fn listed(nodes: &[u64]) -> String {
    nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", ")
}

/// Formats the error, with its cause if it has one.
fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

/// Why a file that a node is given can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A file can't be read.
    #[error("`{}` can't be read: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file can't be written.
    #[error("`{}` can't be written: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has no usable content.
    #[error("`{}` can't be used: {}", file.display(), why.trim_end())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The fault of the content.
        why: String,
    },
    /// The certificate names another node, or a node of another cluster, than this one.
    #[error("`{}` is the certificate of {found}, and this is {wanted}", file.display())]
    OtherNames {
        /// The file.
        file: PathBuf,
        /// The node in the certificate.
        found: String,
        /// This node.
        wanted: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_table_error_has_both_digests_and_advice() {
        let difference = Difference { index: 812, own: 0xAB << 64, node: 1, theirs: 0xCD };
        let text = ServeError::WrongTable { node: 2, difference }.to_string();
        let own = "000000000000000000000000000000ab0000000000000000";
        for words in [
            "node 2 stops",
            "after entry 812",
            &own[own.len() - 32..],
            "000000000000000000000000000000cd is right (node 1",
            "`lockkeeper cluster remove 2`",
            "empty directory",
        ] {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
    }
}
