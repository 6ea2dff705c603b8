//! The main connection to a server, on the lease thread: for renewals, and for messages about entries, which Redis
//! sends as pushes (RESP3). It is replaced when it ends, and when a call on it has no answer. Messages may be lost
//! while there is none, so each new connection wakes all waiters.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::layout;
use super::refusal;
use super::target::Target;
use crate::backends::leased::{EntryId, Wake, Wakes};
use crate::error::{BackendError, ConnectError};
use crate::io::LeaseThread;

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
    pub(super) connection: MultiplexedConnection,
    /// Counts the main connections to this server.
    pub(super) number: u64,
    /// Opens further connections to the same address.
    pub(super) client: redis::Client,
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

/// Without time limits of its own: each call has one.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Keeps a connection up.
struct Keeper {
    target: Arc<Target>,
    wakes: Wakes,
    channel: String,
    suspects: UnboundedSender<u64>,
}

impl Keeper {
    async fn connect(&self, number: u64) -> Result<Connected, ConnectError> {
        let connected = async {
            let client = self.target.client().await?;
            let (wakes, suspects) = (self.wakes.clone(), self.suspects.clone());
            let config = config().set_push_sender(move |push: PushInfo| match push.kind {
                PushKind::Disconnection => suspects.send(number).map_err(drop),
                _ => {
                    deliver(&wakes, &push);
                    Ok(())
                }
            });
            let opened = async {
                let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
                connection.subscribe(&self.channel).await?;
                Ok(connection)
            };
            let connection = opened.await.map_err(|error| refusal::of_connecting(&error, &self.target))?;
            Ok(Connected { connection, number, client })
        };
        let late = |_| refusal::connecting_took_too_long(&self.target, CONNECT_LIMIT);
        timeout(CONNECT_LIMIT, connected).await.map_err(late)?
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
fn deliver(wakes: &Wakes, push: &PushInfo) {
    let (PushKind::Message, [_, Value::BulkString(message)]) = (&push.kind, &push.data[..]) else { return };
    let Some((id, what)) = std::str::from_utf8(message).ok().and_then(|message| message.split_once(' '))
    else {
        return;
    };
    let wake = match what.parse() {
        Ok(ms) => Wake::Try(Duration::from_millis(ms)),
        Err(_) if what == "revoked" => Wake::Revoked,
        Err(_) => return,
    };
    wakes.deliver(&EntryId(id.to_owned()), wake);
}
