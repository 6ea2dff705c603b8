//! A snapshot written in pieces equals the table at the time when the snapshot began, even if commands are
//! applied between the pieces; and writing it changes no result of the commands.
//!
//! Random commands and pieces of snapshots alternate on one table; the commands also run on a second table,
//! the twin, which takes no snapshots. The written stream is restored and compared with a plain snapshot that
//! was taken when the stream began. Then all commands applied since then are applied to the restored table,
//! which must then equal the original.

#[allow(dead_code, reason = "the steps of other properties")]
mod random_steps;

use lockkeeper_core::{
    Acquire, Command, Effects, IfBusy, LockName, Mode, OpenSession, Restorer, Seq, SessionId, Snapshot,
    SnapshotProgress, SnapshotUnderWay, Table, invariants, limits,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use random_steps::Step;

#[derive(Clone, Debug)]
enum Act {
    Step(Step),
    /// Continues the backlog.
    Resume,
    Begin,
    Piece(usize),
    Abandon,
}

/// Pieces are small (a budget of 0 to 3 items), so that most of the table changes before a snapshot is
/// complete.
fn act(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Act> {
    prop_oneof![
        50 => step.prop_map(Act::Step),
        10 => Just(Act::Resume),
        10 => Just(Act::Begin),
        29 => (0..4_usize).prop_map(Act::Piece),
        1 => Just(Act::Abandon),
    ]
}

fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/walks.regressions"))),
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = lockkeeper_corpus::size(cases / 40, cases / 3, cases);
    }
    config
}

/// A snapshot in progress, and its expected result.
struct Walk {
    expected: Snapshot,
    stream: Vec<u8>,
    since: Vec<Command>,
}

struct World {
    table: Table,
    twin: Table,
    now: Snapshot,
    history: Vec<Command>,
    walk: Option<Walk>,
    /// Size in bytes of the parts in which a stream is read back.
    cut: usize,
    /// The bound on a command's work.
    work_max: usize,
    walks_done: usize,
}

impl World {
    fn new(cut: usize, work_max: usize) -> Self {
        let (table, twin) = (Table::new(1).with_work_max(work_max), Table::new(2).with_work_max(work_max));
        let now = table.snapshot();
        Self { table, twin, now, history: Vec::new(), walk: None, cut, work_max, walks_done: 0 }
    }

    fn act(&mut self, act: Act) -> Result<(), String> {
        match act {
            Act::Step(step) => self.step(step),
            Act::Resume => self.apply(Command::Resume),
            Act::Begin => self.begin(),
            Act::Piece(budget) => self.piece(budget),
            Act::Abandon => {
                self.table.abandon_snapshot();
                self.walk = None;
                Ok(())
            }
        }
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        if let Step::CheckToken { name, token } = step {
            let (name, token) = (legal(name), random_steps::token(token, &self.now));
            let (told, twins) = (self.table.check_token(&name, token), self.twin.check_token(&name, token));
            return if told == twins {
                Ok(())
            } else {
                Err(format!("{token} at {name}: {told:?}, {twins:?}"))
            };
        }
        let Some(command) = random_steps::command(step, &self.now, &self.history) else { return Ok(()) };
        self.apply(command)
    }

    fn apply(&mut self, command: Command) -> Result<(), String> {
        let (mut effects, mut twins) = (Effects::new(), Effects::new());
        let reply = self.table.apply(command.clone(), &mut effects);
        let twins_reply = self.twin.apply(command.clone(), &mut twins);
        self.now = self.table.snapshot();
        if reply != twins_reply || effects != twins || self.now != self.twin.snapshot() {
            return Err(format!("the walk changed what {command:?} does: {reply:?}, not {twins_reply:?}"));
        }
        invariants::all(&self.table)?;
        if let Some(walk) = &mut self.walk {
            walk.since.push(command.clone());
        }
        self.history.push(command);
        Ok(())
    }

    fn begin(&mut self) -> Result<(), String> {
        let begun = self.table.begin_snapshot();
        match (&self.walk, begun) {
            (Some(_), Err(SnapshotUnderWay)) => {}
            (None, Ok(())) => {
                let expected = self.now.clone();
                self.walk = Some(Walk { expected, stream: Vec::new(), since: Vec::new() });
            }
            (_, begun) => return Err(format!("{begun:?}, but one was under way: {}", self.walk.is_some())),
        }
        Ok(())
    }

    fn piece(&mut self, budget: usize) -> Result<(), String> {
        let Some(mut walk) = self.walk.take() else {
            let mut stream = Vec::new();
            let state = self.table.snapshot_piece(budget, &mut stream);
            return if state == SnapshotProgress::NoWalk && stream.is_empty() {
                Ok(())
            } else {
                Err(format!("a piece of no walk: {state:?}, {stream:?}"))
            };
        };
        let before = walk.stream.len();
        let state = self.table.snapshot_piece(budget, &mut walk.stream);
        match state {
            SnapshotProgress::Continue if self.table.is_snapshot_under_way() => self.walk = Some(walk),
            SnapshotProgress::Done { digest } if !self.table.is_snapshot_under_way() => {
                self.walks_done += 1;
                return self.check(&walk, digest);
            }
            _ => {
                return Err(format!(
                    "{state:?} after {before} bytes, walking: {}",
                    self.table.is_snapshot_under_way()
                ));
            }
        }
        Ok(())
    }

    /// Checks that the stream equals the table at the start of the snapshot, and that the restored table,
    /// after the commands applied since then, equals the original.
    fn check(&self, walk: &Walk, digest: u128) -> Result<(), String> {
        let Walk { expected, stream, since } = walk;
        let read = Snapshot::decode(stream).map_err(|why| why.to_string())?;
        if read != *expected || read.encode() != expected.encode() {
            return Err(format!("the walk began at\n{expected:?}\nand wrote\n{read:?}\nduring {since:?}"));
        }
        let mut restorer = Restorer::new(3);
        for piece in stream.chunks(self.cut) {
            restorer.push(piece).map_err(|why| why.to_string())?;
        }
        if [restorer.digest(), Some(expected.digest())] != [Some(digest); 2] {
            return Err(format!("digest: walk {digest:x}, read {:x?}", restorer.digest()));
        }
        let mut restored = restorer.finish().map_err(|why| why.to_string())?.with_work_max(self.work_max);
        invariants::all(&restored)?;
        if restored.snapshot() != *expected {
            return Err(format!("{expected:?} was restored as {:?}", restored.snapshot()));
        }
        // The restored table stores its entries at other indexes than the original, and so writes them in
        // another order. The digest must still be the same.
        if whole_walk(&mut restored).1 != digest {
            return Err("a walk over the restored table has another digest".to_owned());
        }
        for command in since {
            let _ = restored.apply(command.clone(), &mut Effects::new());
        }
        if restored.snapshot() == self.now {
            Ok(())
        } else {
            Err(format!("{:?} became {:?} after {since:?}", self.now, restored.snapshot()))
        }
    }

    /// Completes the snapshot in progress, or else a new one, and checks it.
    fn settle(&mut self) -> Result<(), String> {
        if self.walk.is_none() {
            self.begin()?;
        }
        while self.walk.is_some() {
            self.piece(1)?;
        }
        Ok(())
    }
}

fn legal(name: &str) -> LockName {
    LockName::parse(name).expect("a legal name")
}

fn whole_walk(table: &mut Table) -> (Vec<u8>, u128) {
    table.begin_snapshot().expect("no walk is under way");
    let mut stream = Vec::new();
    loop {
        if let SnapshotProgress::Done { digest } = table.snapshot_piece(1, &mut stream) {
            return (stream, digest);
        }
    }
}

fn play(acts: impl IntoIterator<Item = Act>, cut: usize, work_max: usize) -> Result<(), String> {
    let mut world = World::new(cut, work_max);
    for step in random_steps::openings() {
        world.step(step)?;
    }
    for act in acts {
        world.act(act)?;
    }
    world.settle()?;
    if world.walks_done > 0 { Ok(()) } else { Err("no walk was written to its end".to_owned()) }
}

proptest! {
    #![proptest_config(config(3_000))]

    #[test]
    fn snapshot_in_pieces_equals_the_table_at_its_start(
        acts in vec(act(random_steps::step()), 1..120),
        cut in 1..200_usize,
    ) {
        let verdict = play(acts, cut, limits::WORK_PER_COMMAND_MAX);
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

proptest! {
    #![proptest_config(config(400))]

    /// As the property above, with many waiters: queues must be restored in order, although the stream
    /// contains entries in the order of their storage, not of their tickets.
    #[test]
    fn snapshot_in_pieces_preserves_long_queues(
        acts in vec(act(random_steps::crowding_step()), 50..250),
        cut in 1..200_usize,
    ) {
        let verdict = play(acts, cut, limits::WORK_PER_COMMAND_MAX);
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    /// As the property above, with commands that leave nearly all work in the backlog, which the snapshot
    /// must contain.
    #[test]
    fn snapshot_in_pieces_contains_the_backlog(
        acts in vec(act(random_steps::crowding_step()), 30..120),
        cut in 1..200_usize,
        work_max in 1_usize..4,
    ) {
        let verdict = play(acts, cut, work_max);
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

/// A table in which one session holds `count` locks.
fn with_held(count: u64) -> Table {
    let mut table = Table::new(1);
    let mut effects = Effects::new();
    for secret in 1..=2 {
        let open = OpenSession {
            secret_hash: [secret; 32],
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            linger_ms: 0,
            label: "".into(),
            identity: Box::default(),
        };
        let _opened = table.apply(Command::OpenSession(open), &mut effects);
    }
    for seq in 1..=count {
        let _granted = table.apply(
            Command::Acquire(Acquire {
                session: SessionId(1),
                seq: Seq(seq),
                done_through: Seq(seq - 1),
                names: vec![legal(&format!("held/{seq}"))],
                mode: Mode::Exclusive,
                subtree: false,
                if_busy: IfBusy::Fail,
                keep_closed_ms: 0,
                value: Box::default(),
                meta: Box::default(),
                spare_tokens: 0,
                holding: Box::default(),
            }),
            &mut effects,
        );
    }
    assert_eq!(table.request_count() as u64, count);
    table
}

/// A command that changes many entries during a snapshot saves their old states. These are written in pieces
/// too.
#[test]
fn ending_a_large_session_does_not_enlarge_a_snapshot_piece() {
    let mut table = with_held(20_000);
    let expected = table.snapshot();
    table.begin_snapshot().expect("no walk is under way");
    let mut stream = Vec::new();
    assert_eq!(table.snapshot_piece(10, &mut stream), SnapshotProgress::Continue);
    let _ended = table.apply(Command::CloseSession { session: SessionId(1) }, &mut Effects::new());
    while table.has_backlog() {
        let _resumed = table.apply(Command::Resume, &mut Effects::new());
    }
    assert_eq!(table.request_count(), 0);
    let mut pieces = 0;
    let digest = loop {
        let before = stream.len();
        let state = table.snapshot_piece(10, &mut stream);
        // A chunk of saved items has 64 KiB at most, plus the rest of its last item.
        assert!(stream.len() - before < (1 << 16) + 1000, "a piece of {} bytes", stream.len() - before);
        pieces += 1;
        if let SnapshotProgress::Done { digest } = state {
            break digest;
        }
    };
    assert!(pieces > 20_000 / 160, "vacant places cost a piece something too: {pieces} pieces");
    let read = Snapshot::decode(&stream).expect("the walk wrote a whole stream");
    assert!(read == expected && digest == expected.digest());
    // No saved state remains for the next snapshot.
    let (stream, digest) = whole_walk(&mut table);
    assert_eq!(Snapshot::decode(&stream).expect("a whole stream"), table.snapshot());
    assert_eq!(digest, table.snapshot().digest());
}

#[test]
fn cancelled_snapshot_does_not_affect_the_next_one() {
    let mut table = with_held(100);
    table.begin_snapshot().expect("no walk is under way");
    assert_eq!(table.snapshot_piece(5, &mut Vec::new()), SnapshotProgress::Continue);
    let finish = |target| Command::Finish {
        session: SessionId(1),
        seq: Seq(target + 100),
        target: Seq(target),
        done_through: Seq(0),
    };
    let _released = table.apply(finish(90), &mut Effects::new());
    assert_eq!(table.begin_snapshot(), Err(SnapshotUnderWay));
    table.abandon_snapshot();
    assert_eq!(table.snapshot_piece(5, &mut Vec::new()), SnapshotProgress::NoWalk);
    let _released = table.apply(finish(91), &mut Effects::new());
    let expected = table.snapshot();
    let (stream, digest) = whole_walk(&mut table);
    assert_eq!(Snapshot::decode(&stream).expect("a whole stream"), expected);
    assert_eq!(digest, expected.digest());
}
