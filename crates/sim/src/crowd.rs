//! Crowds: worlds in which one client queues hundreds of requests, by little budgets that such a crowd exceeds.
//!
//! Only [`Budgets`] knows how small: each table of a world, on every node and in the oracle, gets its bound here.

use lockkeeper_core::{Acquire, Command, IfBusy, LockName, Mode, Seq, SessionId, Table, limits};
use lockkeeper_replica::{ENDS_PER_PART, TURN_VISITS_MAX};

use crate::dice::Dice;

/// Where everything of a crowd lies.
pub(crate) const BASE: &str = "crowd";

/// How the requests of a crowd lie to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// All of one name.
    Name,
    /// Each of a name of its own, below one subtree that is held.
    Subtree,
    /// The same, with names of as many segments as there may be.
    Deep,
}

/// The crowd of a world.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    pub(crate) shape: Shape,
    pub(crate) size: u64,
    /// Of its requests, in percent.
    pub(crate) shared: u64,
    /// Of its requests: those that wait for a limited time only.
    pub(crate) limited: u64,
    /// How likely its client stays away once all wait, in percent.
    pub(crate) away: u64,
    /// How likely it closes its session while all wait, in percent.
    pub(crate) closes: u64,
}

impl Crowd {
    /// Some seeds have one.
    pub(crate) fn roll(dice: &mut Dice) -> Option<Self> {
        if !dice.chance(12) {
            return None;
        }
        let shape = dice.pick(&[Shape::Name, Shape::Name, Shape::Subtree, Shape::Deep]);
        // What the oracle does for each command grows with the crowd, and with its names.
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

    /// The name of one of the crowd.
    pub(crate) fn name(&self, number: u64) -> String {
        let deep = "/x".repeat(limits::NAME_SEGMENTS_MAX - 2);
        match self.shape {
            Shape::Name => BASE.to_owned(),
            Shape::Subtree => format!("{BASE}/{number}"),
            Shape::Deep => format!("{BASE}{deep}/{number}"),
        }
    }

    /// Whether the request that keeps all others waiting is for a subtree.
    pub(crate) fn is_wide(&self) -> bool {
        self.shape != Shape::Name
    }
}

/// What a node may do in a turn, and a table in a command. Production's, or less: else only a crowd of tens of thousands
/// would leave work for later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budgets {
    work_max: usize,
    pub(crate) turn_visits_max: u64,
    pub(crate) ends_per_part: usize,
    /// Most entries of the table that a node looks at in one turn: its budget, and one command that exceeds it.
    pub(crate) visits_max: u64,
}

impl Budgets {
    pub(crate) fn roll(dice: &mut Dice, crowd: Option<&Crowd>) -> Self {
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

    /// Most entries of the table that a command looks at. Requests of a world have one name, so a command that ends one
    /// looks at no more than one that asks for the longest of them.
    pub(crate) fn visits_max_of(self, command: &Command) -> u64 {
        command.visits_max_with(self.work_max).min(self.visits_max - self.turn_visits_max)
    }

    /// A table of this world. The bound decides which command grants what, so all of them have the same.
    pub(crate) fn table(self, table: Table) -> Table {
        table.with_work_max(self.work_max)
    }
}

/// No command of a world names more than one name, so none may look at more entries than this one.
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
    })
}
