//! The stream in which a snapshot is stored and sent: a header; one item for each session, request, limit,
//! ending session and freed name; an end item. Also its digest.
//!
//! An item is its length (varint), a tag, and its fields. So a stream can be split at any position, and be
//! read without storing all of it. The header comes first and the end last. The other items may come in any
//! order: the snapshot iterator (`table/snapshot_iterator.rs`) writes them in the order of their storage,
//! [`Snapshot::encode`] in canonical order. Readers order them by tickets, ids and names.
//!
//! **The digest doesn't depend on that order**: it is the wrapping sum of the xxh3-128 of every item except
//! the end, tag included. Nodes with the same state may store their entries in different orders, since their
//! histories of restarts differ, and their digests must still be equal. The digest is a sum instead of an
//! exclusive or, so that duplicates don't cancel out. The digest detects accidental damage and diverged
//! replicas; it is no defence against crafted items. The end item contains the digest, so that a stream with
//! a missing part is refused (P10).

use std::borrow::Borrow;
use std::ops::AddAssign;

use unsigned_varint::{decode, encode};
use xxhash_rust::xxh3::xxh3_128;

use super::codec::{ItemReader, ItemWriter};
use super::view::RequestView;
use super::{Caching, EndingState, FreedState, LimitState, RequestState, SessionState, Snapshot};
use crate::name::LockName;
use crate::table::SnapshotError;
use crate::types::{Ticket, WallTime};

/// Raised with every change of an item's layout. A digest depends on the layout, so only digests of the same
/// format can be compared.
pub const FORMAT: u64 = 4;
/// Maximum length of an item in bytes. It bounds the incomplete item that a reader stores. The largest legal
/// item is less than half as long: a session with 2^20 unconfirmed ends that its client did not request.
const ITEM_BYTES_MAX: u64 = 1 << 26;

const HEADER: u8 = 0;
const SESSION: u8 = 1;
const REQUEST: u8 = 2;
const LIMIT: u8 = 3;
const END: u8 = 4;
const ENDING: u8 = 5;
const FREED: u8 = 6;
/// A session with an identity, live or ending. Sessions without one are encoded as before version 2 of the
/// rules, so that nodes of both versions compute the same digest (V1).
const IDENTIFIED: u8 = 7;
const IDENTIFIED_ENDING: u8 = 8;
/// The leader's wall clock, and a request with its time: left out while unknown, as before version 3 of the
/// rules.
const CLOCK: u8 = 9;
const TIMED_REQUEST: u8 = 10;
/// A request with something that only version 5 of the rules knows, and its time, which may be unknown.
const CACHED_REQUEST: u8 = 11;

/// The counters of a table and its version of the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) rules: u32,
    pub(crate) last_token: u64,
    pub(crate) last_ticket: u64,
    pub(crate) last_session: u64,
    pub(crate) clock: WallTime,
}

/// Digest of the items so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Digest(pub(crate) u128);

impl AddAssign for Digest {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

/// Appends one item. One byte is reserved for the length; the content is moved only if its length takes more
/// than that.
fn put(out: &mut Vec<u8>, tag: u8, parts: impl FnOnce(&mut ItemWriter<'_>)) -> Digest {
    let at = out.len();
    out.extend_from_slice(&[0, tag]);
    parts(&mut ItemWriter::new(out));
    let digest = Digest(xxh3_128(&out[at + 1..]));
    let mut buffer = encode::usize_buffer();
    let length = encode::usize(out.len() - at - 1, &mut buffer);
    out[at] = length[0];
    if length.len() > 1 {
        out.splice(at + 1..at + 1, length[1..].iter().copied());
    }
    digest
}

/// Appends the header and, if it is known, the clock.
pub(crate) fn put_header(out: &mut Vec<u8>, header: &Header) -> Digest {
    let mut digest = put(out, HEADER, |w| {
        w.number(FORMAT);
        w.number(u64::from(header.rules));
        w.number(header.last_token);
        w.number(header.last_ticket);
        w.number(header.last_session);
    });
    if header.clock != WallTime::default() {
        digest += put(out, CLOCK, |w| w.number(header.clock.0));
    }
    digest
}

pub(crate) fn put_session(out: &mut Vec<u8>, session: &SessionState) -> Digest {
    match session.identity.as_bytes() {
        [] => put(out, SESSION, |w| w.session(session)),
        identity => put(out, IDENTIFIED, |w| {
            w.bytes(identity);
            w.session(session);
        }),
    }
}

pub(crate) fn put_request(
    out: &mut Vec<u8>,
    request: RequestView<'_, impl ExactSizeIterator<Item = impl Borrow<LockName>>>,
) -> Digest {
    if request.caching != Caching::None || request.spare_tokens > 0 || !request.holding.is_empty() {
        return put(out, CACHED_REQUEST, |w| {
            w.number(request.since.0);
            w.caching(&request);
            w.request(request);
        });
    }
    match request.since {
        WallTime(0) => put(out, REQUEST, |w| w.request(request)),
        WallTime(since) => put(out, TIMED_REQUEST, |w| {
            w.number(since);
            w.request(request);
        }),
    }
}

pub(crate) fn put_limit(out: &mut Vec<u8>, name: &str, limit: u32, stored: bool) -> Digest {
    put(out, LIMIT, |w| {
        w.bytes(name.as_bytes());
        w.number(u64::from(limit));
        w.flag(stored);
    })
}

pub(crate) fn put_ending(out: &mut Vec<u8>, ending: &EndingState) -> Digest {
    let identity = ending.session.identity.as_bytes();
    put(out, if identity.is_empty() { ENDING } else { IDENTIFIED_ENDING }, |w| {
        w.number(ending.delay_ms);
        if !identity.is_empty() {
            w.bytes(identity);
        }
        w.session(&ending.session);
    })
}

pub(crate) fn put_freed(out: &mut Vec<u8>, freed: &FreedState) -> Digest {
    put(out, FREED, |w| {
        w.number(freed.number);
        w.bytes(freed.name.as_str().as_bytes());
        w.flag(freed.subtree);
        w.kind(freed.kind);
        w.number(freed.after.0);
    })
}

/// Appends the end item, which contains the digest and is not part of the digest.
pub(crate) fn put_end(out: &mut Vec<u8>, digest: Digest) {
    let _of_the_end = put(out, END, |w| w.raw(&digest.0.to_le_bytes()));
}

impl Snapshot {
    pub(crate) fn header(&self) -> Header {
        Header {
            rules: self.rules,
            last_token: self.last_token,
            last_ticket: self.last_ticket,
            last_session: self.last_session,
            clock: self.clock,
        }
    }

    /// The stream in canonical order: equal tables have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let digest = self.put_items(&mut out);
        put_end(&mut out, digest);
        out
    }

    /// The digest: equal for equal tables, on every machine and in any order of the items.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.put_items(&mut Vec::new()).0
    }

    fn put_items(&self, out: &mut Vec<u8>) -> Digest {
        let mut digest = put_header(out, &self.header());
        for session in &self.sessions {
            digest += put_session(out, session);
        }
        for request in &self.requests {
            digest += put_request(out, request.view());
        }
        for limit in &self.limits {
            digest += put_limit(out, limit.name.as_str(), limit.limit, limit.stored);
        }
        for ending in &self.ending {
            digest += put_ending(out, ending);
        }
        for freed in &self.freed {
            digest += put_freed(out, freed);
        }
        digest
    }

    /// Decodes a whole stream with its items in any order.
    ///
    /// # Errors
    /// [`SnapshotError`] if it is not a valid snapshot. Never panics, and allocates at most a small multiple
    /// of the input's size.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut snapshot = Self::default();
        let mut stream = StreamReader::default();
        stream.push(bytes, |item| {
            match item {
                SnapshotItem::Header(header) => {
                    snapshot.rules = header.rules;
                    snapshot.last_token = header.last_token;
                    snapshot.last_ticket = header.last_ticket;
                    snapshot.last_session = header.last_session;
                }
                SnapshotItem::Clock(_) if snapshot.clock != WallTime::default() => {
                    return refuse("it has two times of the leader's clock");
                }
                SnapshotItem::Clock(clock) => snapshot.clock = clock,
                SnapshotItem::Session(session) => snapshot.sessions.push(session),
                SnapshotItem::Request(request) => snapshot.requests.push(request),
                SnapshotItem::Limit(limit) => snapshot.limits.push(limit),
                SnapshotItem::Ending(ending) => snapshot.ending.push(ending),
                SnapshotItem::Freed(freed) => snapshot.freed.push(freed),
            }
            Ok(())
        })?;
        stream.finish()?;
        snapshot.sessions.sort_by_key(|session| session.id);
        snapshot.requests.sort_by_key(|request| request.ticket);
        snapshot.limits.sort_by(|a, b| a.name.cmp(&b.name));
        snapshot.ending.sort_by_key(|ending| ending.session.id);
        snapshot.freed.sort_by_key(|freed| freed.number);
        let twice = snapshot.sessions.windows(2).any(|pair| pair[0].id == pair[1].id)
            || snapshot.requests.windows(2).any(|pair| pair[0].ticket == pair[1].ticket)
            || snapshot.limits.windows(2).any(|pair| pair[0].name == pair[1].name)
            || snapshot.ending.windows(2).any(|pair| pair[0].session.id == pair[1].session.id)
            || snapshot.freed.windows(2).any(|pair| pair[0].number == pair[1].number);
        if twice { refuse("a session, ticket, limit or freed name appears twice") } else { Ok(snapshot) }
    }
}

/// An item of a stream, except its end.
pub(crate) enum SnapshotItem {
    Header(Header),
    Clock(WallTime),
    Session(SessionState),
    Request(RequestState),
    Limit(LimitState),
    Ending(EndingState),
    Freed(FreedState),
}

fn refuse<T>(why: impl Into<String>) -> Result<T, SnapshotError> {
    Err(SnapshotError(why.into()))
}

/// Reads a stream in pieces, which may be split at any position. Stores at most one incomplete item.
#[derive(Default)]
pub(crate) struct StreamReader {
    /// The bytes of an incomplete item, its length included.
    begun: Vec<u8>,
    digest: Digest,
    state: ReaderState,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum ReaderState {
    #[default]
    BeforeHeader,
    Items,
    Ended,
}

impl StreamReader {
    /// Reads the next bytes, and passes every complete item to `each`.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(SnapshotItem) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        while !self.begun.is_empty() && !bytes.is_empty() {
            // Takes exactly the bytes that the item lacks; while even its length is incomplete, one byte at a
            // time.
            let lacking = match item_end(&self.begun)? {
                Some((_, end)) => end - self.begun.len(),
                None => 1,
            };
            let (head, rest) = bytes.split_at(lacking.min(bytes.len()));
            self.begun.extend_from_slice(head);
            bytes = rest;
            if let Some((start, end)) = item_end(&self.begun)?
                && end == self.begun.len()
            {
                let begun = std::mem::take(&mut self.begun);
                self.item(&begun[start..], &mut each)?;
            }
        }
        while let Some((start, end)) = item_end(bytes)?
            && end <= bytes.len()
        {
            self.item(&bytes[start..end], &mut each)?;
            bytes = &bytes[end..];
        }
        self.begun.extend_from_slice(bytes);
        Ok(())
    }

    fn item(
        &mut self,
        bytes: &[u8],
        each: &mut impl FnMut(SnapshotItem) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let mut r = ItemReader::new(bytes);
        let item = match (self.state, r.u8()?) {
            (ReaderState::BeforeHeader, HEADER) => {
                self.state = ReaderState::Items;
                SnapshotItem::Header(header(&mut r)?)
            }
            (ReaderState::BeforeHeader, _) => {
                return refuse(format!(
                    "it does not begin with a header; this program reads format {FORMAT}, which nothing older wrote"
                ));
            }
            (ReaderState::Items, SESSION) => SnapshotItem::Session(r.session()?),
            (ReaderState::Items, IDENTIFIED) => SnapshotItem::Session(r.identified_session()?),
            (ReaderState::Items, CLOCK) => SnapshotItem::Clock(r.wall_time()?),
            (ReaderState::Items, REQUEST) => SnapshotItem::Request(r.request()?),
            (ReaderState::Items, TIMED_REQUEST) => {
                SnapshotItem::Request(RequestState { since: r.wall_time()?, ..r.request()? })
            }
            (ReaderState::Items, CACHED_REQUEST) => {
                let since = WallTime(r.number()?);
                let (caching, spare_tokens, holding) = r.caching()?;
                SnapshotItem::Request(RequestState { since, caching, spare_tokens, holding, ..r.request()? })
            }
            (ReaderState::Items, LIMIT) => {
                SnapshotItem::Limit(LimitState { name: r.name()?, limit: r.narrow()?, stored: r.flag()? })
            }
            (ReaderState::Items, ENDING) => {
                SnapshotItem::Ending(EndingState { delay_ms: r.number()?, session: r.session()? })
            }
            (ReaderState::Items, IDENTIFIED_ENDING) => {
                SnapshotItem::Ending(EndingState { delay_ms: r.number()?, session: r.identified_session()? })
            }
            (ReaderState::Items, FREED) => SnapshotItem::Freed(FreedState {
                number: r.number()?,
                name: r.name()?,
                subtree: r.flag()?,
                kind: r.kind()?,
                after: Ticket(r.number()?),
            }),
            (ReaderState::Items, END) => {
                let digest = u128::from_le_bytes(r.array()?);
                r.end()?;
                self.state = ReaderState::Ended;
                return if digest == self.digest.0 {
                    Ok(())
                } else {
                    refuse(format!(
                        "its digest is {:032x}, its end says {digest:032x}: it was damaged",
                        self.digest.0
                    ))
                };
            }
            (ReaderState::Items, tag) => return refuse(format!("no item has the tag {tag} there")),
            (ReaderState::Ended, _) => return refuse("it goes on after its end"),
        };
        r.end()?;
        self.digest += Digest(xxh3_128(bytes));
        each(item)
    }

    /// The digest, once the end was read and contained the same digest.
    pub(crate) fn finish(&self) -> Result<u128, SnapshotError> {
        match self.state {
            ReaderState::Ended if self.begun.is_empty() => Ok(self.digest.0),
            ReaderState::Ended => refuse("it goes on after its end"),
            ReaderState::BeforeHeader | ReaderState::Items => {
                refuse("it stops before its end: the rest is missing")
            }
        }
    }
}

fn header(r: &mut ItemReader<'_>) -> Result<Header, SnapshotError> {
    let format = r.number()?;
    if format != FORMAT {
        return refuse(format!("its format is {format}, this program reads {FORMAT}"));
    }
    Ok(Header {
        rules: r.narrow()?,
        last_token: r.number()?,
        last_ticket: r.number()?,
        last_session: r.number()?,
        clock: WallTime::default(),
    })
}

/// Start (after the length) and end of the first item; `None` while its length is incomplete.
fn item_end(bytes: &[u8]) -> Result<Option<(usize, usize)>, SnapshotError> {
    match decode::u64(bytes) {
        Ok((0, _)) => refuse("an item is empty"),
        Ok((length, _)) if length > ITEM_BYTES_MAX => {
            refuse(format!("an item has {length} bytes, at most {ITEM_BYTES_MAX} are possible"))
        }
        Ok((length, rest)) => {
            let start = bytes.len() - rest.len();
            Ok(Some((start, start + length as usize)))
        }
        Err(decode::Error::Insufficient) => Ok(None),
        Err(why) => refuse(format!("the length of an item is malformed: {why}")),
    }
}
