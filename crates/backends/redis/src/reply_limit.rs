//! Limits on what a server may send as one reply.
//!
//! The client library's parser has none: it buffers a string of 2 GB, and reserves memory for a billion
//! announced elements. So that no server can exhaust the memory of its clients, each stream is read through
//! [`ReplyLimit`], which follows the lengths in it and fails before the parser gets one that is too large.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Largest reply, in bytes. Our own largest one, 14 MiB, describes a lock with all of its permits held.
pub(super) const REPLY_BYTES_MAX: usize = 16 << 20;
/// Largest number of values in a reply, counted at all depths. The largest replies have 200,000 (a lock with
/// all permits held) and 300,000 (the slot map of a cluster in which each slot is a range of its own).
pub(super) const REPLY_VALUES_MAX: usize = 1 << 19;
/// Longest line, in bytes: an error, a number, a length. Redis limits its own errors to less.
const LINE_BYTES_MAX: usize = 1 << 16;

/// A reply exceeds a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum TooLong {
    #[error("it sent a reply of {0} bytes or more, and at most {REPLY_BYTES_MAX} are read")]
    Bytes(usize),
    #[error("it sent a reply of {0} values or more, and at most {REPLY_VALUES_MAX} are read")]
    Values(usize),
    #[error("it sent a line of more than {LINE_BYTES_MAX} bytes, which is the limit")]
    Line,
}

impl TooLong {
    /// Extracts this error from an error of the client library.
    pub(super) fn of(error: &redis::RedisError) -> Option<Self> {
        // The client library shares its causes between clones of an error.
        let shared: &std::sync::Arc<dyn Error + Send + Sync> = error.source()?.downcast_ref()?;
        shared.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref().copied()
    }
}

/// Follows the replies in a stream, in RESP2 or RESP3.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct ReplyScanner {
    /// The element that the next byte belongs to.
    part: ReplyPart,
    /// Values of the present reply that have not arrived completely; 0 between replies.
    open: usize,
    /// Bytes and values of the present reply, including announced ones.
    bytes: usize,
    values: usize,
    /// The present line.
    line: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum ReplyPart {
    #[default]
    Line,
    /// The rest of a string, of so many bytes, with the line break that ends it.
    Text(usize),
}

impl ReplyScanner {
    fn read(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        while !bytes.is_empty() {
            let end = match self.part {
                ReplyPart::Text(left) => left.min(bytes.len()),
                ReplyPart::Line => bytes
                    .iter()
                    .position(|&byte| byte == b'\n')
                    .map_or(bytes.len(), |line_feed| line_feed + 1),
            };
            let (present, rest) = bytes.split_at(end);
            bytes = rest;
            match self.part {
                ReplyPart::Text(left) if left == end => self.value_ends(),
                ReplyPart::Text(left) => self.part = ReplyPart::Text(left - end),
                ReplyPart::Line => self.read_line(present)?,
            }
        }
        Ok(())
    }

    /// Reads a line, or a part of it.
    fn read_line(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.open == 0 {
            (self.open, self.bytes, self.values) = (1, 0, 1);
        }
        self.announce(part.len(), 0)?;
        if self.line.len() + part.len() > LINE_BYTES_MAX {
            return Err(TooLong::Line);
        }
        self.line.extend_from_slice(part);
        let Some((kind, text)) = self.line.strip_suffix(b"\r\n").and_then(<[u8]>::split_first) else {
            return Ok(());
        };
        let number = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<i64>().ok());
        // Text that is no number is left to the parser, which refuses it. A negative length other than `Nil`
        // counts as huge, since the parser converts it to an unsigned number.
        let length = number.map_or(0, |number| usize::try_from(number).unwrap_or(usize::MAX));
        let is_nil = number.is_some_and(|number| number < 0);
        let (text, values) = match *kind {
            b'$' | b'*' | b'~' | b'>' if is_nil => (None, 0),
            b'$' | b'!' | b'=' => (Some(length.saturating_add(2)), 0),
            b'*' | b'~' | b'>' => (None, length),
            b'%' => (None, length.saturating_mul(2)),
            b'|' => (None, length.saturating_mul(2).saturating_add(1)),
            _ => (None, 0),
        };
        self.line.clear();
        self.announce(text.unwrap_or(0), values)?;
        self.open += values;
        match text {
            Some(left) => self.part = ReplyPart::Text(left),
            None => self.value_ends(),
        }
        Ok(())
    }

    fn announce(&mut self, bytes: usize, values: usize) -> Result<(), TooLong> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.values = self.values.saturating_add(values);
        if self.bytes > REPLY_BYTES_MAX {
            return Err(TooLong::Bytes(self.bytes));
        }
        if self.values > REPLY_VALUES_MAX {
            return Err(TooLong::Values(self.values));
        }
        Ok(())
    }

    fn value_ends(&mut self) {
        self.part = ReplyPart::Line;
        self.open -= 1;
    }
}

/// A stream that fails at a reply that is too long.
pub(super) struct ReplyLimit<S> {
    stream: S,
    scanner: ReplyScanner,
}

impl<S> ReplyLimit<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, scanner: ReplyScanner::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReplyLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let known = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = self.scanner.read(&buffer.filled()[known..]);
        Poll::Ready(read.map_err(|too_long| {
            buffer.set_filled(known);
            io::Error::new(io::ErrorKind::InvalidData, too_long)
        }))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReplyLimit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use redis::parse_redis_value;

    use super::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>(), b' '..=b'~'], 0..12)
    }

    fn counted(kind: u8, text: &[u8]) -> Vec<u8> {
        [&[kind], text.len().to_string().as_bytes(), b"\r\n", text, b"\r\n"].concat()
    }

    /// A reply of the protocol, of any type.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let line = |kinds: &'static [u8]| {
            (proptest::sample::select(kinds), "[ -~\r]{0,8}")
                .prop_map(|(kind, text)| [&[kind], text.as_bytes(), b"\r\n"].concat())
        };
        let leaf = prop_oneof![
            line(b"+-_("),
            any::<i32>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            proptest::sample::select(
                &["$-1\r\n", "*-1\r\n", "~-1\r\n", ">0\r\n", "#t\r\n", ",1.5\r\n", "$ +1 \r\nx\r\n"][..]
            )
            .prop_map(|text| text.as_bytes().to_vec()),
            (proptest::sample::select(&b"$!="[..]), text()).prop_map(|(kind, text)| match kind {
                b'=' => counted(kind, &[b"txt:", &text[..]].concat()),
                _ => counted(kind, &text),
            }),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            (proptest::sample::select(&b"*~>%|"[..]), vec(inner, 0..6)).prop_map(|(kind, mut parts)| {
                match kind {
                    b'>' => parts.insert(0, b"+message\r\n".to_vec()),
                    b'%' => parts.truncate(parts.len() / 2 * 2),
                    b'|' if parts.len() % 2 == 0 => parts.push(b"_\r\n".to_vec()),
                    _ => {}
                }
                let length = if b"%|".contains(&kind) { parts.len() / 2 } else { parts.len() };
                [&[kind], length.to_string().as_bytes(), b"\r\n", &parts.concat()[..]].concat()
            })
        })
    }

    /// How many bytes the first reply has.
    fn scanned(bytes: &[u8]) -> Option<usize> {
        let mut scanner = ReplyScanner::default();
        bytes.iter().enumerate().find_map(|(at, byte)| {
            scanner.read(&[*byte]).expect("it is short");
            (scanner.open == 0).then_some(at + 1)
        })
    }

    fn parsed(bytes: &[u8]) -> Option<usize> {
        (1..=bytes.len()).find(|&end| parse_redis_value(&bytes[..end]).is_ok())
    }

    proptest! {
        #[test]
        fn replies_end_where_the_parser_ends_them(
            replies in vec(reply(), 1..4),
            changed in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
            splits in vec(1_usize..20, 0..40),
        ) {
            let whole = replies.concat();
            prop_assert_eq!(scanned(&whole), Some(replies[0].len()));
            prop_assert_eq!(parsed(&whole), Some(replies[0].len()));
            // The parts in which a reply arrives change nothing.
            let (mut scanner, mut rest) = (ReplyScanner::default(), &whole[..]);
            for split in splits {
                let (part, after) = rest.split_at(split.min(rest.len()));
                scanner.read(part).unwrap();
                rest = after;
            }
            scanner.read(rest).unwrap();
            prop_assert_eq!(scanner.open, 0);
            // Bytes that are no reply have no other end either, if the parser accepts their beginning.
            if let Some((index, byte)) = changed {
                let mut broken = whole;
                let at = index.index(broken.len());
                broken[at] = byte;
                if let Some(end) = parsed(&broken) {
                    prop_assert_eq!(scanned(&broken), Some(end));
                }
            }
        }
    }

    /// The error of a stream that sends `begin`, and then `again` forever; and how many bytes of it were
    /// read.
    fn refused(begin: &str, again: &str) -> (TooLong, usize) {
        let (mut scanner, mut sent) = (ReplyScanner::default(), 0);
        let parts = std::iter::once(begin).chain(std::iter::repeat(again));
        for part in parts {
            sent += part.len();
            assert!(sent < 2 * REPLY_BYTES_MAX, "not refused: {begin:?} {again:?}");
            if let Err(error) = scanner.read(part.as_bytes()) {
                return (error, sent);
            }
        }
        unreachable!("the stream has no end")
    }

    #[test]
    fn lengths_above_a_limit_are_refused_before_anything_of_them_arrives() {
        assert_eq!(refused("$2000000000\r\n", "").0, TooLong::Bytes(2_000_000_015));
        assert_eq!(refused("*2\r\n+OK\r\n$16777216\r\n", "").0, TooLong::Bytes(16_777_216 + 22));
        assert_eq!(refused("*1000000000\r\n", "").0, TooLong::Values(1_000_000_001));
        assert_eq!(refused("%300000\r\n", "").0, TooLong::Values(600_001));
        for negative in ["!-1\r\n", "=-2\r\n", "%-1\r\n", "|-1\r\n"] {
            refused(negative, "");
        }
    }

    #[test]
    fn replies_without_an_end_are_refused_at_a_limit() {
        assert_eq!(refused("", "*1\r\n"), (TooLong::Values(REPLY_VALUES_MAX + 1), 4 * REPLY_VALUES_MAX));
        assert_eq!(refused("+", "x"), (TooLong::Line, LINE_BYTES_MAX + 1));
        assert!(matches!(
            refused("*500000\r\n", "$40\r\n0123456789012345678901234567890123456789\r\n").0,
            TooLong::Bytes(_)
        ));
    }

    #[test]
    fn the_limit_is_that_of_one_reply() {
        let mut scanner = ReplyScanner::default();
        let reply = counted(b'$', &vec![b'x'; REPLY_BYTES_MAX / 4]);
        for _ in 0..8 {
            scanner.read(&reply).unwrap();
        }
    }
}
