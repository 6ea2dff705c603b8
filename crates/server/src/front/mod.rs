//! The interfaces for clients, gRPC and HTTP/JSON: connections, streams and unary calls, on one thread.
//!
//! Responsible for: clients' requests reach the replica in order, and its answers reach the clients. Contains
//! no lock rule. Each module gets handles of the modules above it in this list:
//!
//! | room | is |
//! | --- | --- |
//! | `replica_handle.rs` | what is passed to the replica's thread, and known of it |
//! | `callers/` | who calls, and whether it may |
//! | `transport/` | connections, and the drain barrier (P9) |
//! | `sessions/` | streams of sessions, and sessions without a stream |
//! | `calls/` | questions, orders, watches, backups; calls at a follower are forwarded |
//! | `grpc.rs`, `http/` | the two interfaces |
//! | `pump.rs` | the task that delivers the replica's outputs |

mod callers;
mod calls;
mod fields;
mod grpc;
mod http;
mod paths;
mod pump;
mod replica_handle;
mod sessions;
mod statuses;
#[cfg(test)]
mod tests;
mod transport;

use std::sync::{Arc, OnceLock};

use lockkeeper_replica::storage::{BackupParts, Snapshots};
use tokio::net::TcpListener;
use tokio::sync::watch as shown;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::access::Access;
use crate::audit::Audit;
use crate::disk::DataDirectory;
use crate::inbox::{Inbox, ReplicaStatus};
use crate::options::{ConnectionLimits, MetricsPage};
use crate::peers::Directory;
use crate::tls::NodeTls;
use crate::traces::TraceArrivals;
use callers::Callers;
use calls::Calls;
use grpc::GrpcInterface;
use http::{HttpServed, Metrics};
use lockkeeper_http::{HazardPlayer, HttpInterface};
use replica_handle::ReplicaHandle;
use sessions::ClientSessions;
use transport::{Port, Transport};

pub(crate) use calls::About;
#[cfg(any(test, fuzzing))]
pub(crate) use calls::fuzz_deadline;
pub(crate) use pump::pump;
pub use statuses::LEADER_METADATA;
pub(crate) use transport::{Acceptor, answer_while_forming};

/// The modules of the front.
pub(crate) struct Front {
    replica: Arc<ReplicaHandle>,
    callers: Arc<Callers>,
    transport: Arc<Transport>,
    sessions: Arc<ClientSessions>,
    calls: Arc<Calls>,
}

/// The listener for HTTP, and the optional pages that the embedding process supplies.
pub(crate) struct HttpPort {
    pub(crate) listener: TcpListener,
    pub(crate) metrics: Option<MetricsPage>,
    pub(crate) hazards: Option<HazardPlayer>,
}

impl Front {
    pub(crate) fn new(
        inbox: Arc<Inbox>,
        about: About,
        tls: Option<Arc<NodeTls>>,
        access: Arc<Access>,
        audit: Arc<Audit>,
        traced: Option<Arc<TraceArrivals>>,
        limits: ConnectionLimits,
    ) -> Arc<Self> {
        let directory = Arc::new(OnceLock::new());
        let replica = Arc::new(ReplicaHandle::new(inbox, about.clients.clone()));
        let callers = Arc::new(Callers::new(access, audit, tls.clone(), directory.clone()));
        let transport = Transport::new(replica.clone(), callers.clone(), tls.clone(), limits);
        let sessions = ClientSessions::new(replica.clone(), callers.clone(), traced);
        let calls = Calls::new(replica.clone(), callers.clone(), sessions.clone(), about, directory, tls);
        Arc::new(Self { replica, callers, transport, sessions, calls })
    }

    /// Serves gRPC on `listener`, and HTTP/JSON on `http`.
    ///
    /// # Errors
    /// The description of the service is invalid: a bug.
    pub(crate) fn acceptor(
        &self,
        listener: TcpListener,
        http: Option<HttpPort>,
        health: HealthServer<impl Health>,
    ) -> Result<Arc<Acceptor>, tonic_reflection::server::Error> {
        let (calls, routes) = (self.calls.clone(), grpc::routes(&self.calls, health)?);
        let mut ports = vec![];
        if let Some(HttpPort { listener, metrics, hazards }) = http {
            let is_local = self.calls.tls.is_none()
                && listener.local_addr().is_ok_and(|it| it.ip().to_canonical().is_loopback());
            let interface = HttpServed {
                interface: HttpInterface::new(is_local, hazards),
                calls: calls.clone(),
                routes: routes.clone(),
                metrics: metrics.map(|page| Arc::new(Metrics::new(page))),
            };
            ports.push(Port { listener, interface: Arc::new(interface) });
        }
        ports.push(Port { listener, interface: Arc::new(GrpcInterface { calls, routes }) });
        Ok(Acceptor::new(ports, self.transport.clone()))
    }

    /// The state of the replica, with notifications of changes.
    pub(crate) fn state(&self) -> shown::Receiver<ReplicaStatus> {
        self.replica.state()
    }

    /// To be called once the node has data.
    pub(crate) fn has_data(&self, snapshots: Snapshots<DataDirectory>) {
        self.calls.has_data(snapshots);
    }

    /// To be called once the node has peers.
    pub(crate) fn has_peers(&self, directory: Arc<Directory>) {
        self.calls.has_peers(directory);
    }

    /// The id of this node.
    pub(crate) fn node(&self) -> u64 {
        self.calls.about.node
    }

    /// Cancelled once connections end.
    pub(crate) fn stopping(&self) -> CancellationToken {
        self.replica.stopping.clone()
    }

    /// The table of this node, which must lead, as a backup.
    ///
    /// # Errors
    /// As of the call `Backup`.
    pub(crate) async fn own_backup(&self) -> Result<BackupParts<DataDirectory>, Status> {
        self.calls.own_backup().await
    }

    /// Records why the last backup on a schedule failed, for the status of this node (empty: it did not);
    /// returns the text before.
    pub(crate) fn set_backup_error(&self, text: String) -> String {
        std::mem::replace(&mut *self.calls.backup_error.lock(), text)
    }

    /// Makes the replica hand over the leadership, then end.
    pub(crate) fn shut_down(&self) {
        self.replica.shut_down();
    }

    /// Refuses new connections, streams and calls from now on, and ends each connection once its calls have
    /// ended.
    pub(crate) fn end_connections(&self) {
        self.calls.end_watches();
        self.replica.stopping.cancel();
    }

    /// The number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.transport.connections().len()
    }

    /// Sends the quotas of the access files to the replica, and ends streams, watches and connections of
    /// callers that are no longer permitted. Repeats this at each change of the files.
    pub(crate) async fn follow_access_files(&self) {
        self.sessions.set_quotas();
        loop {
            self.callers.access.changed().await;
            self.sessions.set_quotas();
            self.end_denied();
        }
    }

    /// Ends the streams, watches and connections of callers that are no longer permitted.
    fn end_denied(&self) {
        self.sessions.end_denied();
        self.calls.end_denied();
        // Connections come last, so that streams and watches receive the reason first.
        self.transport.end_denied();
    }
}
