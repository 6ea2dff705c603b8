//! Lengths read from a file are checked before any allocation: damaged files make a start fail without large
//! allocations.

#[path = "storage/support.rs"]
#[allow(dead_code, reason = "the other tests of the storage use the rest")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{names, open_view, small_directory};

/// The system's allocator; records the largest request.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Upper bound of a single allocation while the small directory is read: a few segments of 4 KiB, plus a
/// margin.
const BYTES_MAX: usize = 64 << 10;

#[test]
fn corrupt_lengths_cause_no_large_allocation() {
    let (disk, _) = small_directory();
    for name in names(&disk) {
        let bytes = disk.bytes(&name).expect("it is listed");
        for at in 0..bytes.len() - 8 {
            for number in [u64::MAX, 1 << 40, 0x7FFF_FFFF, 0x000F_FFFF] {
                let mut changed = bytes.clone();
                changed[at..at + 8].copy_from_slice(&number.to_le_bytes());
                // Makes the header's checksum valid, as in a file that was written with a wrong length.
                let checksum = crc32fast::hash(&changed[..508]);
                changed[508..512].copy_from_slice(&checksum.to_le_bytes());
                let damaged = disk.copy();
                damaged.set_bytes(&name, changed);
                LARGEST.store(0, Ordering::Relaxed);
                // Both outcomes are allowed; only the size of the allocations is checked.
                let is_refused = open_view(&damaged).is_err();
                let largest = LARGEST.load(Ordering::Relaxed);
                assert!(
                    largest <= BYTES_MAX,
                    "{name} with {number:#x} at {at}: {largest} bytes at once, refused: {is_refused}"
                );
            }
        }
    }
    LARGEST.store(0, Ordering::Relaxed);
    drop(vec![1_u8; BYTES_MAX + 1]);
    assert!(LARGEST.load(Ordering::Relaxed) > BYTES_MAX, "the watch works");
}
