//! What the table costs: an uncontended pair, an end with many waiters, and memory.
//!
//! `cargo bench -p lockkeeper-core`. Bytes per held lock are counted by the allocator of this program and printed
//! first; then divan measures times. Names are 32 random-looking bytes, new each time, from a fixed sequence, so that
//! no run profits from a warm name.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use divan::Bencher;
use divan::counter::ItemsCount;
use lockkeeper_core::{
    Acquire, Command, Effects, IfBusy, LockName, Mode, OpenSession, Reply, Seq, SessionId, Table,
};

/// The system's allocator, with a count of the bytes that are out: the sizes asked for, without its own overhead.
struct Counting;

static BYTES_OUT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator unchanged; the count beside it touches no memory of the
// caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES_OUT.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES_OUT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES_OUT.fetch_add(size, Ordering::Relaxed);
        BYTES_OUT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, with this layout, and the caller vouches for `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HOLDER: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

/// A table with its two sessions, and the numbers that come next.
struct Bench {
    table: Table,
    effects: Effects,
    next_seq: [u64; 2],
    names: Names,
}

/// Names of 32 bytes that look random: the outputs of splitmix64.
struct Names(u64);

impl Names {
    fn next(&mut self) -> LockName {
        let mut word = || {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        LockName::parse(&format!("{:016x}{:016x}", word(), word())).expect("hex digits are a legal name")
    }
}

impl Bench {
    fn new() -> Self {
        let mut table = Table::new(7);
        for secret in 1..=2 {
            let open = OpenSession {
                secret_hash: [secret; 32],
                ttl_ms: 30_000,
                lock_delay_ms: 0,
                linger_ms: 0,
                label: "bench".into(),
            };
            let reply = table.apply(Command::OpenSession(open), &mut Effects::new());
            assert!(matches!(reply, Reply::Opened { .. }));
        }
        Self { table, effects: Effects::new(), next_seq: [1, 1], names: Names(42) }
    }

    fn with_held(count: usize) -> Self {
        let mut bench = Self::new();
        for _ in 0..count {
            let name = bench.names.next();
            let reply = bench.acquire(OTHER, name);
            assert!(matches!(reply.1, Reply::Granted(_)));
        }
        bench
    }

    fn seq(&mut self, session: SessionId) -> Seq {
        let next = &mut self.next_seq[usize::from(session == OTHER)];
        *next += 1;
        Seq(*next - 1)
    }

    /// An acquire that confirms everything before it, as a client does.
    fn acquire(&mut self, session: SessionId, name: LockName) -> (Seq, Reply) {
        let seq = self.seq(session);
        let command = acquire(session, seq, name);
        let reply = self.table.apply(command, &mut self.effects);
        (seq, reply)
    }

    fn finish(&mut self, session: SessionId, target: Seq) -> Reply {
        let seq = self.seq(session);
        let command = Command::Finish { session, seq, target, done_through: target };
        self.table.apply(command, &mut self.effects)
    }
}

fn acquire(session: SessionId, seq: Seq, name: LockName) -> Command {
    Command::Acquire(Acquire {
        session,
        seq,
        done_through: Seq(seq.0 - 1),
        names: vec![name],
        mode: Mode::Exclusive,
        subtree: false,
        if_busy: IfBusy::Wait { at_most_ms: None },
        keep_closed_ms: 0,
        value: Box::default(),
        meta: Box::default(),
    })
}

/// How many pairs one sample makes; the name is made outside of the measured part.
const PAIRS: u64 = 1000;

#[divan::bench(args = [1_000, 1_000_000])]
fn acquire_and_finish_a_free_lock_beside_held_ones(bencher: Bencher<'_, '_>, held: usize) {
    let bench = RefCell::new(Bench::with_held(held));
    bencher
        .counter(ItemsCount::new(PAIRS))
        .with_inputs(|| {
            let names = &mut bench.borrow_mut().names;
            (0..PAIRS).map(|_| names.next()).collect::<Vec<_>>()
        })
        .bench_local_values(|names| {
            let bench = &mut *bench.borrow_mut();
            for name in names {
                let (seq, granted) = bench.acquire(HOLDER, name);
                let _granted = black_box(granted);
                let _finished = black_box(bench.finish(HOLDER, seq));
            }
            bench.effects.clear();
        });
}

/// One lock is held and `waiters` wait for it. Measured: the end, which grants the first waiter. The new holder then
/// ends too, and so on; each who was served queues again at the end, outside of the measured part. One end a sample:
/// with more, divan would make their inputs ahead, and more would wait than the figure says.
fn end_with_waiters(bencher: Bencher<'_, '_>, waiters: usize, held: usize) {
    let mut bench = Bench::with_held(held);
    let name = LockName::parse("orders/42").expect("a legal name");
    let mut queue = std::collections::VecDeque::new();
    for _ in 0..=waiters {
        let (seq, _) = bench.acquire(HOLDER, name.clone());
        queue.push_back(seq);
    }
    let bench = RefCell::new((bench, queue));
    bencher
        .with_inputs(|| {
            let (bench, queue) = &mut *bench.borrow_mut();
            bench.effects.clear();
            if queue.len() <= waiters {
                let (seq, _) = bench.acquire(HOLDER, name.clone());
                queue.push_back(seq);
            }
            queue.pop_front().expect("someone holds it")
        })
        .bench_local_values(|target| {
            let (bench, _) = &mut *bench.borrow_mut();
            let finished = bench.finish(HOLDER, target);
            assert_eq!(bench.effects.len(), waiters.min(1), "the first waiter was granted");
            finished
        });
}

#[divan::bench(args = [1, 1_000, 100_000], sample_size = 1, sample_count = 1000)]
fn end_with_waiters_alone(bencher: Bencher<'_, '_>, waiters: usize) {
    end_with_waiters(bencher, waiters, 0);
}

#[divan::bench(args = [1, 1_000, 100_000], sample_size = 1, sample_count = 1000)]
fn end_with_waiters_beside_a_million_other_locks(bencher: Bencher<'_, '_>, waiters: usize) {
    end_with_waiters(bencher, waiters, 1_000_000);
}

#[divan::bench(args = [1_000, 1_000_000], sample_count = 5)]
fn snapshot_of_held_locks(bencher: Bencher<'_, '_>, held: usize) {
    let bench = Bench::with_held(held);
    bencher.counter(ItemsCount::new(held)).bench_local(|| bench.table.snapshot());
}

/// Printed, not measured by divan: what a held lock adds to what the allocator has given out.
#[allow(clippy::print_stdout, reason = "the figure is this program's output")]
fn print_bytes_per_held_lock() {
    // 140000 is just past a doubling of the lists: the worst case.
    for held in [1_000, 100_000, 140_000, 1_000_000] {
        let before = BYTES_OUT.load(Ordering::Relaxed);
        let bench = Bench::with_held(held);
        let after = BYTES_OUT.load(Ordering::Relaxed);
        println!(
            "bytes per held lock with a 32-byte name, at {held} held locks: {:.1}",
            (after - before) as f64 / held as f64
        );
        drop(bench);
    }
}

fn main() {
    if !std::env::args().any(|arg| arg == "--test") {
        print_bytes_per_held_lock();
    }
    divan::main();
}
