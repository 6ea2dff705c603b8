//! The frames that a client and another node send. Items of a few bytes become structs of many times their
//! size, so they are counted before any of them is decoded.

use bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType, message};
use prost::{DecodeError, Message};

use crate::limits::{FRAME_ITEMS_MAX, FRAME_NAMES_MAX, PEER_FRAME_ENTRIES_MAX, PEER_FRAME_MESSAGES_MAX};
use crate::peer::PeerFrame;
use crate::v1::ClientItem;

/// The client's frame of `session.proto`. It replaces the generated type, so that [`Message::decode`] counts
/// the items first.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ClientFrame {
    /// The items, handled in this order.
    pub items: Vec<ClientItem>,
}

/// Field number of `ClientFrame.items`.
const ITEMS: u32 = 1;
/// Field number of `ClientItem.acquire`.
const ACQUIRE: u32 = 5;
/// Field number of `Acquire.names`.
const NAMES: u32 = 3;
/// Field number of `PeerFrame.messages`.
const MESSAGES: u32 = 1;
/// Field number of `PeerMessage.entries`.
const ENTRIES: u32 = 7;
/// The smallest encoded field, in bytes: a tag and a length.
const FIELD_BYTES_MIN: usize = 2;

impl Message for ClientFrame {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        message::encode_repeated(ITEMS, &self.items, buf);
    }

    fn encoded_len(&self) -> usize {
        message::encoded_len_repeated(ITEMS, &self.items)
    }

    fn clear(&mut self) {
        self.items.clear();
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            ITEMS => message::merge_repeated(wire_type, &mut self.items, buf, ctx).map_err(|mut error| {
                error.push("ClientFrame", "items");
                error
            }),
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn merge(&mut self, mut buf: impl Buf) -> Result<(), DecodeError> {
        let mut frame = buf.copy_to_bytes(buf.remaining());
        check_counts(&frame)?;
        while frame.has_remaining() {
            let (tag, wire_type) = encoding::decode_key(&mut frame)?;
            self.merge_field(tag, wire_type, &mut frame, DecodeContext::default())?;
        }
        Ok(())
    }
}

fn check_counts(frame: &[u8]) -> Result<(), DecodeError> {
    if frame.len() / FIELD_BYTES_MIN <= FRAME_ITEMS_MAX.min(FRAME_NAMES_MAX) {
        return Ok(());
    }
    let (mut items, mut names) = (Count::of("items", FRAME_ITEMS_MAX), Count::of("names", FRAME_NAMES_MAX));
    for_each_field(frame, ITEMS, |item| {
        items.one_more()?;
        for_each_field(item, ACQUIRE, |acquire| for_each_field(acquire, NAMES, |_| names.one_more()))
    })
}

/// Decodes a frame of another node.
///
/// # Errors
/// It is malformed, or has more than [`PEER_FRAME_MESSAGES_MAX`] messages or [`PEER_FRAME_ENTRIES_MAX`]
/// entries.
pub fn decode_peer_frame(frame: &[u8]) -> Result<PeerFrame, DecodeError> {
    let mut messages = Count::of("messages", PEER_FRAME_MESSAGES_MAX);
    let mut entries = Count::of("entries", PEER_FRAME_ENTRIES_MAX);
    for_each_field(frame, MESSAGES, |message| {
        messages.one_more()?;
        for_each_field(message, ENTRIES, |_| entries.one_more())
    })?;
    PeerFrame::decode(frame)
}

/// Counts up to a limit.
struct Count {
    what: &'static str,
    max: usize,
    left: usize,
}

impl Count {
    fn of(what: &'static str, max: usize) -> Self {
        Self { what, max, left: max }
    }

    fn one_more(&mut self) -> Result<(), DecodeError> {
        let Self { what, max, .. } = self;
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            refused(format!(
                "the frame has more than {max} {what}, the most that are allowed; send several frames"
            ))
        })?;
        Ok(())
    }
}

/// Calls `each` with the content of every length-delimited field `tag`, up to its first error. Stops at
/// malformed bytes, which the decoder then reports.
fn for_each_field(
    mut bytes: &[u8],
    tag: u32,
    mut each: impl FnMut(&[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    while !bytes.is_empty()
        && let Ok((found, wire_type)) = encoding::decode_key(&mut bytes)
    {
        if (found, wire_type) == (tag, WireType::LengthDelimited) {
            let length = encoding::decode_varint(&mut bytes).ok().and_then(|it| usize::try_from(it).ok());
            let Some((field, rest)) = length.and_then(|length| bytes.split_at_checked(length)) else {
                break;
            };
            each(field)?;
            bytes = rest;
        } else if encoding::skip_field(wire_type, found, &mut bytes, DecodeContext::default()).is_err() {
            break;
        }
    }
    Ok(())
}

#[expect(deprecated, reason = "prost has no other error with a text of one's own")]
fn refused(text: String) -> DecodeError {
    DecodeError::new(text)
}
