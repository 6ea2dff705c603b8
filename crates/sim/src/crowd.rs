//! Crowds: in some scenarios one client queues hundreds of requests. Work budgets are then so small that
//! these requests exceed them.
//!
//! Only [`Budgets`] defines the budgets: every table of a run, on the nodes and in the oracle, is created
//! with the same ones.

use lockkeeper_core::{Acquire, Command, IfBusy, LockName, Mode, Seq, SessionId, Table, limits};
use lockkeeper_replica::{ENDS_PER_PART, TURN_VISITS_MAX};

use crate::rng::Rng;

/// The name or subtree that all requests of a crowd compete for.
pub(crate) const BASE: &str = "crowd";

/// How the names of a crowd's requests conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// All requests have the same name.
    Name,
    /// Each request has its own name, all below one held subtree.
    Subtree,
    /// As `Subtree`, but the names have the largest number of segments.
    Deep,
    /// Each request has its own name, and asks for a cached hold. Other clients acquire the subtree above.
    Cached,
}

/// The crowd of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    pub(crate) shape: Shape,
    pub(crate) size: u64,
    /// Share of requests in mode `shared`, in percent.
    pub(crate) shared: u64,
    /// Share of requests with a wait limit, in percent.
    pub(crate) limited: u64,
    /// Probability that the client disconnects for a while once all requests wait, in percent.
    pub(crate) away: u64,
    /// Probability that the client closes its session while all requests wait, in percent.
    pub(crate) closes: u64,
}

impl Crowd {
    /// Chooses a crowd at random; most seeds have none.
    pub(crate) fn roll(dice: &mut Rng) -> Option<Self> {
        if !dice.chance(12) {
            return None;
        }
        let shape = dice.pick(&[Shape::Name, Shape::Name, Shape::Subtree, Shape::Deep, Shape::Cached]);
        // The oracle's cost for each command grows with the size of the crowd and the length of its names.
        let sizes = if shape == Shape::Name { [100, 200, 400] } else { [60, 120, 240] };
        let size = sizes[dice.below(3).min(dice.below(3)) as usize];
        Some(Self {
            shape,
            size,
            shared: dice.pick(&[0, 50, 90, 100]),
            limited: dice.pick(&[0, 50, 100]),
            away: dice.pick(&[0, 50, 90]),
            closes: dice.pick(&[0, 20]),
        })
    }

    /// The lock name of one request.
    pub(crate) fn name(&self, number: u64) -> String {
        let deep = "/x".repeat(limits::NAME_SEGMENTS_MAX - 2);
        match self.shape {
            Shape::Name => BASE.to_owned(),
            Shape::Subtree | Shape::Cached => format!("{BASE}/{number}"),
            Shape::Deep => format!("{BASE}{deep}/{number}"),
        }
    }

    /// The spare tokens of each request.
    pub(crate) fn spare_tokens(&self) -> u32 {
        u32::from(self.shape == Shape::Cached)
    }

    /// Whether the request that blocks all others holds a subtree.
    pub(crate) fn is_wide(&self) -> bool {
        self.shape != Shape::Name
    }
}

/// The work budgets of a node's turn and of a command. They are those of production or smaller: with those of
/// production, only tens of thousands of requests would leave a backlog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budgets {
    work_max: usize,
    pub(crate) turn_visits_max: u64,
    pub(crate) ends_per_part: usize,
    /// The largest number of table entries that a node visits in one turn: its budget, plus one command that
    /// exceeds it.
    pub(crate) visits_max: u64,
}

impl Budgets {
    pub(crate) fn roll(dice: &mut Rng, crowd: Option<&Crowd>) -> Self {
        if crowd.is_none() {
            return Self::new(limits::WORK_PER_COMMAND_MAX, TURN_VISITS_MAX, ENDS_PER_PART);
        }
        let (work_max, turn_visits_max) = (dice.pick(&[8, 32, 128]), dice.pick(&[500, 2_000]));
        Self::new(work_max, turn_visits_max, dice.pick(&[10, 50]))
    }

    fn new(work_max: usize, turn_visits_max: u64, ends_per_part: usize) -> Self {
        let visits_max = turn_visits_max + longest_acquire().visits_max_with(work_max);
        Self { work_max, turn_visits_max, ends_per_part, visits_max }
    }

    /// The largest number of table entries that this command visits. A command that ends a request visits no
    /// more entries than an acquire of the longest name: all other requests of the simulation have one name,
    /// or two short ones.
    pub(crate) fn visits_max_of(self, command: &Command) -> u64 {
        command.visits_max_with(self.work_max).min(self.visits_max - self.turn_visits_max)
    }

    /// Applies the budget to a table. The budget decides which command makes which grant, so all tables of a
    /// run must have the same one.
    pub(crate) fn table(self, table: Table) -> Table {
        table.with_work_max(self.work_max)
    }
}

/// The acquire that visits the most entries: it has a name with the largest number of segments.
fn longest_acquire() -> Command {
    let name = format!("{BASE}{}", "/x".repeat(limits::NAME_SEGMENTS_MAX - 1));
    Command::Acquire(Acquire {
        session: SessionId(0),
        seq: Seq(0),
        done_through: Seq(0),
        names: LockName::parse(&name).into_iter().collect(),
        mode: Mode::Exclusive,
        subtree: false,
        if_busy: IfBusy::Fail,
        keep_closed_ms: 0,
        value: Box::default(),
        meta: Box::default(),
        spare_tokens: 0,
        holding: Box::default(),
    })
}
