//! What a client asks on its stream.

use lockkeeper_core::validate::{self, AcquireContent, SessionContent};
use lockkeeper_core::{Acquire, Command, IfBusy, Mode, OpenSession, Rejection, Seq, SessionId};

use crate::answer;
use crate::fields::{self, Malformed};
use crate::v1::{self, client_item::What, server_item};

/// The secret of a session: whoever shows it may attach.
pub type Secret = [u8; 16];

/// One item of a client's frame, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Open a session and attach it to this stream.
    Open(Open),
    /// Attach a session to this stream.
    Attach {
        /// Which.
        session: SessionId,
        /// Its secret.
        secret: Secret,
        /// The number of this attach.
        attach: u64,
    },
    /// A sign of life.
    KeepAlive {
        /// Whose.
        session: SessionId,
        /// To be given back.
        id: u64,
    },
    /// A command of a session: acquire, finish, set_value, downgrade or close, and nothing else.
    Command {
        /// Whose.
        session: SessionId,
        /// Its number; 0 for a close, which has none.
        seq: Seq,
        /// The command itself.
        command: Command,
    },
}

/// See [`Request::Open`]. Durations are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// Its secret.
    pub secret: Secret,
    /// How long the session lives without a keep-alive.
    pub ttl_ms: u64,
    /// How long its holds stay closed if it expires.
    pub lock_delay_ms: u64,
    /// The time left once its client closed the stream; 0 is off.
    pub linger_ms: u64,
    /// For people.
    pub label: String,
    /// The number of this attach.
    pub attach: u64,
}

impl Open {
    /// The command that the table sees: it learns the secret's hash only.
    #[must_use]
    pub fn command(&self, secret_hash: [u8; 32]) -> Command {
        Command::OpenSession(OpenSession {
            secret_hash,
            ttl_ms: self.ttl_ms,
            lock_delay_ms: self.lock_delay_ms,
            linger_ms: self.linger_ms,
            label: self.label.as_str().into(),
        })
    }
}

/// What tells the `open`s of one stream apart without repeating a secret.
#[must_use]
pub fn secret_prefix(secret: &Secret) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| secret[index]))
}

/// Why an item is no [`Request`].
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ItemError {
    /// Its content is not allowed. It names the command, so this answers it, and its stream goes on.
    ///
    /// The table does not see it, and its seq is not taken (R6): a repeat has the same content and the same answer.
    #[error("{}", refused.text)]
    Refused {
        /// Whose command; 0 for an `open`.
        session: u64,
        /// Which.
        seq: u64,
        /// The answer.
        refused: v1::Refused,
    },
    /// It names no command: nothing can be answered.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The requests among the items of a frame, and the answers to commands whose content is not allowed.
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
            // A refusal without them would be taken for one of an `open`, or of a sign of life.
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
                secret: fields::array(&attach.secret, "a session's secret")?,
                attach: attach.attach,
            }),
            Some(What::KeepAlive(alive)) => Ok(Self::KeepAlive { session, id: alive.id }),
            Some(What::Acquire(it)) => command(it.seq, checked_acquire(session, it)),
            Some(What::Finish(it)) => command(it.seq, Ok(finish(session, &it))),
            Some(What::SetValue(it)) => command(it.seq, checked_set_value(session, it)),
            Some(What::Downgrade(it)) => command(it.seq, Ok(downgrade(session, &it))),
            Some(What::Close(v1::CloseSession {})) => command(0, Ok(Command::CloseSession { session })),
        }
    }
}

/// Content that is not allowed, as it is answered.
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
    let secret = fields::array(&it.secret, "a session's secret")?;
    let content = SessionContent {
        ttl_ms: it.ttl_ms,
        lock_delay_ms: it.lock_delay_ms,
        linger_ms: it.linger_ms,
        label_bytes: it.label.len(),
    };
    content.check().map_err(|rejection| ItemError::Refused {
        session: 0,
        seq: 0,
        refused: v1::Refused { secret_prefix: secret_prefix(&secret), ..answer::refused(&rejection) },
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
    // Before the names are parsed: a request may have as many as fit a frame.
    let content = AcquireContent {
        names: it.names.len(),
        mode: fields::mode(it.mode, it.permits)?,
        subtree: it.subtree,
        keep_closed_ms: it.keep_closed_ms,
        value_bytes: it.value.len(),
        meta_bytes: it.meta.len(),
    };
    content.check()?;
    Ok(acquire(session, it)?)
}

fn checked_set_value(session: SessionId, it: v1::SetValue) -> Result<Command, Disallowed> {
    validate::value(it.value.len())?;
    Ok(set_value(session, it))
}

/// The log's too: what it has was checked before, by the limits of its time, and the table checks again.
pub(crate) fn acquire(session: SessionId, it: v1::Acquire) -> Result<Command, Malformed> {
    Ok(Command::Acquire(Acquire {
        session,
        seq: Seq(it.seq),
        done_through: Seq(it.done_through),
        names: fields::names(&it.names)?,
        mode: fields::mode(it.mode, it.permits)?,
        subtree: it.subtree,
        if_busy: if it.wait { IfBusy::Wait { at_most_ms: it.at_most_ms } } else { IfBusy::Fail },
        keep_closed_ms: it.keep_closed_ms,
        value: it.value.into(),
        meta: it.meta.into(),
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

/// An acquire as it travels and as the log keeps it.
#[must_use]
pub fn acquire_message(it: &Acquire) -> v1::Acquire {
    let (wait, at_most_ms) = match it.if_busy {
        IfBusy::Fail => (false, None),
        IfBusy::Wait { at_most_ms } => (true, at_most_ms),
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
        at_most_ms,
        keep_closed_ms: it.keep_closed_ms,
        value: it.value.to_vec(),
        meta: it.meta.to_vec(),
    }
}

impl From<Request> for v1::ClientItem {
    fn from(request: Request) -> Self {
        match request {
            Request::Open(open) => Self {
                session: 0,
                what: Some(What::Open(v1::OpenSession {
                    secret: open.secret.to_vec(),
                    ttl_ms: open.ttl_ms,
                    lock_delay_ms: open.lock_delay_ms,
                    linger_ms: open.linger_ms,
                    label: open.label,
                    attach: open.attach,
                })),
            },
            Request::Attach { session, secret, attach } => Self {
                session: session.0,
                what: Some(What::Attach(v1::AttachSession { secret: secret.to_vec(), attach })),
            },
            Request::KeepAlive { session, id } => {
                Self { session: session.0, what: Some(What::KeepAlive(v1::KeepAlive { id })) }
            }
            Request::Command { session, command, .. } => {
                Self { session: session.0, what: command_item(command) }
            }
        }
    }
}

/// `None` for commands that are no client's: nothing makes a [`Request::Command`] of them.
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
        Command::Downgrade { seq, target, done_through, .. } => Some(What::Downgrade(v1::Downgrade {
            seq: seq.0,
            target: target.0,
            done_through: done_through.0,
        })),
        Command::CloseSession { .. } => Some(What::Close(v1::CloseSession {})),
        _ => None,
    }
}
