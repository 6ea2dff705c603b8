//! Encoding of the fields of an item: numbers as varints of the shortest form, and a length before each list
//! and each byte string of variable length.
//!
//! Used for snapshots and their digests: between nodes, on their disks, in backups, and in the records of the
//! `file:` backend. The wire crate encodes commands and messages. Every value has exactly one valid encoding,
//! so a decoded item has the digest of the encoded one.

use std::borrow::Borrow;

use unsigned_varint::{decode, encode};

use super::view::{PhaseView, RequestView};
use super::{Caching, KeptAnswer, Phase, RequestState, SessionState};
use crate::cycle::Cycle;
use crate::name::LockName;
use crate::reply::{End, Rejection, Reply};
use crate::table::SnapshotError;
use crate::types::{Fingerprint, ModeKind, Seq, SessionId, Slot, Ticket, Token, WallTime};

pub(super) struct ItemWriter<'a>(&'a mut Vec<u8>);

impl<'a> ItemWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub(super) fn number(&mut self, value: u64) {
        self.0.extend_from_slice(encode::u64(value, &mut encode::u64_buffer()));
    }

    fn option(&mut self, value: Option<u64>) {
        self.flag(value.is_some());
        if let Some(value) = value {
            self.number(value);
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    fn list<T>(&mut self, items: impl ExactSizeIterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        self.number(items.len() as u64);
        items.for_each(|item| each(self, item));
    }

    pub(super) fn session(&mut self, session: &SessionState) {
        self.number(session.id.0);
        self.raw(&session.secret_hash);
        self.number(session.ttl_ms);
        self.number(session.lock_delay_ms);
        self.number(session.linger_ms);
        self.bytes(session.label.as_bytes());
        self.number(session.highest.0);
        self.number(session.done_through.0);
        self.list(session.kept.iter(), |w, kept| {
            w.number(kept.seq.0);
            w.option(kept.until.map(|until| until.0));
            w.raw(&kept.fingerprint.0.to_le_bytes());
            w.reply(&kept.reply);
        });
    }

    pub(super) fn kind(&mut self, kind: ModeKind) {
        self.u8(match kind {
            ModeKind::Exclusive => 0,
            ModeKind::Shared => 1,
            ModeKind::Permit => 2,
        });
    }

    /// The fields of a request that are left out if all of them are empty.
    pub(super) fn caching<N>(&mut self, request: &RequestView<'_, N>) {
        self.u8(match request.caching {
            Caching::None => 0,
            Caching::Cached => 1,
            Caching::Recalled => 2,
            Caching::Try => 3,
        });
        self.number(u64::from(request.spare_tokens));
        self.list(request.holding.iter(), |w, token| w.number(token.get()));
    }

    pub(super) fn request(
        &mut self,
        request: RequestView<'_, impl ExactSizeIterator<Item = impl Borrow<LockName>>>,
    ) {
        self.number(request.ticket.0);
        self.flag(request.owner.is_some());
        if let Some((session, seq)) = request.owner {
            self.number(session.0);
            self.number(seq.0);
            self.raw(&request.fingerprint.0.to_le_bytes());
        }
        self.list(request.names, |w, name| w.bytes(name.borrow().as_str().as_bytes()));
        self.kind(request.mode);
        self.flag(request.subtree);
        self.number(request.keep_closed_ms);
        self.bytes(request.value);
        self.bytes(request.meta);
        match request.phase {
            PhaseView::Waiting { at_most_ms } => {
                self.u8(0);
                self.option(at_most_ms);
            }
            PhaseView::Held { token, slots } => {
                self.u8(1);
                self.hold(token, slots);
            }
            PhaseView::Revoked { token, slots, reason, by } => {
                self.u8(2);
                self.hold(token, slots);
                self.bytes(reason.as_bytes());
                self.bytes(by.as_bytes());
            }
            PhaseView::Closed { token, slots, ms } => {
                self.u8(3);
                self.hold(token, slots);
                self.number(ms);
            }
        }
    }

    fn hold(&mut self, token: Token, slots: &[Slot]) {
        self.number(token.get());
        self.list(slots.iter(), |w, &slot| w.number(u64::from(slot)));
    }

    /// Encodes a reply that a session can keep; a table stores no others (R3, R6).
    fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Finished(end) => {
                self.u8(0);
                self.u8(*end as u8);
            }
            Reply::Busy { holder, queued_ahead } => {
                self.u8(1);
                self.option(holder.map(|holder| holder.0));
                self.number(*queued_ahead);
            }
            Reply::Done => self.u8(2),
            Reply::Revoked { token } => {
                self.u8(3);
                self.number(token.get());
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
            R::TableFull => (14, 0),
            R::SpareTokens { asked } => (15, u64::from(*asked)),
            R::NotCacheable => (16, 0),
            R::HoldingCount { count } => (17, *count as u64),
            R::Deadlock { .. } => (18, 0),
            other => unreachable!("{other:?} is not an answer that a session keeps"),
        };
        self.u8(tag);
        self.number(number);
        if let R::LimitMismatch { name, .. } | R::NoLimit { name } | R::TooManyWaiters { name } = rejection {
            self.bytes(name.as_str().as_bytes());
        }
    }
}

pub(super) struct ItemReader<'a>(&'a [u8]);

type Read<T> = Result<T, SnapshotError>;

impl<'a> ItemReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns an error if unread bytes are left.
    pub(super) fn end(&self) -> Read<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(SnapshotError(format!("{} bytes are left over in an item", self.0.len())))
        }
    }

    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        match self.0.split_at_checked(count) {
            Some((head, rest)) => {
                self.0 = rest;
                Ok(head)
            }
            None => Err(SnapshotError(format!("it ends {} bytes too early", count - self.0.len()))),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn flag(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(SnapshotError(format!("{other} is neither yes nor no"))),
        }
    }

    pub(super) fn number(&mut self) -> Read<u64> {
        let (value, rest) =
            decode::u64(self.0).map_err(|why| SnapshotError(format!("a number is malformed: {why}")))?;
        self.0 = rest;
        Ok(value)
    }

    /// Reads a number into a narrower type.
    pub(super) fn narrow<T: TryFrom<u64>>(&mut self) -> Read<T> {
        narrow(self.number()?)
    }

    /// A time that is known: an unknown one is left out, so each item has one encoding.
    pub(super) fn wall_time(&mut self) -> Read<WallTime> {
        match self.number()? {
            0 => Err(SnapshotError("a time is 0".to_owned())),
            time => Ok(WallTime(time)),
        }
    }

    fn option(&mut self) -> Read<Option<u64>> {
        if self.flag()? { self.number().map(Some) } else { Ok(None) }
    }

    fn slice(&mut self) -> Read<&'a [u8]> {
        let length = self.narrow()?;
        self.take(length)
    }

    fn bytes(&mut self) -> Read<Box<[u8]>> {
        self.slice().map(Into::into)
    }

    fn text(&mut self) -> Read<Box<str>> {
        std::str::from_utf8(self.slice()?)
            .map(Into::into)
            .map_err(|_| SnapshotError("a text is not UTF-8".to_owned()))
    }

    pub(super) fn name(&mut self) -> Read<LockName> {
        LockName::parse_bytes(self.slice()?).map_err(|e| SnapshotError(e.to_string()))
    }

    fn token(&mut self) -> Read<Token> {
        Token::try_from(self.number()?).map_err(|error| SnapshotError(error.to_string()))
    }

    /// Reads a list whose elements have at least `least` bytes each. So a wrong count in the input can't
    /// cause an allocation of more than a small multiple of the input's size.
    fn list<T>(&mut self, least: usize, mut each: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let count: usize = self.narrow()?;
        let mut items = Vec::with_capacity(count.min(self.0.len() / least));
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }

    fn fingerprint(&mut self) -> Read<Fingerprint> {
        self.array().map(u32::from_le_bytes).map(Fingerprint)
    }

    fn slots(&mut self) -> Read<Vec<Slot>> {
        self.list(1, Self::narrow)
    }

    pub(super) fn session(&mut self) -> Read<SessionState> {
        Ok(SessionState {
            id: SessionId(self.number()?),
            secret_hash: self.array()?,
            ttl_ms: self.number()?,
            lock_delay_ms: self.number()?,
            linger_ms: self.number()?,
            label: self.text()?,
            identity: Box::default(),
            highest: Seq(self.number()?),
            done_through: Seq(self.number()?),
            kept: self.list(8, |r| {
                let (seq, until) = (Seq(r.number()?), r.option()?.map(Seq));
                Ok(KeptAnswer { seq, fingerprint: r.fingerprint()?, reply: r.reply()?, until })
            })?,
        })
    }

    /// A session after its identity, which is not empty: each session has one encoding.
    pub(super) fn identified_session(&mut self) -> Read<SessionState> {
        let identity = self.text()?;
        match identity.is_empty() {
            true => Err(SnapshotError("a session with an identity has an empty one".to_owned())),
            false => Ok(SessionState { identity, ..self.session()? }),
        }
    }

    pub(super) fn kind(&mut self) -> Read<ModeKind> {
        match self.u8()? {
            0 => Ok(ModeKind::Exclusive),
            1 => Ok(ModeKind::Shared),
            2 => Ok(ModeKind::Permit),
            other => Err(SnapshotError(format!("{other} is not a mode"))),
        }
    }

    pub(super) fn caching(&mut self) -> Read<(Caching, u32, Box<[Token]>)> {
        let caching = match self.u8()? {
            0 => Caching::None,
            1 => Caching::Cached,
            2 => Caching::Recalled,
            3 => Caching::Try,
            other => return Err(SnapshotError(format!("{other} is no kind of a cached hold"))),
        };
        let (spare_tokens, holding) = (self.narrow()?, self.list(1, Self::token)?);
        if caching == Caching::None && spare_tokens == 0 && holding.is_empty() {
            return Err(SnapshotError("a request of version 5 has nothing of it".to_owned()));
        }
        Ok((caching, spare_tokens, holding.into()))
    }

    pub(super) fn request(&mut self) -> Read<RequestState> {
        let ticket = Ticket(self.number()?);
        let (owner, fingerprint) = match self.flag()? {
            true => (Some((SessionId(self.number()?), Seq(self.number()?))), self.fingerprint()?),
            false => (None, Fingerprint::default()),
        };
        Ok(RequestState {
            ticket,
            owner,
            fingerprint,
            names: self.list(2, Self::name)?,
            mode: self.kind()?,
            subtree: self.flag()?,
            keep_closed_ms: self.number()?,
            value: self.bytes()?,
            meta: self.bytes()?,
            since: WallTime::default(),
            caching: Caching::None,
            spare_tokens: 0,
            holding: Box::default(),
            phase: match self.u8()? {
                0 => Phase::Waiting { at_most_ms: self.option()? },
                1 => Phase::Held { token: self.token()?, slots: self.slots()? },
                2 => Phase::Revoked {
                    token: self.token()?,
                    slots: self.slots()?,
                    reason: self.text()?,
                    by: self.text()?,
                },
                3 => Phase::Closed { token: self.token()?, slots: self.slots()?, ms: self.number()? },
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
            1 => Reply::Busy { holder: self.option()?.map(SessionId), queued_ahead: self.number()? },
            2 => Reply::Done,
            3 => Reply::Revoked { token: self.token()? },
            4 => Reply::Refused(self.rejection()?),
            other => return Err(SnapshotError(format!("{other} is not a kept answer"))),
        })
    }

    fn rejection(&mut self) -> Read<Rejection> {
        use Rejection as R;
        let (tag, number) = (self.u8()?, self.number()?);
        if matches!(tag, 1 | 7 | 10..=14 | 16 | 18) && number != 0 {
            return Err(SnapshotError(format!("rejection {tag} has no number, here it has {number}")));
        }
        Ok(match tag {
            0 => R::NameCount { count: narrow(number)? },
            1 => R::PermitSubtree,
            2 => R::PermitCount { of: narrow(number)? },
            3 => R::KeepClosed { ms: number },
            4 => R::ValueTooLong { bytes: narrow(number)? },
            5 => R::MetaTooLong { bytes: narrow(number)? },
            6 => R::LimitMismatch { name: self.name()?, have: (number >> 32) as u32, asked: number as u32 },
            7 => R::NoLimit { name: self.name()? },
            8 => R::NotHeld { target: Seq(number) },
            9 => R::WrongMode { target: Seq(number) },
            10 => R::TooManyRequests,
            11 => R::TooManyWaiters { name: self.name()? },
            12 => R::TooManyClosedHolds,
            13 => R::TokensExhausted,
            14 => R::TableFull,
            15 => R::SpareTokens { asked: narrow(number)? },
            16 => R::NotCacheable,
            17 => R::HoldingCount { count: narrow(number)? },
            18 => R::Deadlock { cycle: Cycle::default() },
            other => return Err(SnapshotError(format!("{other} is not a rejection"))),
        })
    }
}

fn narrow<T: TryFrom<u64>>(value: u64) -> Read<T> {
    T::try_from(value).map_err(|_| SnapshotError(format!("the number {value} is too great for its place")))
}
