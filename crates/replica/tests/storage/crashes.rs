//! Power cuts at every step: a start finds the last acknowledged state, or that state plus the complete write
//! in progress.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{self, Existing, Opened};
use lockkeeper_wire::store::{Candidate, HardState, Member};

use crate::support::*;

const EIO: i32 = 5;

/// The operations at which a run can be interrupted, by an error that they return.
const CUTS: [Operation; 6] = [
    Operation::Write,
    Operation::Sync,
    Operation::Create,
    Operation::Rename,
    Operation::Remove,
    Operation::SyncNames,
];

#[test]
fn interrupted_bootstrap_is_complete_or_can_be_repeated() {
    let mut outcomes = [0, 0];
    for cut in CUTS {
        for after in 0..6 {
            for seed in 0..20 {
                let disk = MemoryDisk::new();
                disk.fail(cut, after, EIO);
                let done = storage::found(&disk, SMALL, &founding()).is_ok();
                let mut rng = Rng(seed);
                disk.heal();
                disk.crash(|n| rng.below(n));
                match storage::open(&disk, SMALL).expect("no crash is damage") {
                    Opened::Existing(existing) => {
                        assert_eq!(existing.founding, founding());
                        outcomes[1] += 1;
                    }
                    Opened::Candidate(_) => panic!("it never stood"),
                    Opened::Empty => {
                        assert!(!done, "{cut:?} after {after}, seed {seed}: a founded cluster is gone");
                        found(&disk);
                        outcomes[0] += 1;
                    }
                }
            }
        }
    }
    assert!(outcomes[0] > 50 && outcomes[1] > 50, "both were tried: {outcomes:?}");
}

#[test]
fn interrupted_candidate_write_leaves_the_old_or_the_new_one_until_the_bootstrap() {
    let candidate = |tokens_above| Candidate {
        member: Some(Member { node: 1, incarnation: founding().incarnation, ..Member::default() }),
        tokens_above,
        ..Candidate::default()
    };
    let mut outcomes = [0, 0, 0, 0];
    for (cut, after, seed) in
        CUTS.iter().flat_map(|cut| (0..6).flat_map(move |after| (0..20).map(move |seed| (*cut, after, seed))))
    {
        let disk = MemoryDisk::new();
        disk.fail(cut, after, EIO);
        let stood = storage::stand(&disk, &candidate(1)).is_ok();
        let promised = stood && storage::stand(&disk, &candidate(2)).is_ok();
        let founded = promised && storage::found(&disk, SMALL, &founding()).is_ok();
        let mut rng = Rng(seed);
        disk.heal();
        disk.crash(|n| rng.below(n));
        let what = format!("{cut:?} after {after}, seed {seed}");
        match storage::open(&disk, SMALL).expect("no crash is damage") {
            Opened::Empty => {
                assert!(!stood, "{what}: what was said is forgotten");
                outcomes[0] += 1;
            }
            Opened::Candidate(kept) => {
                assert!(
                    !founded && (kept == candidate(2) || !promised && kept == candidate(1)),
                    "{what}: {kept:?}"
                );
                outcomes[kept.tokens_above as usize] += 1;
                storage::stand(&disk, &candidate(3)).expect("a sound disk");
                found(&disk);
            }
            Opened::Existing(existing) => {
                assert_eq!(existing.founding, founding());
                assert!(!disk.list().expect("a sound disk").contains(&"candidate".to_owned()), "{what}");
                outcomes[3] += 1;
            }
        }
    }
    assert!(outcomes.iter().all(|outcome| *outcome > 10), "all were tried: {outcomes:?}");
}

#[test]
fn every_torn_last_record_is_dropped_and_nothing_else() {
    // Both records fit the first segment, which has six sectors for records. The last record has three; every
    // subset of them may reach the disk.
    for arrived in 0..8_u64 {
        let disk = MemoryDisk::new();
        let mut log = found(&disk).log;
        log.append(&record(Some(hard_state(1, 1, 0)), vec![entry(1, 1, 600)])).expect("a sound disk");
        let durable = open_view(&disk.copy()).expect("a sound disk");
        disk.fail(Operation::Sync, 0, EIO);
        log.append(&record(Some(hard_state(2, 2, 2)), vec![entry(2, 2, 1200)])).expect_err("it is cut off");
        let whole = open_view(&disk.copy()).expect("all of it can be read");
        assert_eq!(whole.entries.len(), 2);
        // `MemoryDisk::crash` asks for numbers. The first one, 2, makes it ask for each sector separately;
        // each of the other three decides whether one sector reaches the disk (1) or not (0).
        let mut answers = vec![2].into_iter().chain((0..3).map(|bit| arrived >> bit & 1));
        let mut tosses = 0;
        disk.crash(|n| {
            // `crash` also asks for the size of every file that did not grow, with n = 1: only 0 is possible.
            if n == 1 {
                return 0;
            }
            tosses += 1;
            answers.next().expect("one mood, three sectors")
        });
        assert_eq!(tosses, 4, "the record has three sectors");
        let expected = if arrived == 7 { whole } else { durable };
        assert_eq!(open_view(&disk).expect("a torn record is no damage"), expected, "arrived: {arrived:03b}");
    }
}

/// The expected content of the disk.
struct Model {
    /// The last acknowledged view.
    view: View,
    /// The hard state as last appended, raised by received snapshots and at starts.
    hard_state: HardState,
}

impl Model {
    fn last(&self) -> (u64, u64) {
        let snapshot = self.view.snapshot.as_ref().map_or((0, 0), |(head, _)| (head.index, head.term));
        self.view.entries.last().map_or(snapshot, |entry| (entry.index, entry.term))
    }

    fn start(&self) -> u64 {
        self.view.snapshot.as_ref().map_or(0, |(head, _)| head.index)
    }

    fn raised(hard_state: HardState, index: u64, term: u64) -> HardState {
        HardState {
            term: hard_state.term.max(term),
            vote: if hard_state.term < term { 0 } else { hard_state.vote },
            commit: hard_state.commit.max(index),
        }
    }
}

/// A random run: some steps, an interruption, a start that may be interrupted too, and so on.
fn live(seed: u64, seen: &mut [u64; 4]) {
    let mut rng = Rng(seed);
    let disk = MemoryDisk::new();
    let mut node = found(&disk);
    let mut model = Model { view: view(&mut node).expect("a sound disk"), hard_state: HardState::default() };
    for _ in 0..12 {
        let (cut, after) = (CUTS[rng.below(6) as usize], rng.below(20));
        disk.fail(cut, after, EIO);
        // The views that a start may find after the interruption.
        let mut possible = vec![model.view.clone()];
        for _ in 0..rng.below(12) + 1 {
            if step(&disk, &mut node, &mut model, &mut rng, &mut possible).is_err() {
                seen[0] += 1;
                break;
            }
            possible = vec![model.view.clone()];
        }
        // A process restart or a power cut, followed by starts that may be interrupted too.
        let found = loop {
            if rng.below(3) == 0 {
                disk.restart();
            } else {
                disk.crash(|n| rng.below(n));
                seen[1] += 1;
            }
            disk.heal();
            if rng.below(2) == 0 {
                disk.fail(CUTS[rng.below(6) as usize], rng.below(6), EIO);
            }
            match open(&disk) {
                Ok(mut existing) => {
                    disk.heal();
                    break view(&mut existing).expect("no crash is damage");
                }
                Err(storage::OpenError::Io { .. }) => seen[2] += 1,
                Err(error) => panic!("a crash was taken for damage: {error}"),
            }
        };
        assert!(possible.contains(&found), "found {found:?}, possible were {possible:?}");
        seen[3] += u64::from(found != possible[0]);
        // A view that a start has returned must survive the next power cut.
        disk.crash(|n| rng.below(n));
        node = open(&disk).expect("no crash is damage");
        assert_eq!(
            view(&mut node).expect("no crash is damage"),
            found,
            "a start showed what was not durable"
        );
        let (index, term) = found.snapshot.as_ref().map_or((0, 0), |(head, _)| (head.index, head.term));
        model.hard_state = Model::raised(found.hard_state, index, term);
        model.view = found;
    }
}

/// One random disk operation of a node. If it fails, `possible` holds every view that a start may find.
fn step(
    disk: &MemoryDisk,
    node: &mut Existing<MemoryDisk>,
    model: &mut Model,
    rng: &mut Rng,
    possible: &mut Vec<View>,
) -> std::io::Result<()> {
    let (last, last_term) = model.last();
    let start = model.start();
    match rng.below(10) {
        0..=5 => {
            let term = last_term.max(model.hard_state.term).max(1) + rng.below(2);
            // Mostly appends; sometimes replaces a tail, but never a committed entry.
            let floor = model.view.hard_state.commit.max(start);
            let first = if rng.below(4) == 0 { floor + 1 + rng.below(last - floor + 1) } else { last + 1 };
            let lengths = [0, 10, 470, 1200, 3000, 9000];
            let count = rng.below(4);
            let entries: Vec<_> =
                (0..count).map(|n| entry(first + n, term, lengths[rng.below(6) as usize] as usize)).collect();
            let end = if count == 0 { last } else { first + count - 1 };
            let commit = floor + rng.below(end - floor + 1);
            let hard_state =
                (count == 0 || rng.below(2) == 0).then(|| hard_state(term, rng.below(4), commit));
            let mut after = model.view.clone();
            if count > 0 {
                after.entries.retain(|entry| entry.index < first);
                after.entries.extend(entries.iter().cloned());
            }
            after.hard_state = hard_state.unwrap_or(after.hard_state);
            possible.push(after.clone());
            node.log.append(&record(hard_state, entries))?;
            model.hard_state = hard_state.unwrap_or(model.hard_state);
            model.view = after;
            Ok(())
        }
        6 => {
            if !node.log.wants_spare() {
                return Ok(());
            }
            let spare = node.log.spare_maker().make()?;
            assert!(node.log.give_spare(spare).names().is_empty());
            Ok(())
        }
        7 | 8 => {
            // A snapshot of the node's own table, at the commit index.
            let index = model.view.hard_state.commit;
            let Some(term) =
                model.view.entries.iter().find(|entry| entry.index == index).map(|entry| entry.term)
            else {
                return Ok(());
            };
            let mut after = model.view.clone();
            after.snapshot = Some((head(index, term), pieces(index, term).concat()));
            after.entries.retain(|entry| entry.index > index);
            after.hard_state = Model::raised(after.hard_state, index, term);
            possible.push(after.clone());
            let mut older = write_snapshot(node, index, term)?;
            model.view = after;
            *possible = vec![model.view.clone()];
            older.run(disk)?;
            node.log.compact(index).run(disk)
        }
        _ => {
            // A snapshot from a leader of a later term replaces the log.
            let (index, term) =
                (model.view.hard_state.commit + 1 + rng.below(5), last_term.max(model.hard_state.term) + 1);
            let mut after = model.view.clone();
            after.snapshot = Some((head(index, term), pieces(index, term).concat()));
            after.entries.clear();
            after.hard_state = Model::raised(after.hard_state, index, term);
            possible.push(after.clone());
            let mut older = write_snapshot(node, index, term)?;
            model.view = after;
            model.hard_state = Model::raised(model.hard_state, index, term);
            *possible = vec![model.view.clone()];
            node.log.reset(index, term)?;
            older.run(disk)?;
            node.log.compact(index).run(disk)
        }
    }
}

fn write_snapshot(node: &Existing<MemoryDisk>, index: u64, term: u64) -> std::io::Result<storage::Removal> {
    let mut writer = node.snapshots.begin(&head(index, term))?;
    for piece in pieces(index, term) {
        writer.piece(&piece)?;
    }
    writer.finish(&tail(&pieces(index, term)))
}

#[test]
fn random_crashes_lose_no_acknowledged_write() {
    let mut seen = [0; 4];
    for seed in 0..400 {
        let life = catch_unwind(AssertUnwindSafe(|| live(seed, &mut seen)));
        if let Err(panic) = life {
            eprintln!(
                "replay it with `live({seed}, &mut [0; 4])` in crates/replica/tests/storage/crashes.rs"
            );
            std::panic::resume_unwind(panic);
        }
    }
    let [failed_steps, power_cuts, failed_starts, in_flight] = seen;
    assert!(
        failed_steps > 500 && power_cuts > 1000 && failed_starts > 200 && in_flight > 20,
        "the faults must bite: {seen:?}"
    );
}

fn sealed(node: &Existing<MemoryDisk>, index: u64, term: u64) -> storage::Sealed<MemoryDisk> {
    let mut writer = node.snapshots.begin(&head(index, term)).expect("a sound disk");
    for piece in pieces(index, term) {
        writer.piece(&piece).expect("a sound disk");
    }
    writer.seal(&tail(&pieces(index, term))).expect("a sound disk")
}

/// A leader's snapshot is complete, but the consensus engine has not decided yet whether it takes effect.
#[test]
fn sealed_snapshot_has_no_effect_until_it_is_published() {
    let (disk, view) = small_directory();
    let node = open(&disk).expect("a sound disk");
    let sealed = sealed(&node, 20, 5);
    assert_eq!((sealed.index(), sealed.bytes()), (20, 500));
    drop((sealed, node));
    let before = names(&disk).len();
    disk.crash(|_| 0);
    assert_eq!(open_view(&disk).expect("no crash is damage"), view);
    assert!(names(&disk).len() < before, "what was left of it is gone");
    let node = open(&disk).expect("a sound disk");
    let before = names(&disk);
    self::sealed(&node, 20, 5).give_up().run(&disk).expect("a sound disk");
    assert_eq!(names(&disk), before);
}

/// The order of an installation matters: if the log were reset first and a power cut followed, a healthy node
/// would reject its own disk.
#[test]
fn log_reset_before_a_snapshot_is_published_makes_the_start_fail() {
    for is_swapped in [false, true] {
        let (disk, _) = small_directory();
        let mut node = open(&disk).expect("a sound disk");
        let sealed = sealed(&node, 20, 5);
        if is_swapped {
            node.log.reset(20, 5).expect("a sound disk");
        } else {
            drop(sealed.publish().expect("a sound disk"));
        }
        drop(node);
        disk.crash(|_| 0);
        match open_view(&disk) {
            Ok(view) => {
                assert!(!is_swapped);
                assert_eq!(view.snapshot.map(|(head, _)| head.index), Some(20));
                assert!(view.entries.is_empty());
                assert_eq!((view.hard_state.term, view.hard_state.commit), (5, 20));
            }
            Err(error) => assert!(is_swapped, "{error}"),
        }
    }
}
