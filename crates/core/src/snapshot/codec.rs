//! The canonical bytes of a snapshot: little-endian, lengths before contents, one format version in front.
//!
//! For digests and for state that never leaves one host. What crosses a network is the wire crate's. The bytes carry
//! no checksum: who stores them adds one.

use super::{KeptAnswer, LimitState, Phase, RequestState, SessionState, Snapshot};
use crate::name::LockName;
use crate::reply::{End, Rejection, Reply};
use crate::table::SnapshotError;
use crate::types::{ModeKind, Seq, SessionId, Ticket, Token};

/// Raised with every change of the layout.
const FORMAT: u8 = 1;

impl Snapshot {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer(vec![FORMAT]);
        w.u32(self.rules);
        w.u64(self.last_token);
        w.u64(self.last_ticket);
        w.u64(self.last_session);
        w.list(&self.sessions, Writer::session);
        w.list(&self.requests, Writer::request);
        w.list(&self.limits, |w, limit| {
            w.bytes(limit.name.as_str().as_bytes());
            w.u32(limit.limit);
            w.u8(u8::from(limit.stored));
        });
        w.0
    }

    /// Reads what [`Snapshot::encode`] wrote.
    ///
    /// # Errors
    /// [`SnapshotError`] for anything else; never panics, never allocates more than the input's size asks for.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut r = Reader(bytes);
        let format = r.u8()?;
        if format != FORMAT {
            return Err(SnapshotError(format!("its format is {format}, this program reads {FORMAT}")));
        }
        let snapshot = Self {
            rules: r.u32()?,
            last_token: r.u64()?,
            last_ticket: r.u64()?,
            last_session: r.u64()?,
            sessions: r.list(Reader::session)?,
            requests: r.list(Reader::request)?,
            limits: r.list(|r| Ok(LimitState { name: r.name()?, limit: r.u32()?, stored: r.u8()? != 0 }))?,
        };
        if r.0.is_empty() {
            Ok(snapshot)
        } else {
            Err(SnapshotError(format!("{} bytes are left over", r.0.len())))
        }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn option(&mut self, value: Option<u64>) {
        self.u8(u8::from(value.is_some()));
        self.u64(value.unwrap_or(0));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.u32(items.len() as u32);
        items.iter().for_each(|item| each(self, item));
    }

    fn session(&mut self, session: &SessionState) {
        self.u64(session.id.0);
        self.0.extend_from_slice(&session.secret_hash);
        self.u64(session.ttl_ms);
        self.u64(session.lock_delay_ms);
        self.u64(session.linger_ms);
        self.bytes(session.label.as_bytes());
        self.u64(session.highest.0);
        self.u64(session.done_through.0);
        self.list(&session.kept, |w, kept| {
            w.u64(kept.seq.0);
            w.option(kept.until.map(|until| until.0));
            w.reply(&kept.reply);
        });
    }

    fn request(&mut self, request: &RequestState) {
        self.u64(request.ticket.0);
        self.option(request.owner.map(|(session, _)| session.0));
        self.u64(request.owner.map_or(0, |(_, seq)| seq.0));
        self.list(&request.names, |w, name| w.bytes(name.as_str().as_bytes()));
        self.u8(match request.mode {
            ModeKind::Exclusive => 0,
            ModeKind::Shared => 1,
            ModeKind::Permit => 2,
        });
        self.u8(u8::from(request.subtree));
        self.u64(request.keep_closed_ms);
        self.bytes(&request.value);
        self.bytes(&request.meta);
        match &request.phase {
            Phase::Waiting { at_most_ms } => {
                self.u8(0);
                self.option(*at_most_ms);
            }
            Phase::Held { token, slots } => {
                self.u8(1);
                self.hold(*token, slots);
            }
            Phase::Revoked { token, slots, reason, by } => {
                self.u8(2);
                self.hold(*token, slots);
                self.bytes(reason.as_bytes());
                self.bytes(by.as_bytes());
            }
            Phase::Closed { token, slots, ms } => {
                self.u8(3);
                self.hold(*token, slots);
                self.u64(*ms);
            }
        }
    }

    fn hold(&mut self, token: Token, slots: &[u32]) {
        self.u64(token.get());
        self.list(slots, |w, &slot| w.u32(slot));
    }

    /// Only replies that a session keeps have bytes; a table keeps no other (R3, R6).
    fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Finished(end) => {
                self.u8(0);
                self.u8(*end as u8);
            }
            Reply::Busy { holder, queued_ahead } => {
                self.u8(1);
                self.option(holder.map(|holder| holder.0));
                self.u64(*queued_ahead);
            }
            Reply::Done => self.u8(2),
            Reply::Revoked { token } => {
                self.u8(3);
                self.u64(token.get());
            }
            Reply::Refused(rejection) => {
                self.u8(4);
                self.rejection(rejection);
            }
            other => unreachable!("{other:?} is not an answer that a session keeps"),
        }
    }

    fn rejection(&mut self, rejection: &Rejection) {
        use Rejection as R;
        let (tag, number) = match rejection {
            R::NameCount { count } => (0, *count as u64),
            R::PermitSubtree => (1, 0),
            R::PermitCount { of } => (2, u64::from(*of)),
            R::KeepClosed { ms } => (3, *ms),
            R::ValueTooLong { bytes } => (4, *bytes as u64),
            R::MetaTooLong { bytes } => (5, *bytes as u64),
            R::LimitMismatch { have, asked, .. } => (6, u64::from(*have) << 32 | u64::from(*asked)),
            R::NoLimit { .. } => (7, 0),
            R::NotHeld { target } => (8, target.0),
            R::WrongMode { target } => (9, target.0),
            R::TooManyRequests => (10, 0),
            R::TooManyWaiters { .. } => (11, 0),
            R::TooManyClosedHolds => (12, 0),
            R::TokensExhausted => (13, 0),
            other => unreachable!("{other:?} is not an answer that a session keeps"),
        };
        self.u8(tag);
        self.u64(number);
        if let R::LimitMismatch { name, .. } | R::NoLimit { name } | R::TooManyWaiters { name } = rejection {
            self.bytes(name.as_str().as_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

type Read<T> = Result<T, SnapshotError>;

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        match self.0.split_at_checked(count) {
            Some((head, rest)) => {
                self.0 = rest;
                Ok(head)
            }
            None => Err(SnapshotError(format!("it ends {} bytes too early", count - self.0.len()))),
        }
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn option(&mut self) -> Read<Option<u64>> {
        let (some, value) = (self.u8()?, self.u64()?);
        Ok((some != 0).then_some(value))
    }

    fn bytes(&mut self) -> Read<Box<[u8]>> {
        let length = self.u32()? as usize;
        self.take(length).map(Into::into)
    }

    fn text(&mut self) -> Read<Box<str>> {
        let length = self.u32()? as usize;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes)
            .map(Into::into)
            .map_err(|_| SnapshotError("a text is not UTF-8".to_owned()))
    }

    fn name(&mut self) -> Read<LockName> {
        let length = self.u32()? as usize;
        LockName::parse_bytes(self.take(length)?).map_err(|e| SnapshotError(e.to_string()))
    }

    fn token(&mut self) -> Read<Token> {
        let value = self.u64()?;
        Token::new(value).ok_or_else(|| SnapshotError(format!("{value} is not a token")))
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let count = self.u32()? as usize;
        // Every item takes at least a byte, so a false count can't make us allocate more than the input's size.
        let mut items = Vec::with_capacity(count.min(self.0.len() / 4));
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }

    fn session(&mut self) -> Read<SessionState> {
        Ok(SessionState {
            id: SessionId(self.u64()?),
            secret_hash: self.array()?,
            ttl_ms: self.u64()?,
            lock_delay_ms: self.u64()?,
            linger_ms: self.u64()?,
            label: self.text()?,
            highest: Seq(self.u64()?),
            done_through: Seq(self.u64()?),
            kept: self.list(|r| {
                let (seq, until) = (Seq(r.u64()?), r.option()?.map(Seq));
                Ok(KeptAnswer { seq, reply: r.reply()?, until })
            })?,
        })
    }

    fn request(&mut self) -> Read<RequestState> {
        let ticket = Ticket(self.u64()?);
        let (session, seq) = (self.option()?, self.u64()?);
        Ok(RequestState {
            ticket,
            owner: session.map(|session| (SessionId(session), Seq(seq))),
            names: self.list(Self::name)?,
            mode: match self.u8()? {
                0 => ModeKind::Exclusive,
                1 => ModeKind::Shared,
                2 => ModeKind::Permit,
                other => return Err(SnapshotError(format!("{other} is not a mode"))),
            },
            subtree: self.u8()? != 0,
            keep_closed_ms: self.u64()?,
            value: self.bytes()?,
            meta: self.bytes()?,
            phase: match self.u8()? {
                0 => Phase::Waiting { at_most_ms: self.option()? },
                1 => Phase::Held { token: self.token()?, slots: self.list(Self::u32)? },
                2 => Phase::Revoked {
                    token: self.token()?,
                    slots: self.list(Self::u32)?,
                    reason: self.text()?,
                    by: self.text()?,
                },
                3 => Phase::Closed { token: self.token()?, slots: self.list(Self::u32)?, ms: self.u64()? },
                other => return Err(SnapshotError(format!("{other} is not a phase"))),
            },
        })
    }

    fn reply(&mut self) -> Read<Reply> {
        Ok(match self.u8()? {
            0 => Reply::Finished(match self.u8()? {
                0 => End::Left,
                1 => End::Released,
                2 => End::Broken,
                3 => End::TimedOut,
                4 => End::NotAcquired,
                5 => End::Gone,
                other => return Err(SnapshotError(format!("{other} is not an end"))),
            }),
            1 => Reply::Busy { holder: self.option()?.map(SessionId), queued_ahead: self.u64()? },
            2 => Reply::Done,
            3 => Reply::Revoked { token: self.token()? },
            4 => Reply::Refused(self.rejection()?),
            other => return Err(SnapshotError(format!("{other} is not a kept answer"))),
        })
    }

    fn rejection(&mut self) -> Read<Rejection> {
        use Rejection as R;
        let (tag, number) = (self.u8()?, self.u64()?);
        Ok(match tag {
            0 => R::NameCount { count: number as usize },
            1 => R::PermitSubtree,
            2 => R::PermitCount { of: number as u32 },
            3 => R::KeepClosed { ms: number },
            4 => R::ValueTooLong { bytes: number as usize },
            5 => R::MetaTooLong { bytes: number as usize },
            6 => R::LimitMismatch { name: self.name()?, have: (number >> 32) as u32, asked: number as u32 },
            7 => R::NoLimit { name: self.name()? },
            8 => R::NotHeld { target: Seq(number) },
            9 => R::WrongMode { target: Seq(number) },
            10 => R::TooManyRequests,
            11 => R::TooManyWaiters { name: self.name()? },
            12 => R::TooManyClosedHolds,
            13 => R::TokensExhausted,
            other => return Err(SnapshotError(format!("{other} is not a rejection"))),
        })
    }
}
