//! The main connection to a server, on the lease thread: for renewals, and for messages about entries, which Redis
//! sends as pushes (RESP3). It is replaced when it ends, and when a call on it has no answer. Messages may be lost
//! while there is none, so each new connection wakes all waiters.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
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
    present: watch::Receiver<Option<Connected>>,
    suspects: UnboundedSender<u64>,
    last_error: LastError,
    target: Arc<Target>,
}

/// The error of the last failed attempt to connect, while there is no connection.
type LastError = Arc<Mutex<Option<String>>>;

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
        let (suspects, suspected) = unbounded_channel();
        let (opened_in, opened) = oneshot::channel();
        let (last_error, target) = (LastError::default(), Arc::new(target));
        let keeper = Keeper {
            target: target.clone(),
            wakes,
            channel: layout::channel(client),
            suspects: suspects.clone(),
            last_error: last_error.clone(),
        };
        lease_thread.run(Box::pin(async move {
            match keeper.connect(0).await {
                Ok(connected) => {
                    let (present_in, present) = watch::channel(Some(connected));
                    if opened_in.send(Ok(present)).is_ok() {
                        keeper.keep(present_in, suspected).await;
                    }
                }
                // The caller may have stopped waiting.
                Err(error) => drop(opened_in.send(Err(error))),
            }
        }));
        let present = opened.await.unwrap_or_else(|_| Err(refusal::no_thread().into()))?;
        Ok(Self { present, suspects, last_error, target })
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// The connection, or the next one that is established.
    pub(super) async fn established(&self) -> Result<Connected, BackendError> {
        let mut present = self.present.clone();
        let established = present.wait_for(Option::is_some).await.ok().and_then(|connected| connected.clone());
        established.ok_or_else(refusal::no_thread)
    }

    /// The number of the connection; `None` while there is none.
    pub(super) fn number(&self) -> Option<u64> {
        self.present.borrow().as_ref().map(|connected| connected.number)
    }

    /// Why there is no connection, if known.
    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the connection of this number.
    pub(super) fn replace(&self, number: u64) {
        // The receiver lives as long as this.
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
    last_error: LastError,
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
    async fn keep(self, present: watch::Sender<Option<Connected>>, mut suspected: UnboundedReceiver<u64>) {
        let mut number = 0;
        loop {
            tokio::select! {
                () = present.closed() => return,
                Some(suspect) = suspected.recv() => if suspect != number { continue },
            }
            present.send_replace(None);
            number += 1;
            tokio::select! {
                () = present.closed() => return,
                connected = self.connect_at_last(number) => present.send_replace(Some(connected)),
            };
            self.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
        }
    }

    fn set_last_error(&self, error: Option<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    async fn connect_at_last(&self, number: u64) -> Connected {
        let mut pause = PAUSES.0;
        loop {
            match self.connect(number).await {
                Ok(connected) => {
                    self.set_last_error(None);
                    return connected;
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection to Redis yet");
                    self.set_last_error(Some(error.to_string()));
                }
            }
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
