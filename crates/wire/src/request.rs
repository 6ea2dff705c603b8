//! What a client asks on its stream.

use lockkeeper_core::{Acquire, Command, IfBusy, Mode, OpenSession, Seq, SessionId, limits};

use crate::fields::{self, Malformed, malformed};
use crate::v1::{self, client_item::What};

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

impl TryFrom<v1::ClientItem> for Request {
    type Error = Malformed;

    fn try_from(item: v1::ClientItem) -> Result<Self, Malformed> {
        let session = SessionId(item.session);
        let command = |seq, command| Ok(Self::Command { session, seq: Seq(seq), command });
        match item.what {
            None => malformed("an item says nothing that this version knows"),
            Some(What::Open(open)) => Ok(Self::Open(open.try_into()?)),
            Some(What::Attach(attach)) => Ok(Self::Attach {
                session,
                secret: fields::array(&attach.secret, "a session's secret")?,
                attach: attach.attach,
            }),
            Some(What::KeepAlive(alive)) => Ok(Self::KeepAlive { session, id: alive.id }),
            Some(What::Acquire(it)) => command(it.seq, acquire(session, it)?),
            Some(What::Finish(it)) => command(it.seq, finish(session, &it)),
            Some(What::SetValue(it)) => command(it.seq, set_value(session, it)?),
            Some(What::Downgrade(it)) => command(it.seq, downgrade(session, &it)),
            Some(What::Close(v1::CloseSession {})) => command(0, Command::CloseSession { session }),
        }
    }
}

impl TryFrom<v1::OpenSession> for Open {
    type Error = Malformed;

    fn try_from(open: v1::OpenSession) -> Result<Self, Malformed> {
        Ok(Self {
            secret: fields::array(&open.secret, "a session's secret")?,
            ttl_ms: open.ttl_ms,
            lock_delay_ms: open.lock_delay_ms,
            linger_ms: open.linger_ms,
            label: short(open.label, "label")?,
            attach: open.attach,
        })
    }
}

/// Some over the limit pass: the table refuses them with its own words. Far over it nothing is kept.
fn short(text: String, what: &str) -> Result<String, Malformed> {
    match text.len() {
        bytes if bytes > 4 * limits::LABEL_BYTES_MAX => {
            malformed(format!("`{what}` has {bytes} bytes, at most {} are allowed", limits::LABEL_BYTES_MAX))
        }
        _ => Ok(text),
    }
}

/// As [`short`].
fn small(bytes: Vec<u8>, max: usize, what: &str) -> Result<Box<[u8]>, Malformed> {
    if bytes.len() > 2 * max {
        return malformed(format!("`{what}` has {} bytes, at most {max} are allowed", bytes.len()));
    }
    Ok(bytes.into())
}

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
        value: small(it.value, limits::VALUE_BYTES_MAX, "value")?,
        meta: small(it.meta, limits::META_BYTES_MAX, "meta")?,
    }))
}

pub(crate) fn finish(session: SessionId, it: &v1::Finish) -> Command {
    Command::Finish { session, seq: Seq(it.seq), target: Seq(it.target), done_through: Seq(it.done_through) }
}

pub(crate) fn set_value(session: SessionId, it: v1::SetValue) -> Result<Command, Malformed> {
    Ok(Command::SetValue {
        session,
        seq: Seq(it.seq),
        target: Seq(it.target),
        value: small(it.value, limits::VALUE_BYTES_MAX, "value")?,
        done_through: Seq(it.done_through),
    })
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
