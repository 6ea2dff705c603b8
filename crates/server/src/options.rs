//! A node's start options, and the check of its listening addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_http::HazardPlayer;

use crate::access::AccessFiles;
use crate::error::ServeError;
use crate::scheduled_backups::BackupSchedule;
use crate::tls::{NodeName, TlsFiles};
use crate::traces::TraceSink;

/// Default limit of client connections; the limit on open files may lower it. A connection with a session
/// takes about 32 KiB.
pub const CONNECTIONS_MAX: usize = 16_384;

/// How long a connection stays open by default without a session, a watch or a call.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Default least log growth between snapshots, in bytes. A snapshot lets the log be truncated; replaying this
/// much at a start takes about a second.
pub const SNAPSHOT_AFTER: u64 = 64 << 20;

/// Default election time-out: a follower without a leader's message for this long, or up to twice that,
/// starts an election.
pub const ELECTION_TIMEOUT: Duration = Duration::from_millis(240);

/// Whether a node serves HTTP/JSON, and at which address (as in [`ServerOptions::listen`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HttpListen {
    /// The node does not serve HTTP.
    Off,
    /// Serves HTTP at this address; if that is not possible, the node does not start.
    At(String),
    /// Serves HTTP at this address; if the address is in use, the node warns, and serves without HTTP.
    IfFree(String),
}

impl HttpListen {
    /// The default HTTP address, if the client address `listen` has the default port; otherwise off. With
    /// another port the node may be one of several on its machine, which can't all have the default address.
    #[must_use]
    pub fn usual(listen: &str) -> Self {
        match listen.rsplit_once(':') {
            Some((_, port)) if port.parse() == Ok(lockkeeper_wire::DEFAULT_PORT) => {
                Self::IfFree(format!("127.0.0.1:{}", lockkeeper_wire::DEFAULT_HTTP_PORT))
            }
            _ => Self::Off,
        }
    }
}

/// The content of `/metrics`.
#[derive(Clone)]
pub struct MetricsPage {
    /// Renders the metrics of this process's recorder (of the `metrics` facade) in Prometheus' format.
    pub render: Arc<dyn Fn() -> String + Send + Sync>,
    /// The number of first segments of names by which holds and waiters are grouped; 0: not by name.
    pub prefix_segments: usize,
}

impl PartialEq for MetricsPage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.render, &other.render) && self.prefix_segments == other.prefix_segments
    }
}

impl Eq for MetricsPage {}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPage").field("prefix_segments", &self.prefix_segments).finish_non_exhaustive()
    }
}

/// Start options of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerOptions {
    /// The data directory; created if it does not exist.
    pub data: PathBuf,
    /// The address that serves clients: `HOST:PORT`, an IPv6 address in brackets. Port 0 takes any free port.
    pub listen: String,
    /// The address that serves HTTP/JSON.
    pub http: HttpListen,
    /// The content of `/metrics` on the HTTP port; `None`: the page does not exist.
    pub metrics: Option<MetricsPage>,
    /// The hazard player on the HTTP port; `None`: the page does not exist.
    pub hazards: Option<HazardPlayer>,
    /// Where traces of acquires go; `None`: acquires are not traced.
    pub traces: Option<TraceSink>,
    /// The address that clients are given, `HOST:PORT`; by default `listen`.
    pub advertise: Option<String>,
    /// Allows an address other than loopback without TLS.
    pub insecure: bool,
    /// The files for TLS on both ports; `None`: connections are plain.
    pub tls: Option<TlsFiles>,
    /// The files with which callers are authenticated and authorized.
    pub access: AccessFiles,
    /// The file of the audit trail; `None`: the audit trail is in the log only.
    pub audit: Option<PathBuf>,
    /// When this node makes backups, if it leads; `None`: never.
    pub backups: Option<BackupSchedule>,
    /// The id of this node; by default the id in its certificate or in its data, or 1.
    pub node: Option<u64>,
    /// Peer addresses of the nodes of a new cluster, by id, this node included. If the data directory has a
    /// cluster already, its members take precedence, and only this node's own address is used.
    pub cluster: BTreeMap<u64, String>,
    /// The peer address of a member of the cluster that this node is to be added to; instead of `cluster`.
    pub join: Option<String>,
    /// A node without data that its cluster refuses for good (its earlier data are gone, or it was removed)
    /// or does not know waits to be added under the id that the cluster then gives it, instead of ending.
    /// From then on `node` has no meaning.
    pub rejoin: bool,
    /// The address that listens to peers; by default this node's address in `cluster` or in its data, or with
    /// `join` the default peer port on 127.0.0.1.
    pub peer_listen: Option<String>,
    /// The first tokens of a new table are above this one, and in any case above the microseconds since 2026
    /// (T1).
    pub tokens_above: Option<u64>,
    /// See [`ELECTION_TIMEOUT`]; the same for all nodes of a cluster. Must be many times the message delay
    /// between two nodes.
    pub election_timeout: Duration,
    /// The limit of client connections.
    pub connections_max: usize,
    /// The limit of the connections of one identity, and of those of one network; `None`: half of
    /// `connections_max`.
    pub connections_of_client_max: Option<usize>,
    /// The number of connections reserved for operators and other nodes, at most half of all; `None`: a
    /// sixteenth.
    pub connections_reserved: Option<usize>,
    /// How long a connection stays open without a session, a watch or a call.
    pub idle_timeout: Duration,
    /// Log growth in bytes after which a snapshot is taken, unless the last snapshot was larger; then the log
    /// must grow by that snapshot's size. Only tests set another value than [`SNAPSHOT_AFTER`].
    pub snapshot_after: u64,
    /// The size of new log segments, in bytes. Only tests set another value than the storage's default.
    pub segment_bytes: u64,
}

/// Limits on the connections, in number and in time without use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) most: usize,
    /// The limit of one identity, and of one network.
    pub(crate) of_client: usize,
    /// The connections reserved for operators and nodes; included in `most`.
    pub(crate) reserved: usize,
    pub(crate) idle_timeout: Duration,
}

impl ServerOptions {
    /// Options of a node that keeps its data in `data` and listens on loopback only.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            listen: format!("127.0.0.1:{}", lockkeeper_wire::DEFAULT_PORT),
            http: HttpListen::Off,
            metrics: None,
            hazards: None,
            traces: None,
            advertise: None,
            insecure: false,
            tls: None,
            access: AccessFiles::default(),
            audit: None,
            backups: None,
            node: None,
            cluster: BTreeMap::new(),
            join: None,
            rejoin: false,
            peer_listen: None,
            tokens_above: None,
            election_timeout: ELECTION_TIMEOUT,
            connections_max: CONNECTIONS_MAX,
            connections_of_client_max: None,
            connections_reserved: None,
            idle_timeout: IDLE_TIMEOUT,
            snapshot_after: SNAPSHOT_AFTER,
            segment_bytes: lockkeeper_replica::storage::LogOptions::default().segment_bytes,
        }
    }

    /// The limits of connections; the system allows at most `most`.
    pub(crate) fn connection_limits(&self, most: usize) -> ConnectionLimits {
        ConnectionLimits {
            most,
            of_client: self.connections_of_client_max.unwrap_or(most.div_ceil(2)),
            reserved: self.connections_reserved.unwrap_or(most / 16).min(most / 2),
            idle_timeout: self.idle_timeout,
        }
    }

    /// The address to listen on, resolved; an error if the options don't allow it.
    pub(crate) fn address(&self) -> Result<SocketAddr, ServeError> {
        let address = self.allowed(&self.listen)?;
        if address.ip().is_unspecified() && self.advertise.is_none() {
            return Err(ServeError::Wildcard { address: self.listen.clone() });
        }
        Ok(address)
    }

    /// Takes the node's id from its certificate, unless it is given, and checks that the certificate fits.
    pub(crate) fn take_certificate(&mut self, certified: &NodeName) -> Result<(), ServeError> {
        self.node = self.node.or(certified.node);
        if self.rejoin
            && let Some(node) = certified.node
        {
            let why = format!(
                "`--rejoin` may give this node another id, and its certificate is of node {node}: take one of any node \
                 (`lockkeeper tls issue --any-node`)"
            );
            return Err(ServeError::Nodes { why });
        }
        self.node.map_or(Ok(()), |node| self.certified(certified, node))
    }

    /// Checks that the certificate is of this node.
    pub(crate) fn certified(&self, certified: &NodeName, node: u64) -> Result<(), ServeError> {
        match &self.tls {
            Some(files) if certified.node.is_some_and(|it| it != node) => Err(ServeError::Certificate {
                file: files.certificate.clone(),
                certified: certified.clone(),
                node,
            }),
            _ => Ok(()),
        }
    }

    /// The address to listen on for peers, resolved and as typed; `None` if the options give none.
    pub(crate) fn peer_address(&self) -> Result<Option<(SocketAddr, String)>, ServeError> {
        let nodes = |why: String| ServeError::Nodes { why };
        if self.node == Some(0) {
            return Err(nodes("nodes are numbered from 1, so `--node 0` is none".to_owned()));
        }
        let own = match (self.node, self.cluster.len(), &self.join) {
            (None, 0, None) => None,
            (None, ..) => return Err(nodes("say which node this is: `--node N`".to_owned())),
            (Some(node), 0, _) if node > 0 => None,
            (Some(node), ..) => match self.cluster.get(&node) {
                Some(address) => Some(address),
                None if self.rejoin => None,
                None => {
                    return Err(nodes(format!("`--cluster` has no address for node {node}, which this is")));
                }
            },
        };
        if self.join.is_some() && !self.cluster.is_empty() {
            return Err(nodes(
                "a node founds a cluster (`--cluster`) or joins one (`--join`), not both".to_owned(),
            ));
        }
        if self.rejoin && self.join.is_none() && self.cluster.is_empty() {
            return Err(nodes(
                "`--rejoin` is for a node of a cluster: name the others by `--cluster` or `--join`"
                    .to_owned(),
            ));
        }
        self.check_list()?;
        if let Some(join) = &self.join
            && host_and_port(join).is_none()
        {
            return Err(nodes(format!(
                "`--join {join}` names no node: give HOST:PORT, where a node of the cluster listens to other nodes, as in \
                 `--join db1.example:{}`",
                lockkeeper_wire::DEFAULT_PEER_PORT
            )));
        }
        let is_joiner = self.join.is_some() || !self.cluster.is_empty();
        let of_joiner = is_joiner.then(|| format!("127.0.0.1:{}", lockkeeper_wire::DEFAULT_PEER_PORT));
        let typed = self.peer_listen.clone().or_else(|| own.cloned()).or(of_joiner);
        typed.map(|typed| Ok((self.allowed(&typed)?, typed))).transpose()
    }

    /// Checks that each node of `--cluster` has an address of its own to which the others can connect.
    fn check_list(&self) -> Result<(), ServeError> {
        let mut taken = BTreeMap::new();
        for (node, address) in &self.cluster {
            let why = match (host_and_port(address), taken.insert(address, node)) {
                (None, _) => format!(
                    "`--cluster` gives node {node} the address `{address}`, which is none: give N=HOST:PORT for each node"
                ),
                (Some((host, _)), _) if is_wildcard(host) => format!(
                    "`--cluster` gives node {node} the address `{address}`, which stands for every address of a machine, so \
                     the others can't connect to it: give the one that they reach it at; it listens on all of them with \
                     `--peer-listen {address}`"
                ),
                (Some(_), Some(other)) => format!(
                    "`--cluster` gives nodes {other} and {node} the same address, `{address}`: give each its own"
                ),
                (Some(_), None) => continue,
            };
            return Err(ServeError::Nodes { why });
        }
        Ok(())
    }

    /// Resolves an address, and checks that listening on it is allowed.
    pub(crate) fn allowed(&self, typed: &str) -> Result<SocketAddr, ServeError> {
        let bad = |why: String| ServeError::Address { address: typed.to_owned(), why };
        let mut found = typed.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
        let address = found.next().ok_or_else(|| bad("it names no address".to_owned()))?;
        if !is_loopback(address.ip()) && !self.insecure && self.tls.is_none() {
            return Err(ServeError::NotLoopback { address: typed.to_owned() });
        }
        Ok(address)
    }
}

/// Splits an address that others connect to; `None` if it has no host, no port, or port 0.
fn host_and_port(typed: &str) -> Option<(&str, u16)> {
    let (host, port) = typed.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then_some((host, port))
}

/// Whether `host` is a wildcard address.
fn is_wildcard(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    ip.is_ok_and(|ip| ip.to_canonical().is_unspecified())
}

/// `::ffff:127.0.0.1` is loopback too.
fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(listen: &str, insecure: bool, advertise: Option<&str>) -> String {
        let options = ServerOptions {
            listen: listen.to_owned(),
            insecure,
            advertise: advertise.map(str::to_owned),
            ..ServerOptions::new("/nowhere")
        };
        options.address().map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn non_loopback_address_needs_insecure() {
        for loopback in ["127.0.0.1:5625", "127.8.9.10:1", "[::1]:5625", "[::ffff:127.0.0.1]:5625"] {
            assert_eq!(refused(loopback, false, None), "", "{loopback}");
        }
        for other in ["192.0.2.1:5625", "0.0.0.0:5625", "[::]:5625", "[2001:db8::1]:5625"] {
            let text = refused(other, false, Some("node:5625"));
            assert!(text.contains(other) && text.contains("--insecure"), "{text}");
            assert_eq!(refused(other, true, Some("node:5625")), "");
        }
    }

    #[test]
    fn usual_address_for_http_is_of_the_default_port_only() {
        let usual = HttpListen::IfFree("127.0.0.1:5627".to_owned());
        for listen in ["127.0.0.1:5625", "0.0.0.0:5625", "[::1]:5625", "db1.example:5625"] {
            assert_eq!(HttpListen::usual(listen), usual, "{listen}");
        }
        for listen in ["127.0.0.1:0", "127.0.0.1:56250", "127.0.0.1:15625", "5625"] {
            assert_eq!(HttpListen::usual(listen), HttpListen::Off, "{listen}");
        }
    }

    #[test]
    fn wildcard_address_needs_advertise() {
        for wildcard in ["0.0.0.0:5625", "[::]:5625"] {
            let text = refused(wildcard, true, None);
            assert!(text.contains(wildcard) && text.contains("--advertise"), "{text}");
        }
    }

    #[test]
    fn invalid_address_error_names_the_address() {
        for bad in ["5625", "127.0.0.1", "127.0.0.1:x", "::1:"] {
            let text = refused(bad, false, None);
            assert!(text.contains(&format!("`{bad}`")) && text.contains("HOST:PORT"), "{text}");
        }
    }
}
