//! The memory of a decoded frame is bounded, not only its encoded size: items and names of a few bytes become
//! structs of many times their size. The allocator counts for the whole process, so this file has only one
//! test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use lockkeeper_wire::peer::{PeerFrame, PeerMessage};
use lockkeeper_wire::store::Entry;
use lockkeeper_wire::v1::{self, client_item::What};
use lockkeeper_wire::{
    FRAME_BYTES_MAX, FRAME_ITEMS_MAX, FRAME_NAMES_MAX, PEER_FRAME_ENTRIES_MAX, PEER_FRAME_MESSAGES_MAX,
    decode_peer_frame, request,
};
use prost::Message;

struct PeakCounter;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for PeakCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(live, Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: PeakCounter = PeakCounter;

/// The allowed peak, in bytes, above the frame's own bytes.
const DECODED_BYTES_MAX: usize = 8 << 20;

/// The same for a frame between nodes, which may be four times as large.
const DECODED_PEER_BYTES_MAX: usize = 4 * DECODED_BYTES_MAX;
/// The size of a frame between nodes.
const PEER_FRAME_BYTES: usize = 16 << 20;

/// What `read` returns, and the peak of memory in bytes while it runs.
fn peak_of<T>(read: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    let read = read();
    (read, PEAK.load(Ordering::SeqCst) - before)
}

/// Decodes a frame as the service does. Returns the number of requests or the error.
fn read(frame: Bytes) -> Result<usize, String> {
    let frame = v1::ClientFrame::decode(frame).map_err(|error| error.to_string())?;
    let (requests, _) = request::requests(frame.items).map_err(|error| error.to_string())?;
    Ok(requests.len())
}

/// Decodes a frame as another node does. Returns the number of messages or the error.
fn read_peer(frame: &[u8]) -> Result<usize, String> {
    decode_peer_frame(frame).map(|frame| frame.messages.len()).map_err(|error| error.to_string())
}

fn acquire(names: Vec<String>) -> v1::ClientItem {
    let acquire = v1::Acquire { seq: 1, names, mode: v1::Mode::Exclusive.into(), ..v1::Acquire::default() };
    v1::ClientItem { session: 1, what: Some(What::Acquire(acquire)) }
}

fn frame(items: Vec<v1::ClientItem>) -> Vec<u8> {
    v1::ClientFrame { items }.encode_to_vec()
}

/// The field `items` with empty content, `count` times.
fn empty_items(count: usize) -> Vec<u8> {
    [0x0a, 0].repeat(count)
}

/// An acquire of `count` empty names.
fn empty_names(count: usize) -> Vec<u8> {
    frame(vec![acquire(vec![String::new(); count])])
}

fn keep_alives(count: usize) -> Vec<u8> {
    let item = |id| v1::ClientItem { session: 1, what: Some(What::KeepAlive(v1::KeepAlive { id })) };
    frame((0..count as u64).map(item).collect())
}

fn short_names(count: usize) -> Vec<u8> {
    let names = |_| acquire((0..64).map(|number| char::from(b'0' + number).to_string()).collect());
    frame((0..count / 64).map(names).collect())
}

fn empty_entries(count: usize) -> Vec<u8> {
    let message = PeerMessage { entries: vec![Entry::default(); count], ..PeerMessage::default() };
    PeerFrame { messages: vec![message] }.encode_to_vec()
}

fn compare(number: usize, read: Result<usize, String>, expected: Result<usize, String>) {
    match (read, expected) {
        (Ok(count), Ok(expected)) => assert_eq!(count, expected, "case {number}"),
        (Err(error), Err(words)) => assert!(error.contains(&words), "case {number}: {error}"),
        (read, expected) => panic!("case {number}: {read:?}, expected {expected:?}"),
    }
}

#[test]
fn decoding_a_frame_of_small_items_uses_bounded_memory() {
    let most = lockkeeper_corpus::size(2 * FRAME_NAMES_MAX, FRAME_BYTES_MAX / 2, FRAME_BYTES_MAX / 2);
    let refused = |what: &str, max: usize| Err(format!("has more than {max} {what}, "));
    let cases = [
        (empty_items(most), refused("items", FRAME_ITEMS_MAX)),
        (empty_items(FRAME_ITEMS_MAX + 1), refused("items", FRAME_ITEMS_MAX)),
        (empty_items(FRAME_ITEMS_MAX), Err("says nothing".to_owned())),
        (keep_alives(FRAME_ITEMS_MAX), Ok(FRAME_ITEMS_MAX)),
        (empty_names(most - 16), refused("names", FRAME_NAMES_MAX)),
        (empty_names(FRAME_NAMES_MAX + 1), refused("names", FRAME_NAMES_MAX)),
        // A command with more than 64 names gets a refusal of its own; the frame is accepted.
        (empty_names(FRAME_NAMES_MAX), Ok(0)),
        (short_names(FRAME_NAMES_MAX), Ok(FRAME_NAMES_MAX / 64)),
        (short_names(FRAME_NAMES_MAX + 64), refused("names", FRAME_NAMES_MAX)),
    ];
    for (number, (bytes, expected)) in cases.into_iter().enumerate() {
        assert!(bytes.len() <= FRAME_BYTES_MAX, "case {number}: {} bytes", bytes.len());
        let length = bytes.len();
        let (read, peak) = peak_of(|| read(bytes.into()));
        assert!(peak <= DECODED_BYTES_MAX, "case {number}: {length} bytes took {peak}");
        compare(number, read, expected);
    }
    let most =
        lockkeeper_corpus::size(2 * PEER_FRAME_ENTRIES_MAX, PEER_FRAME_BYTES / 2, PEER_FRAME_BYTES / 2);
    let of_nodes = [
        (empty_items(most), refused("messages", PEER_FRAME_MESSAGES_MAX)),
        (empty_items(PEER_FRAME_MESSAGES_MAX), Ok(PEER_FRAME_MESSAGES_MAX)),
        (empty_entries(most - 16), refused("entries", PEER_FRAME_ENTRIES_MAX)),
        (empty_entries(PEER_FRAME_ENTRIES_MAX), Ok(1)),
    ];
    for (number, (bytes, expected)) in of_nodes.into_iter().enumerate() {
        let (read, peak) = peak_of(|| read_peer(&bytes));
        assert!(peak <= DECODED_PEER_BYTES_MAX, "case {number} of nodes: {} bytes took {peak}", bytes.len());
        compare(number, read, expected);
    }
}
