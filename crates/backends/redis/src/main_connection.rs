//! The main connection to a server, on the lease thread: for renewals, and for messages about entries, which
//! Redis sends as pushes (RESP3; over RESP2, on a connection of their own). It is replaced when it ends, and
//! when a call on it has no answer. Messages may be lost while there is none, so each new connection wakes
//! all waiters.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{EntryId, Wake, Wakes};
use lockkeeper_backend::{BackendError, ConnectError};
use redis::{PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::unconstrained;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::dial::{Dialer, RedisConnection, without_time_limit};
use super::layout;
use super::refusal::{self, PASSING_PAUSE};
use super::role;
use super::target::Target;

/// Time limit for a new connection, with its handshake and subscription.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Clones share the connection, which is kept up until all of them are dropped.
#[derive(Clone)]
pub(super) struct MainConnection {
    /// The connection, or why there is none.
    state: watch::Receiver<Result<Connected, ConnectError>>,
    suspects: UnboundedSender<u64>,
    target: Arc<Target>,
}

/// An established main connection.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) connection: RedisConnection,
    /// Counts the main connections to this server.
    pub(super) number: u64,
    /// Where and how it was opened.
    pub(super) dialer: Dialer,
    /// Receives messages, if they arrive on a connection of their own.
    _messages: Option<Arc<AbortOnDropHandle<()>>>,
}

impl MainConnection {
    /// Connects on the lease thread, which then keeps the connection up.
    pub(super) async fn open(
        target: Target,
        lease_thread: &LeaseThread,
        wakes: Wakes,
        client: &str,
    ) -> Result<Self, ConnectError> {
        let target = Arc::new(target);
        let (suspects, suspected) = unbounded_channel();
        let (state_in, mut state) = watch::channel(Err(refusal::lost(&target).into()));
        let (channel, keeper_suspects) = (layout::channel(client), suspects.clone());
        let keeper = Keeper { target: target.clone(), wakes, channel, suspects: keeper_suspects };
        lease_thread.run(Box::pin(keeper.keep(state_in, suspected)));
        state.changed().await.map_err(|_| refusal::no_thread())?;
        let first = state.borrow_and_update().clone();
        first.map(|_| Self { state, suspects, target })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// The connection, or the next one that is established.
    pub(super) async fn established(&self) -> Result<Connected, BackendError> {
        let mut state = self.state.clone();
        let established = state.wait_for(Result::is_ok).await.ok().and_then(|state| state.clone().ok());
        established.ok_or_else(refusal::no_thread)
    }

    /// The number of the connection; `None` while there is none.
    pub(super) fn number(&self) -> Option<u64> {
        self.state.borrow().as_ref().ok().map(|connected| connected.number)
    }

    /// Why there is no connection.
    pub(super) fn last_error(&self) -> Option<String> {
        self.state.borrow().as_ref().err().map(ConnectError::to_string)
    }

    /// Replaces the connection of this number.
    pub(super) fn replace(&self, number: u64) {
        // The keeper has the receiver until the last `MainConnection` is dropped.
        let _ = self.suspects.send(number);
    }
}

/// Why an attempt to connect failed.
enum NotConnected {
    /// A repeat may succeed soon.
    Passing(BackendError),
    Failed(ConnectError),
}

impl From<ConnectError> for NotConnected {
    fn from(error: ConnectError) -> Self {
        Self::Failed(error)
    }
}

/// Keeps a connection up.
struct Keeper {
    target: Arc<Target>,
    wakes: Wakes,
    channel: String,
    suspects: UnboundedSender<u64>,
}

impl Keeper {
    /// Connects, and repeats that while it fails for a reason that passes soon, up to the time limit.
    async fn connect(&self, number: u64) -> Result<Connected, ConnectError> {
        let mut passing = None;
        let connecting = async {
            loop {
                match self.attempt(number).await {
                    Err(NotConnected::Passing(error)) => passing = Some(error),
                    Err(NotConnected::Failed(error)) => return Err(error),
                    Ok(connected) => return Ok(connected),
                }
                sleep(PASSING_PAUSE).await;
            }
        };
        let connected = timeout(CONNECT_LIMIT, connecting).await;
        connected.unwrap_or_else(|_| {
            let late = || refusal::connecting_took_too_long(&self.target, CONNECT_LIMIT);
            Err(passing.unwrap_or_else(late).into())
        })
    }

    async fn attempt(&self, number: u64) -> Result<Connected, NotConnected> {
        let dialer = self.target.dialer().await?;
        let (connected, error) = match self.open(dialer.clone(), number).await {
            Ok(connected) => (connected, None),
            Err(error) if refusal::is_of_protocol(&error) => {
                match self.open(dialer.with_resp2(), number).await {
                    Ok(connected) => (connected, Some(error)),
                    Err(_) => return Err(self.failed(&error)),
                }
            }
            Err(error) => return Err(self.failed(&error)),
        };
        self.check(connected.connection.clone(), error).await?;
        Ok(connected)
    }

    fn failed(&self, error: &RedisError) -> NotConnected {
        let passing = refusal::is_passing(error);
        let error = refusal::of_connecting(error, &self.target);
        if passing { NotConnected::Passing(error) } else { NotConnected::Failed(error.into()) }
    }

    /// Opens a connection that receives the messages about entries. Over RESP2, which has no pushes, they
    /// arrive on another connection, whose end ends this one.
    async fn open(&self, dialer: Dialer, number: u64) -> RedisResult<Connected> {
        let (wakes, suspects) = (self.wakes.clone(), self.suspects.clone());
        if dialer.is_resp2() {
            let connection = dialer.connect(without_time_limit()).await?;
            let mut subscribed = dialer.subscribe().await?;
            subscribed.subscribe(&self.channel).await?;
            let mut messages = subscribed.into_on_message();
            // The client library queues messages without limit: each turn of this task takes all of them.
            let receiving = tokio::spawn(unconstrained(async move {
                while let Some(message) = messages.next().await {
                    deliver(&wakes, message.get_payload_bytes());
                }
                let _ = suspects.send(number);
            }));
            let messages = Some(Arc::new(AbortOnDropHandle::new(receiving)));
            return Ok(Connected { connection, number, dialer, _messages: messages });
        }
        let config = without_time_limit();
        let config = config.set_push_sender(move |push: PushInfo| match (&push.kind, &push.data[..]) {
            (PushKind::Disconnection, _) => suspects.send(number).map_err(drop),
            (PushKind::Message, [_, Value::BulkString(message)]) => {
                deliver(&wakes, message);
                Ok(())
            }
            _ => Ok(()),
        });
        let mut connection = dialer.connect(config).await?;
        connection.calls.subscribe(&self.channel).await?;
        Ok(Connected { connection, number, dialer, _messages: None })
    }

    /// Checks that the server can have locks: it runs scripts, and is no replica. `no_resp3`: why RESP2 is
    /// used; `INFO` then has the role, and the version.
    async fn check(
        &self,
        mut connection: RedisConnection,
        no_resp3: Option<RedisError>,
    ) -> Result<(), NotConnected> {
        let about = if no_resp3.is_some() { redis::cmd("INFO") } else { role::ask() };
        let mut checks = redis::pipe();
        checks.cmd("EVAL").arg("return 1").arg(0).add_command(about);
        let answers = connection.calls.send_packed_commands(&checks, 0, 2).await;
        let answers = answers.map_err(|error| self.failed(&error))?;
        let [script, about] = &answers[..] else {
            return Err(NotConnected::Passing(refusal::lost(&self.target)));
        };
        let refused = match script {
            Value::Int(1) => None,
            Value::ServerError(error) => refusal::of_first_script(error, &self.target),
            other => Some(refusal::unexpected(&*self.target, "EVAL", other)),
        };
        if let Some(refused) = refused {
            return Err(NotConnected::Failed(refused.into()));
        }
        if role::is_replica(about) && !self.target.may_be_replica() {
            let error = refusal::replica(&self.target.to_string());
            let passes = self.target.has_sentinels();
            return Err(if passes {
                NotConnected::Passing(error)
            } else {
                NotConnected::Failed(error.into())
            });
        }
        match no_resp3 {
            Some(error) if role::is_too_old(about) => {
                Err(NotConnected::Failed(refusal::of_connecting(&error, &self.target).into()))
            }
            _ => Ok(()),
        }
    }

    /// Runs until the last [`MainConnection`] is dropped.
    async fn keep(
        self,
        state: watch::Sender<Result<Connected, ConnectError>>,
        mut suspected: UnboundedReceiver<u64>,
    ) {
        let keeping = async {
            for number in 0.. {
                self.connect_at_last(number, &state).await;
                self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
                while suspected.recv().await != Some(number) {}
                drop(state.send_replace(Err(refusal::lost(&self.target).into())));
            }
        };
        tokio::select! {
            () = state.closed() => {}
            () = keeping => {}
        }
    }

    async fn connect_at_last(&self, number: u64, state: &watch::Sender<Result<Connected, ConnectError>>) {
        let mut pause = PAUSES.0;
        loop {
            let connected = self.connect(number).await;
            let error = connected.as_ref().err().cloned();
            drop(state.send_replace(connected));
            let Some(error) = error else { return };
            tracing::debug!(%error, "no connection to Redis yet");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Delivers a message on an entry: revoked, or the ms after which to try again.
fn deliver(wakes: &Wakes, message: &[u8]) {
    let message = std::str::from_utf8(message).ok();
    let Some((id, what)) = message.and_then(|message| message.split_once(' ')) else { return };
    let wake = match what.parse() {
        Ok(ms) => Wake::Try(Duration::from_millis(ms)),
        Err(_) if what == "revoked" => Wake::Revoked,
        Err(_) => return,
    };
    wakes.deliver(&EntryId(id.to_owned()), wake);
}
