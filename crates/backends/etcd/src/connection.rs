//! Connections to the members of a cluster, and calls on them. Errors report whether the call may have
//! arrived (P12).
//!
//! Each runtime has one connection, to one member. If the member does not answer, the next connection is to
//! the next member of the URL: a partitioned member answers nothing that needs a majority.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_backend::grpc::{self, GrpcTls};
use lockkeeper_backend::io::{Connect, LeaseThread, Pool, PoolLimits, Used};
use lockkeeper_backend::leased::StoreFailure;
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, Login};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::api::auth_client::AuthClient;
use super::api::kv_client::KvClient;
use super::api::lease_client::LeaseClient;
use super::api::watch_client::WatchClient;
use super::api::{AuthenticateRequest, RangeRequest};
use super::settings::Settings;

/// Each runtime has one connection, closed after a minute without use.
const LIMITS: PoolLimits = PoolLimits { shared_each: 1, total: 256, idle: Duration::from_secs(60) };
/// Time limit for connecting to one member, including its answer to a first read.
const MEMBER_LIMIT: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings, and the time limit of their answers.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Logins of one call: a login's token may expire before the call arrives.
const LOGINS_MAX: usize = 3;

/// Largest response: a page of 1,000 keys, each with the largest value in Base64.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A runtime's connection, in use.
pub(super) type LinkConnection = Used<MemberConnector>;

/// Why a call has no usable answer.
pub(super) type EtcdFailure = StoreFailure<NoLease>;

/// There is no such lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoLease;

/// The connections to one cluster.
pub(super) struct Link {
    pool: Pool<MemberConnector>,
    has_login: bool,
}

impl Link {
    pub(super) fn new(settings: &Settings, lease_thread: &LeaseThread) -> Self {
        let connector = MemberConnector {
            endpoints: settings.endpoints.clone(),
            login: settings.login.clone(),
            tls: settings.tls.clone(),
            next: Arc::default(),
        };
        let has_login = settings.login.is_some();
        Self { pool: Pool::new(connector, LIMITS, lease_thread), has_login }
    }

    /// Opens the current runtime's connection, to check that the cluster answers.
    pub(super) async fn check(&self) -> Result<(), BackendError> {
        self.pool.alone().await.map(drop)
    }

    /// Why there is no connection, if known.
    pub(super) fn trouble(&self) -> Option<BackendError> {
        self.pool.trouble()
    }

    /// Calls a member on the current runtime's connection. After a call without an answer the connection is
    /// discarded. If the member rejects the login, nothing was done, and the call is repeated on a new
    /// connection, which logs in again.
    pub(super) async fn call<M: Clone, T>(
        &self,
        deadline: Instant,
        message: M,
        call: impl Fn(&MemberConnection, Request<M>) -> BoxFuture<'static, Result<Response<T>, Status>>,
    ) -> Result<T, EtcdFailure> {
        let mut logins = 0;
        loop {
            let used = self.pool.shared_until(deadline).await.ok_or(EtcdFailure::NOT_DONE)?;
            let unanswered = DiscardOnDrop(&used);
            let calling = call(&used, used.request(message.clone()));
            let status = match timeout_at(deadline, calling).await {
                Ok(Ok(answer)) => {
                    mem::forget(unanswered);
                    return Ok(answer.into_inner());
                }
                Ok(Err(status)) => status,
                Err(_) => return Err(self.no_answer("not in time")),
            };
            if wants_login(&status) && self.has_login && logins < LOGINS_MAX {
                logins += 1;
                continue;
            }
            if let Some(cause) = transport_failure(&status) {
                return Err(self.no_answer(&cause));
            }
            let failure = failure(&status);
            if !matches!(failure, EtcdFailure::Silent(_)) {
                mem::forget(unanswered);
            }
            return Err(failure);
        }
    }

    /// The failure of a call without an answer.
    fn no_answer(&self, why: &str) -> EtcdFailure {
        let what = format!("etcd did not answer a call: {why}");
        self.pool.set_trouble(BackendError::new(BackendErrorKind::Unreachable, what));
        EtcdFailure::IN_DOUBT
    }

    /// The current runtime's connection, for a stream.
    pub(super) async fn connection(&self) -> LinkConnection {
        self.pool.shared().await
    }
}

/// Whether the member rejected the connection's login, and so did nothing: the token has expired, users were
/// changed (with JWT tokens), or logins have become required.
fn wants_login(status: &Status) -> bool {
    let outdated = ["revision of auth store is old", "user name is empty"];
    match status.code() {
        Code::Unauthenticated => true,
        Code::InvalidArgument => outdated.iter().any(|text| status.message().contains(text)),
        _ => false,
    }
}

/// Whether this is a temporary refusal after which nothing was done. All other errors are classified by their
/// code.
fn passes(status: &Status) -> bool {
    wants_login(status) || status.message().contains("too many requests")
}

/// The cause of a failed connection: only errors of the local transport have a source.
fn transport_failure(status: &Status) -> Option<String> {
    std::error::Error::source(status).map(innermost)
}

/// Classifies an error.
pub(super) fn failure(status: &Status) -> EtcdFailure {
    let text = status.message();
    let told = format!("etcd refuses: {text}");
    let refused = |kind| EtcdFailure::Refused(BackendError::new(kind, told.clone()));
    match status.code() {
        _ if transport_failure(status).is_some() => EtcdFailure::IN_DOUBT,
        Code::NotFound if text.contains("lease not found") => EtcdFailure::Answered(NoLease),
        Code::InvalidArgument if text.contains("user name is empty") => {
            let what = "etcd requires a login by now: write `etcd://user:password@host`";
            EtcdFailure::Refused(BackendError::new(BackendErrorKind::Denied, what))
        }
        // After an outdated login, the next connection logs in again.
        _ if passes(status) => EtcdFailure::passing(told),
        Code::PermissionDenied => refused(BackendErrorKind::Denied),
        Code::ResourceExhausted => refused(BackendErrorKind::Operator),
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition | Code::Unimplemented => {
            refused(BackendErrorKind::Refused)
        }
        // For example, a change of leaders.
        _ => EtcdFailure::passing(told).in_doubt(),
    }
}

/// Opens connections, to one member after the other.
pub(super) struct MemberConnector {
    endpoints: Arc<[String]>,
    login: Option<Login>,
    tls: Option<GrpcTls>,
    /// Number of connection attempts so far: selects the member.
    next: Arc<AtomicUsize>,
}

/// A connection to one member.
pub(super) struct MemberConnection {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl MemberConnection {
    pub(super) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(super) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    pub(super) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone())
    }

    /// A request for a stream that ends if the member loses its leader: a partitioned member would keep it
    /// open and send nothing.
    pub(super) fn request_with_leader<T>(&self, message: T) -> Request<T> {
        let mut request = self.request(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        request
    }

    /// A request with the login's token.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

impl Connect for MemberConnector {
    type Connection = MemberConnection;

    fn connect(&self) -> BoxFuture<'static, Result<MemberConnection, BackendError>> {
        let (endpoints, login, tls, next) =
            (self.endpoints.clone(), self.login.clone(), self.tls.clone(), self.next.clone());
        Box::pin(async move {
            let mut failures = Vec::with_capacity(endpoints.len());
            for _ in 0..endpoints.len() {
                let endpoint = &endpoints[next.fetch_add(1, Ordering::Relaxed) % endpoints.len()];
                let opened = timeout(MEMBER_LIMIT, open(endpoint, login.as_ref(), tls.as_ref())).await;
                match opened.unwrap_or_else(|_| {
                    Err(MemberFailure::Silent(format!("no answer within {MEMBER_LIMIT:?}")))
                }) {
                    Ok(connection) => return Ok(connection),
                    Err(MemberFailure::Refused(error)) => return Err(error),
                    Err(MemberFailure::Silent(why)) => failures.push(format!("{endpoint}: {why}")),
                }
            }
            let what = format!("no member of etcd answers ({})", failures.join("; "));
            Err(BackendError::new(BackendErrorKind::Unreachable, what))
        })
    }

    fn is_usable(&self, _: &MemberConnection) -> bool {
        true
    }
}

/// Why a member can't be used.
enum MemberFailure {
    Silent(String),
    Refused(BackendError),
}

impl From<Status> for MemberFailure {
    fn from(status: Status) -> Self {
        let text = status.message();
        match status.code() {
            // Users were changed after this login.
            Code::InvalidArgument if text.contains("revision of auth store is old") => {
                Self::Silent(text.to_owned())
            }
            Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::FailedPrecondition
                if transport_failure(&status).is_none() && !passes(&status) =>
            {
                let what = format!("etcd refuses the login: {text}; correct user and password in the URL");
                Self::Refused(BackendError::new(BackendErrorKind::Denied, what))
            }
            _ => Self::Silent(text.to_owned()),
        }
    }
}

/// Connects to a member, logs in, and reads something that needs a majority.
async fn open(
    endpoint: &str,
    login: Option<&Login>,
    tls: Option<&GrpcTls>,
) -> Result<MemberConnection, MemberFailure> {
    let silent = |error: tonic::transport::Error| MemberFailure::Silent(innermost(&error));
    let channel = grpc::endpoint(endpoint, tls)
        .map_err(silent)?
        .connect_timeout(MEMBER_LIMIT)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(PING.0))
        .http2_keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .connect()
        .await
        .map_err(silent)?;
    let mut connection = MemberConnection { channel, token: None };
    if let Some(Login { user, password }) = login {
        let login = AuthenticateRequest { name: user.clone(), password: password.reveal() };
        match AuthClient::new(connection.channel.clone()).authenticate(login).await {
            Ok(answer) => connection.token = answer.into_inner().token.parse().ok(),
            // Logins are not required (`etcdctl auth disable`). If they become required, calls fail and the
            // next connection logs in.
            Err(status) if status.message().contains("authentication is not enabled") => {}
            Err(status) => return Err(status.into()),
        }
    }
    let any = RangeRequest { key: b"lockkeeper".to_vec(), count_only: true, ..RangeRequest::default() };
    match connection.kv().range(connection.request(any)).await {
        // Not an error: the user may be permitted to read other keys.
        Err(status) if status.code() == Code::PermissionDenied => {}
        answer => drop(answer?),
    }
    Ok(connection)
}

/// The innermost cause, which is the most specific one.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Discards the connection when dropped; `mem::forget` prevents this.
struct DiscardOnDrop<'a>(&'a Used<MemberConnector>);

impl Drop for DiscardOnDrop<'_> {
    fn drop(&mut self) {
        self.0.discard();
    }
}
