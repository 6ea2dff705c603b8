//! Commands as stored in the log.

use lockkeeper_core::{Break, Command, OpenSession, Seq, SessionId, WallTime};
use prost::Message;

use crate::fields::{self, Malformed, malformed};
use crate::request;
use crate::store::{self, command::What};
use crate::v1;

/// Encodes a log entry that applies these commands in this order.
#[must_use]
pub fn encode_batch<'a>(commands: impl Iterator<Item = &'a Command>) -> Vec<u8> {
    store::Batch { commands: commands.map(store::Command::from).collect() }.encode_to_vec()
}

/// Decodes the commands of a log entry.
///
/// # Errors
/// [`Malformed`] if the bytes are not valid; a newer version may have written them.
pub fn decode_batch(bytes: &[u8]) -> Result<Vec<Command>, Malformed> {
    let batch = store::Batch::decode(bytes).map_err(|error| Malformed(error.to_string()))?;
    batch.commands.into_iter().map(Command::try_from).collect()
}

impl From<&Command> for store::Command {
    fn from(command: &Command) -> Self {
        let of = |session: &SessionId, what| Self { session: session.0, what: Some(what) };
        let own = |what| Self { session: 0, what: Some(what) };
        match command {
            Command::OpenSession(open) => own(What::OpenSession(store::OpenSession {
                secret_hash: open.secret_hash.to_vec(),
                ttl_ms: open.ttl_ms,
                lock_delay_ms: open.lock_delay_ms,
                linger_ms: open.linger_ms,
                label: open.label.to_string(),
                identity: open.identity.to_string(),
            })),
            Command::CloseSession { session } => of(session, What::CloseSession(v1::CloseSession {})),
            Command::ExpireSession { session } => of(session, What::ExpireSession(store::ExpireSession {})),
            Command::TimeOut { session, target } => {
                of(session, What::TimeOut(store::TimeOut { target: target.0 }))
            }
            Command::EndDelay { token } => own(What::EndDelay(store::EndDelay { token: token.get() })),
            Command::EndRevoked { token } => own(What::EndRevoked(store::EndRevoked { token: token.get() })),
            Command::Acquire(it) => of(&it.session, What::Acquire(request::acquire_message(it))),
            Command::Finish { session, seq, target, done_through } => of(
                session,
                What::Finish(v1::Finish { seq: seq.0, target: target.0, done_through: done_through.0 }),
            ),
            Command::SetValue { session, seq, target, value, done_through } => of(
                session,
                What::SetValue(v1::SetValue {
                    seq: seq.0,
                    target: target.0,
                    done_through: done_through.0,
                    value: value.to_vec(),
                }),
            ),
            Command::Downgrade { session, seq, target, done_through } => of(
                session,
                What::Downgrade(v1::Downgrade { seq: seq.0, target: target.0, done_through: done_through.0 }),
            ),
            Command::Settle { session, seq, target, done_through } => of(
                session,
                What::Settle(v1::Settle { seq: seq.0, target: target.0, done_through: done_through.0 }),
            ),
            Command::SetLimit { name, limit } => {
                own(What::SetLimit(store::SetLimit { name: name.to_string(), permits: *limit }))
            }
            Command::Break(order) => own(What::Break(store::Break {
                name: order.name.to_string(),
                token: order.token.get(),
                reason: order.reason.to_string(),
                by: order.by.to_string(),
                now: order.now,
            })),
            Command::RaiseTokens { above } => own(What::RaiseTokens(store::RaiseTokens { above: *above })),
            Command::RaiseRules { version } => own(What::RaiseRules(store::RaiseRules { version: *version })),
            Command::SetClock { now } => own(What::SetClock(store::SetClock { now_unix_ms: now.0 })),
            Command::Resume => own(What::Resume(store::Resume {})),
        }
    }
}

impl TryFrom<store::Command> for Command {
    type Error = Malformed;

    fn try_from(command: store::Command) -> Result<Self, Malformed> {
        let session = SessionId(command.session);
        Ok(match command.what {
            None => return malformed("the log holds a command that this version does not know"),
            Some(What::OpenSession(open)) => Self::OpenSession(OpenSession {
                secret_hash: fields::array(&open.secret_hash, "a secret's hash")?,
                ttl_ms: open.ttl_ms,
                lock_delay_ms: open.lock_delay_ms,
                linger_ms: open.linger_ms,
                label: open.label.into(),
                identity: open.identity.into(),
            }),
            Some(What::CloseSession(v1::CloseSession {})) => Self::CloseSession { session },
            Some(What::ExpireSession(store::ExpireSession {})) => Self::ExpireSession { session },
            Some(What::TimeOut(it)) => Self::TimeOut { session, target: Seq(it.target) },
            Some(What::EndDelay(it)) => Self::EndDelay { token: fields::token(it.token)? },
            Some(What::EndRevoked(it)) => Self::EndRevoked { token: fields::token(it.token)? },
            Some(What::Acquire(it)) => request::acquire(session, it)?,
            Some(What::Finish(it)) => request::finish(session, &it),
            Some(What::SetValue(it)) => request::set_value(session, it),
            Some(What::Downgrade(it)) => request::downgrade(session, &it),
            Some(What::Settle(it)) => request::settle(session, &it),
            Some(What::SetLimit(it)) => Self::SetLimit { name: fields::name(&it.name)?, limit: it.permits },
            Some(What::Break(it)) => Self::Break(Break {
                name: fields::name(&it.name)?,
                token: fields::token(it.token)?,
                reason: it.reason.into(),
                by: it.by.into(),
                now: it.now,
            }),
            Some(What::RaiseTokens(it)) => Self::RaiseTokens { above: it.above },
            Some(What::RaiseRules(it)) => Self::RaiseRules { version: it.version },
            Some(What::SetClock(it)) => Self::SetClock { now: WallTime(it.now_unix_ms) },
            Some(What::Resume(store::Resume {})) => Self::Resume,
        })
    }
}
