//! Benchmarks of the table: an uncontended acquire and finish, a release with many waiters, snapshots in
//! pieces and their restore, the search for deadlocks, and memory.
//!
//! Run with `cargo bench -p lockkeeper-core`. First the program prints the bytes per held lock, counted by
//! its own allocator, and the bytes per lock of a snapshot; then divan measures times. Names are 32
//! pseudo-random bytes from a fixed sequence and are not reused, so that no run profits from a cached name.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use divan::Bencher;
use divan::counter::ItemsCount;
use lockkeeper_core::{
    Acquire, Command, Effects, IfBusy, LockName, Mode, OpenSession, Reply, Restorer, Seq, SessionId,
    SnapshotProgress, Table, Token,
};

/// The system allocator, with a count of the bytes that are allocated now: the requested sizes, without
/// overhead.
struct Counting;

static BYTES_OUT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system allocator unchanged; the counter accesses no memory of the
// caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES_OUT.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is also that of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES_OUT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` or `realloc` here, and so from the system allocator, with this
        // layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES_OUT.fetch_add(size, Ordering::Relaxed);
        BYTES_OUT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` or `realloc` here, and so from the system allocator, with this
        // layout, and the caller guarantees a valid `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HOLDER: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

/// A table with two sessions, and the next seq of each.
struct Bench {
    table: Table,
    effects: Effects,
    next_seq: [u64; 2],
    names: Names,
}

/// Pseudo-random names of 32 bytes, from the outputs of splitmix64.
struct Names(u64);

impl Names {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn next(&mut self) -> LockName {
        let text = format!("{:016x}{:016x}", self.word(), self.word());
        LockName::parse(&text).expect("hex digits are a legal name")
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
                identity: Box::default(),
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

    /// A table with `count` held locks, some of them with a name of two segments. Most of the first locks are
    /// released and replaced by others, in batches, so that requests, names and texts are scattered over the
    /// memory, each in another order.
    fn with_held_all_over_the_memory(count: usize) -> Self {
        let mut bench = Self::new();
        let mut held: Vec<Seq> = (0..count).map(|_| bench.acquire_one_of_two_kinds()).collect();
        let mut random = Names(1);
        for _ in 0..count / 1000 {
            let places: Vec<usize> = (0..1000).map(|_| random.word() as usize % held.len()).collect();
            for &place in &places {
                // A lock may be picked twice; its second finish ends nothing.
                let _finished = bench.finish(OTHER, held[place]);
            }
            for &place in &places {
                held[place] = bench.acquire_one_of_two_kinds();
            }
            bench.effects.clear();
        }
        bench
    }

    fn acquire_one_of_two_kinds(&mut self) -> Seq {
        let name = self.names.next();
        let nested = self.next_seq[1].is_multiple_of(2);
        let name =
            if nested { LockName::parse(&name.as_str().replacen('7', "/", 1)).unwrap_or(name) } else { name };
        self.acquire(OTHER, name).0
    }

    fn seq(&mut self, session: SessionId) -> Seq {
        let next = &mut self.next_seq[usize::from(session == OTHER)];
        *next += 1;
        Seq(*next - 1)
    }

    /// An acquire that confirms all earlier answers, as a client does.
    fn acquire(&mut self, session: SessionId, name: LockName) -> (Seq, Reply) {
        let seq = self.seq(session);
        let command = acquire(session, seq, name);
        let reply = self.table.apply(command, &mut self.effects);
        (seq, reply)
    }

    /// An acquire that declares a hold of its caller.
    fn acquire_holding(&mut self, name: LockName, hold: Token) -> (Seq, Reply) {
        let seq = self.seq(HOLDER);
        let mut command = acquire(HOLDER, seq, name);
        if let Command::Acquire(acquire) = &mut command {
            acquire.holding = Box::new([hold]);
        }
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
        if_busy: IfBusy::WAIT,
        keep_closed_ms: 0,
        value: Box::default(),
        meta: Box::default(),
        spare_tokens: 0,
        holding: Box::default(),
    })
}

/// Number of acquire-finish pairs in a sample. Names are created outside of the measured part.
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

/// One lock is held, and `waiters` requests wait for it. Measures the release, which grants the first waiter;
/// the next sample releases the hold of that waiter. Outside of the measured part, a new request joins the
/// end of the queue for each one released. A sample has one release: with more, divan would prepare their
/// inputs in advance, and the queue would be longer than `waiters`.
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

/// The time of one piece: no command is applied while it is written. The recommended budget takes less than 2
/// ms.
#[divan::bench(args = [1_000, 5_000, 10_000, 20_000], sample_size = 1, sample_count = 1000)]
fn piece_of_a_walk_over_a_million_held_locks(bencher: Bencher<'_, '_>, budget: usize) {
    let bench = RefCell::new(Bench::with_held_all_over_the_memory(1_000_000));
    bencher
        .counter(ItemsCount::new(budget))
        .with_inputs(|| {
            let table = &mut bench.borrow_mut().table;
            if !table.is_snapshot_under_way() {
                table.begin_snapshot().expect("no walk is under way");
            }
        })
        .bench_local_values(|()| {
            // A new buffer for each piece, because in production the disk worker takes ownership of the
            // buffer.
            let mut piece = Vec::new();
            let _state = black_box(bench.borrow_mut().table.snapshot_piece(budget, &mut piece));
            piece
        });
}

#[divan::bench(sample_size = 1, sample_count = 20)]
fn beginning_of_a_walk_over_a_million_held_locks(bencher: Bencher<'_, '_>) {
    let bench = RefCell::new(Bench::with_held(1_000_000));
    bencher
        .with_inputs(|| bench.borrow_mut().table.abandon_snapshot())
        .bench_local_values(|()| bench.borrow_mut().table.begin_snapshot());
}

/// Writes a whole snapshot in pieces, and passes each to `each`.
fn walk(table: &mut Table, mut each: impl FnMut(Vec<u8>)) {
    table.begin_snapshot().expect("no walk is under way");
    loop {
        let mut piece = Vec::new();
        let state = table.snapshot_piece(PIECE_ITEMS, &mut piece);
        each(piece);
        if let SnapshotProgress::Done { .. } = state {
            return;
        }
    }
}

/// The recommended budget of a piece, in items.
const PIECE_ITEMS: usize = 5_000;

#[divan::bench(sample_size = 1, sample_count = 10)]
fn whole_walk_over_a_million_held_locks(bencher: Bencher<'_, '_>) {
    let mut bench = Bench::with_held_all_over_the_memory(1_000_000);
    bencher.counter(ItemsCount::new(1_000_000_u32)).bench_local(|| walk(&mut bench.table, |_| ()));
}

#[divan::bench(sample_size = 1, sample_count = 5)]
fn restore_of_a_million_held_locks(bencher: Bencher<'_, '_>) {
    let mut pieces = Vec::new();
    walk(&mut Bench::with_held_all_over_the_memory(1_000_000).table, |piece| pieces.push(piece));
    bencher.counter(ItemsCount::new(1_000_000_u32)).bench_local(|| {
        let mut restorer = Restorer::new(7);
        for piece in &pieces {
            restorer.push(piece).expect("a walk wrote it");
        }
        restorer.finish().expect("a walk wrote it")
    });
}

/// Pairs of acquire and finish of new locks, while a snapshot is in progress but does not advance.
#[divan::bench]
fn acquire_and_finish_beside_a_million_held_ones_and_a_walk(bencher: Bencher<'_, '_>) {
    let bench = RefCell::new(Bench::with_held(1_000_000));
    bencher
        .counter(ItemsCount::new(PAIRS))
        .with_inputs(|| {
            let bench = &mut *bench.borrow_mut();
            bench.table.abandon_snapshot();
            bench.table.begin_snapshot().expect("no walk is under way");
            (0..PAIRS).map(|_| bench.names.next()).collect::<Vec<_>>()
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

/// Releases of held locks. With `walking`, a snapshot began after they were acquired, so the old state of
/// each must be saved first.
#[divan::bench(args = [false, true], sample_size = 1)]
fn finish_of_a_lock_that_a_walk_has_still_to_write(bencher: Bencher<'_, '_>, walking: bool) {
    let bench = RefCell::new(Bench::with_held(1_000_000));
    bencher
        .counter(ItemsCount::new(PAIRS))
        .with_inputs(|| {
            let bench = &mut *bench.borrow_mut();
            bench.table.abandon_snapshot();
            let held = |_| {
                let name = bench.names.next();
                bench.acquire(HOLDER, name).0
            };
            let held: Vec<Seq> = (0..PAIRS).map(held).collect();
            if walking {
                bench.table.begin_snapshot().expect("no walk is under way");
            }
            held
        })
        .bench_local_values(|held| {
            let bench = &mut *bench.borrow_mut();
            for seq in held {
                let _finished = black_box(bench.finish(HOLDER, seq));
            }
            bench.effects.clear();
        });
}

/// The command that must save the most old states if a snapshot is in progress: the worst case.
#[divan::bench(args = [false, true], sample_size = 1, sample_count = 3)]
fn end_of_a_session_that_holds_a_million_locks(bencher: Bencher<'_, '_>, walking: bool) {
    bencher
        .with_inputs(|| {
            let mut bench = Bench::with_held(1_000_000);
            if walking {
                bench.table.begin_snapshot().expect("no walk is under way");
            }
            bench
        })
        .bench_local_values(|mut bench| {
            let _gone =
                black_box(bench.table.apply(Command::CloseSession { session: OTHER }, &mut bench.effects));
            bench
        });
}

/// Prints the allocated bytes per held lock, which divan does not measure.
#[allow(clippy::print_stdout, reason = "the figure is this program's output")]
fn print_bytes_per_held_lock() {
    // At 140,000 the index of names has doubled not long before: the worst case.
    for held in [1_000, 100_000, 140_000, 1_000_000] {
        let before = BYTES_OUT.load(Ordering::Relaxed);
        let mut bench = Bench::with_held(held);
        let after = BYTES_OUT.load(Ordering::Relaxed);
        let mut written = 0;
        walk(&mut bench.table, |piece| written += piece.len());
        println!(
            "bytes per held lock with a 32-byte name, at {held} held locks: {:.1}, in a snapshot {:.1}",
            (after - before) as f64 / held as f64,
            written as f64 / held as f64,
        );
        drop(bench);
    }
}

/// Prints how long an acquire takes that queues at the beginning of a chain of waits, each for a lock whose
/// holder waits for the next one: the search for a deadlock follows the whole chain. Beside it, the same
/// acquire without a declared hold, which is not searched.
#[allow(clippy::print_stdout, reason = "the figure is this program's output")]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "divan shows no percentiles")]
fn print_search_for_deadlocks() {
    const CHAINS: usize = 100;
    // With the hold of each, a chain has 100 requests.
    const WAITS: usize = 50;
    let mut bench = Bench::new();
    let hold = |bench: &mut Bench| {
        let name = bench.names.next();
        match bench.acquire(HOLDER, name.clone()).1 {
            Reply::Granted(grant) => (name, grant.token),
            other => panic!("{other:?}"),
        }
    };
    let chains: Vec<_> =
        (0..CHAINS).map(|_| (0..=WAITS).map(|_| hold(&mut bench)).collect::<Vec<_>>()).collect();
    // The waits of all chains arrive in turns, so that those of one are scattered over the memory.
    for link in 0..WAITS {
        for chain in &chains {
            let _queued = bench.acquire_holding(chain[link + 1].0.clone(), chain[link].1);
        }
    }
    let (_, own) = hold(&mut bench);
    for declares in [true, false] {
        let mut times: Vec<_> = (0..20_000)
            .map(|round| {
                let first = chains[round * 37 % CHAINS][0].0.clone();
                let begun = std::time::Instant::now();
                let (seq, queued) = match declares {
                    true => bench.acquire_holding(first, own),
                    false => bench.acquire(HOLDER, first),
                };
                let time = begun.elapsed();
                assert!(matches!(queued, Reply::Queued { .. }), "{queued:?}");
                let _left = bench.finish(HOLDER, seq);
                bench.effects.clear();
                time
            })
            .collect();
        times.sort_unstable();
        let (half, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        let what = if declares { "after a search for a deadlock" } else { "without one" };
        println!("an acquire queues at a chain of {WAITS} waits, {what}: median {half:?}, p99 {most:?}");
    }
}

fn main() {
    if !std::env::args().any(|arg| arg == "--test") {
        print_search_for_deadlocks();
        print_bytes_per_held_lock();
    }
    divan::main();
}
