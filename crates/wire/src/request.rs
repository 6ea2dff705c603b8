//! The requests of a client on its stream.

use lockkeeper_core::validate::{self, AcquireContent, SessionContent};
use lockkeeper_core::{Acquire, Command, IfBusy, Mode, OpenSession, Rejection, Seq, SessionId};

use crate::answer;
use crate::fields::{self, Malformed};
use crate::v1::{self, client_item::What, server_item};

pub use crate::secret::Secret;

/// One validated item of a client's frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Opens a session and attaches it to this stream.
    Open(Open),
    /// Attaches a session to this stream.
    Attach {
        /// The session's id.
        session: SessionId,
        /// The session's secret.
        secret: Secret,
        /// The number of this attach.
        attach: u64,
    },
    /// A keep-alive.
    KeepAlive {
        /// The session that it keeps alive.
        session: SessionId,
        /// Returned in the answer.
        id: u64,
    },
    /// A command of a session: acquire, finish, set_value, downgrade, settle or close, and no other.
    Command {
        /// The session that sends it.
        session: SessionId,
        /// The command's number in its session; 0 for a close, which has none.
        seq: Seq,
        /// The command itself.
        command: Command,
    },
    /// A command or an `open` that the client is not permitted to send, or not now. It is answered with
    /// `refused`, unless it repeats a request that was accepted before: then it gets the answer to that
    /// request (P7).
    Denied {
        /// The request itself.
        request: Box<Request>,
        /// The answer to the client.
        refused: v1::Refused,
    },
}

/// See [`Request::Open`]. Durations are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// The session's secret.
    pub secret: Secret,
    /// The session's lifetime without a keep-alive.
    pub ttl_ms: u64,
    /// How long its holds stay closed if the session expires.
    pub lock_delay_ms: u64,
    /// The session's lifetime after its client closed the stream; 0: `linger` is off.
    pub linger_ms: u64,
    /// A description for people.
    pub label: String,
    /// The number of this attach.
    pub attach: u64,
}

impl Open {
    /// The part of the request that is stored in the table: the secret's hash instead of the secret.
    /// `identity`: the authenticated client; empty if unknown.
    #[must_use]
    pub fn session(&self, secret_hash: [u8; 32], identity: &str) -> OpenSession {
        OpenSession {
            secret_hash,
            ttl_ms: self.ttl_ms,
            lock_delay_ms: self.lock_delay_ms,
            linger_ms: self.linger_ms,
            label: self.label.as_str().into(),
            identity: identity.into(),
        }
    }
}

/// Why an item is not a valid [`Request`].
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ItemError {
    /// The content is not allowed. The service answers the item with this refusal, and the stream continues.
    ///
    /// The table does not receive the command, and the command's seq is not used up (R6): a repetition has
    /// the same content and gets the same answer.
    #[error("{}", refused.text)]
    Refused {
        /// The command's session; 0 for an `open`.
        session: u64,
        /// The command's number.
        seq: u64,
        /// The refusal to send.
        refused: v1::Refused,
    },
    /// The item is invalid and can't be answered with a refusal, since it names no command by session and
    /// seq, or has an invalid secret. The whole frame is refused, and the service ends the stream.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Converts the items of a frame into requests, and into refusals for commands whose content is not allowed.
///
/// # Errors
/// [`Malformed`] for an item that can't be answered.
pub fn requests(items: Vec<v1::ClientItem>) -> Result<(Vec<Request>, Vec<v1::ServerItem>), Malformed> {
    let mut refusals = Vec::new();
    let mut requests = Vec::with_capacity(items.len());
    for item in items {
        match Request::try_from(item) {
            Ok(request) => requests.push(request),
            Err(ItemError::Refused { session, seq, refused }) => {
                refusals.push(v1::ServerItem {
                    session,
                    seq,
                    what: Some(server_item::What::Refused(refused)),
                });
            }
            Err(ItemError::Malformed(malformed)) => return Err(malformed),
        }
    }
    Ok((requests, refusals))
}

impl TryFrom<v1::ClientItem> for Request {
    type Error = ItemError;

    fn try_from(item: v1::ClientItem) -> Result<Self, ItemError> {
        let session = SessionId(item.session);
        let command = |seq, checked: Result<Command, Disallowed>| match checked {
            Ok(command) => Ok(Self::Command { session, seq: Seq(seq), command }),
            // Without session and seq, the client would take the refusal for that of an `open` or a
            // keep-alive.
            Err(Disallowed(refused)) if session.0 == 0 || seq == 0 => {
                Err(ItemError::Malformed(Malformed(refused.text)))
            }
            Err(Disallowed(refused)) => Err(ItemError::Refused { session: session.0, seq, refused }),
        };
        match item.what {
            None => {
                Err(ItemError::Malformed(Malformed("an item says nothing that this version knows".into())))
            }
            Some(What::Open(it)) => open(it).map(Self::Open),
            Some(What::Attach(attach)) => Ok(Self::Attach {
                session,
                secret: Secret::from_wire(&attach.secret)?,
                attach: attach.attach,
            }),
            Some(What::KeepAlive(alive)) => Ok(Self::KeepAlive { session, id: alive.id }),
            Some(What::Acquire(it)) => command(it.seq, checked_acquire(session, it)),
            Some(What::Finish(it)) => command(it.seq, Ok(finish(session, &it))),
            Some(What::SetValue(it)) => command(it.seq, checked_set_value(session, it)),
            Some(What::Downgrade(it)) => command(it.seq, Ok(downgrade(session, &it))),
            Some(What::Settle(it)) => command(it.seq, Ok(settle(session, &it))),
            Some(What::Close(v1::CloseSession {})) => command(0, Ok(Command::CloseSession { session })),
        }
    }
}

/// The refusal of content that is not allowed.
struct Disallowed(v1::Refused);

impl From<Rejection> for Disallowed {
    fn from(rejection: Rejection) -> Self {
        Self(answer::refused(&rejection))
    }
}

impl From<Malformed> for Disallowed {
    fn from(Malformed(text): Malformed) -> Self {
        Self(v1::Refused { code: v1::RefusedCode::Invalid.into(), text, secret_prefix: 0 })
    }
}

fn open(it: v1::OpenSession) -> Result<Open, ItemError> {
    let secret = Secret::from_wire(&it.secret)?;
    let content = SessionContent {
        ttl_ms: it.ttl_ms,
        lock_delay_ms: it.lock_delay_ms,
        linger_ms: it.linger_ms,
        label_bytes: it.label.len(),
        // The client does not send the identity: the service adds it, after a check of its length.
        identity_bytes: 0,
    };
    content.check().map_err(|rejection| ItemError::Refused {
        session: 0,
        seq: 0,
        refused: v1::Refused { secret_prefix: secret.prefix(), ..answer::refused(&rejection) },
    })?;
    Ok(Open {
        secret,
        ttl_ms: it.ttl_ms,
        lock_delay_ms: it.lock_delay_ms,
        linger_ms: it.linger_ms,
        label: it.label,
        attach: it.attach,
    })
}

fn checked_acquire(session: SessionId, it: v1::Acquire) -> Result<Command, Disallowed> {
    // The number of names is checked before they are parsed: a request can contain as many names as fit a
    // frame.
    let content = AcquireContent {
        names: it.names.len(),
        mode: fields::mode(it.mode, it.permits)?,
        subtree: it.subtree,
        keep_closed_ms: it.keep_closed_ms,
        value_bytes: it.value.len(),
        meta_bytes: it.meta.len(),
        spare_tokens: it.spare_tokens,
        holding: it.holding.len(),
    };
    content.check()?;
    Ok(acquire(session, it)?)
}

fn checked_set_value(session: SessionId, it: v1::SetValue) -> Result<Command, Disallowed> {
    validate::value(it.value.len())?;
    Ok(set_value(session, it))
}

/// Also decodes acquires from the log, so no limits are checked here: the node that proposed the acquire has
/// checked them, with the limits of its version, and the table checks them again.
pub(crate) fn acquire(session: SessionId, it: v1::Acquire) -> Result<Command, Malformed> {
    Ok(Command::Acquire(Acquire {
        session,
        seq: Seq(it.seq),
        done_through: Seq(it.done_through),
        names: fields::names(&it.names)?,
        mode: fields::mode(it.mode, it.permits)?,
        subtree: it.subtree,
        if_busy: if it.wait {
            IfBusy::Wait { at_most_ms: it.at_most_ms, waiters_max: it.waiters_max }
        } else {
            IfBusy::Fail
        },
        keep_closed_ms: it.keep_closed_ms,
        value: it.value.into(),
        meta: it.meta.into(),
        spare_tokens: it.spare_tokens,
        holding: it.holding.into_iter().map(fields::token).collect::<Result<_, _>>()?,
    }))
}

pub(crate) fn finish(session: SessionId, it: &v1::Finish) -> Command {
    Command::Finish { session, seq: Seq(it.seq), target: Seq(it.target), done_through: Seq(it.done_through) }
}

pub(crate) fn set_value(session: SessionId, it: v1::SetValue) -> Command {
    Command::SetValue {
        session,
        seq: Seq(it.seq),
        target: Seq(it.target),
        value: it.value.into(),
        done_through: Seq(it.done_through),
    }
}

pub(crate) fn downgrade(session: SessionId, it: &v1::Downgrade) -> Command {
    Command::Downgrade {
        session,
        seq: Seq(it.seq),
        target: Seq(it.target),
        done_through: Seq(it.done_through),
    }
}

pub(crate) fn settle(session: SessionId, it: &v1::Settle) -> Command {
    Command::Settle { session, seq: Seq(it.seq), target: Seq(it.target), done_through: Seq(it.done_through) }
}

/// Encodes an acquire, for the wire and for the log. A trace context is no part of the command.
#[must_use]
pub fn acquire_message(it: &Acquire) -> v1::Acquire {
    let (wait, at_most_ms, waiters_max) = match it.if_busy {
        IfBusy::Fail => (false, None, None),
        IfBusy::Wait { at_most_ms, waiters_max } => (true, at_most_ms, waiters_max),
    };
    v1::Acquire {
        seq: it.seq.0,
        done_through: it.done_through.0,
        names: it.names.iter().map(|name| name.as_str().to_owned()).collect(),
        mode: fields::mode_number(it.mode.kind()).into(),
        permits: match it.mode {
            Mode::Permit { of } => of,
            Mode::Exclusive | Mode::Shared => None,
        },
        subtree: it.subtree,
        wait,
        waiters_max,
        at_most_ms,
        keep_closed_ms: it.keep_closed_ms,
        value: it.value.to_vec(),
        meta: it.meta.to_vec(),
        traceparent: String::new(),
        spare_tokens: it.spare_tokens,
        holding: it.holding.iter().map(|token| token.get()).collect(),
    }
}

impl From<Request> for v1::ClientItem {
    fn from(request: Request) -> Self {
        match request {
            Request::Open(open) => Self {
                session: 0,
                what: Some(What::Open(v1::OpenSession {
                    secret: open.secret.0.to_vec(),
                    ttl_ms: open.ttl_ms,
                    lock_delay_ms: open.lock_delay_ms,
                    linger_ms: open.linger_ms,
                    label: open.label,
                    attach: open.attach,
                })),
            },
            Request::Attach { session, secret, attach } => Self {
                session: session.0,
                what: Some(What::Attach(v1::AttachSession { secret: secret.0.to_vec(), attach })),
            },
            Request::KeepAlive { session, id } => {
                Self { session: session.0, what: Some(What::KeepAlive(v1::KeepAlive { id })) }
            }
            Request::Command { session, command, .. } => {
                Self { session: session.0, what: command_item(command) }
            }
            Request::Denied { request, .. } => Self::from(*request),
        }
    }
}

/// Returns `None` for commands that no client sends; [`Request::Command`] never contains such a command.
fn command_item(command: Command) -> Option<What> {
    match command {
        Command::Acquire(it) => Some(What::Acquire(acquire_message(&it))),
        Command::Finish { seq, target, done_through, .. } => {
            Some(What::Finish(v1::Finish { seq: seq.0, target: target.0, done_through: done_through.0 }))
        }
        Command::SetValue { seq, target, value, done_through, .. } => Some(What::SetValue(v1::SetValue {
            seq: seq.0,
            target: target.0,
            done_through: done_through.0,
            value: value.into(),
        })),
        Command::Settle { seq, target, done_through, .. } => {
            Some(What::Settle(v1::Settle { seq: seq.0, target: target.0, done_through: done_through.0 }))
        }
        Command::Downgrade { seq, target, done_through, .. } => Some(What::Downgrade(v1::Downgrade {
            seq: seq.0,
            target: target.0,
            done_through: done_through.0,
        })),
        Command::CloseSession { .. } => Some(What::Close(v1::CloseSession {})),
        Command::OpenSession(_)
        | Command::ExpireSession { .. }
        | Command::TimeOut { .. }
        | Command::EndDelay { .. }
        | Command::EndRevoked { .. }
        | Command::SetLimit { .. }
        | Command::Break(_)
        | Command::RaiseTokens { .. }
        | Command::RaiseRules { .. }
        | Command::SetClock { .. }
        | Command::Resume => None,
    }
}
