//! A queue that serves its callers in turn, so that a caller with very many items delays only itself.
//!
//! All callers get equal shares of the weight that is served, and so do the lanes of one caller, such as its
//! streams. The items of a lane keep their order. This is round robin by weight: an item waits for at most
//! one turn of each other caller.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The weight that a caller, or a lane, may take in its turn. A smaller value shortens the wait for the
/// others' turns, and costs more turns.
pub(super) const QUANTUM: usize = 64;

/// Items by caller `C` and lane, and items that must follow all before them.
#[derive(Debug)]
pub(super) struct FairQueue<C, T> {
    callers: Rounds<C, CallerQueue<T>>,
    barriers: VecDeque<Barrier<T>>,
    /// How many items were pushed so far.
    pushed: u64,
    /// The number and the total weight of the queued items, without the barriers.
    items: usize,
    weight: usize,
}

/// The items of one caller.
#[derive(Debug)]
struct CallerQueue<T> {
    lanes: Rounds<u64, LaneQueue<T>>,
    weight: usize,
}

#[derive(Debug)]
struct LaneQueue<T> {
    items: VecDeque<QueuedItem<T>>,
    weight: usize,
}

#[derive(Debug)]
struct QueuedItem<T> {
    number: u64,
    weight: usize,
    item: T,
}

/// An item that is served after all items pushed before it.
#[derive(Debug)]
struct Barrier<T> {
    number: u64,
    /// How many items with a lower number are still queued.
    before: usize,
    item: T,
}

/// The weight of the queued items: in total, of one caller, and of one of its lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuedWeight {
    pub(super) all: usize,
    pub(super) caller: usize,
    pub(super) lane: usize,
}

impl<C: Clone + Eq + Hash, T> FairQueue<C, T> {
    /// Appends an item to a caller's lane.
    pub(super) fn push(&mut self, caller: &C, lane: u64, weight: usize, item: T) {
        self.pushed += 1;
        self.items += 1;
        self.weight += weight;
        let caller = self.callers.queue(caller);
        caller.weight += weight;
        let lane = caller.lanes.queue(&lane);
        lane.weight += weight;
        lane.items.push_back(QueuedItem { number: self.pushed, weight, item });
    }

    /// Appends an item that is served after all items pushed before it. It counts as weight 1 when it is
    /// served, and not at all while it is queued.
    pub(super) fn push_after_all(&mut self, item: T) {
        self.pushed += 1;
        self.barriers.push_back(Barrier { number: self.pushed, before: self.items, item });
    }

    /// The next item, with its caller and weight.
    pub(super) fn pop(&mut self) -> Option<(Option<C>, usize, T)> {
        if self.barriers.front().is_some_and(|barrier| barrier.before == 0) {
            return self.barriers.pop_front().map(|barrier| (None, 1, barrier.item));
        }
        if self.items == 0 {
            // The queue is empty: no caller waits, so the debts of earlier turns are cancelled.
            self.callers.clear();
            return None;
        }
        let (caller, QueuedItem { number, weight, item }) = self.callers.pop()?;
        self.items -= 1;
        self.weight -= weight;
        for barrier in self.barriers.iter_mut().filter(|barrier| barrier.number > number) {
            barrier.before -= 1;
        }
        Some((Some(caller), weight, item))
    }

    pub(super) fn weight(&self, caller: &C, lane: u64) -> QueuedWeight {
        let caller = self.callers.get(caller);
        let lane = caller.and_then(|caller| caller.lanes.get(&lane));
        QueuedWeight {
            all: self.weight,
            caller: caller.map_or(0, |caller| caller.weight),
            lane: lane.map_or(0, |lane| lane.weight),
        }
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.items == 0 && self.barriers.is_empty()
    }
}

impl<C, T> Default for FairQueue<C, T> {
    fn default() -> Self {
        Self { callers: Rounds::default(), barriers: VecDeque::new(), pushed: 0, items: 0, weight: 0 }
    }
}

/// Queues that are served in turn. Each may take items of the weight [`QUANTUM`] in its turn. If its last
/// item exceeds that, the excess is deducted from its next turns.
#[derive(Debug)]
struct Rounds<K, Q> {
    members: HashMap<K, RoundMember<Q>>,
    /// The order of the turns; the first member has the current turn. A member without items stays until it
    /// has paid for the excess of its earlier turns.
    turns: VecDeque<K>,
}

#[derive(Debug)]
struct RoundMember<Q> {
    queue: Q,
    /// The weight that the member may still take in this turn; at 0 or less its turn is over.
    credit: i64,
}

impl<K: Clone + Eq + Hash, Q: TakesTurns> Rounds<K, Q> {
    /// The queue of a member. The turn of a new member comes after those of all others.
    fn queue(&mut self, key: &K) -> &mut Q {
        if !self.members.contains_key(key) {
            self.turns.push_back(key.clone());
        }
        let new = || RoundMember { queue: Q::default(), credit: QUANTUM as i64 };
        &mut self.members.entry(key.clone()).or_insert_with(new).queue
    }

    fn get(&self, key: &K) -> Option<&Q> {
        self.members.get(key).map(|member| &member.queue)
    }

    /// The next item of the member whose turn it is.
    fn pop(&mut self) -> Option<(K, QueuedItem<Q::Item>)> {
        loop {
            let key = self.turns.front()?;
            let Some(member) = self.members.get_mut(key) else {
                self.turns.pop_front();
                continue;
            };
            if member.credit <= 0 {
                member.credit += QUANTUM as i64;
                self.turns.rotate_left(1);
                continue;
            }
            if let Some(queued) = member.queue.pop() {
                member.credit -= queued.weight as i64;
                return Some((key.clone(), queued));
            }
            self.members.remove(key);
            self.turns.pop_front();
        }
    }

    fn clear(&mut self) {
        self.members.clear();
        self.turns.clear();
    }
}

impl<K, Q> Default for Rounds<K, Q> {
    fn default() -> Self {
        Self { members: HashMap::new(), turns: VecDeque::new() }
    }
}

trait TakesTurns: Default {
    type Item;

    fn pop(&mut self) -> Option<QueuedItem<Self::Item>>;
}

impl<T> TakesTurns for CallerQueue<T> {
    type Item = T;

    fn pop(&mut self) -> Option<QueuedItem<T>> {
        let (_, queued) = self.lanes.pop()?;
        self.weight -= queued.weight;
        Some(queued)
    }
}

impl<T> Default for CallerQueue<T> {
    fn default() -> Self {
        Self { lanes: Rounds::default(), weight: 0 }
    }
}

impl<T> TakesTurns for LaneQueue<T> {
    type Item = T;

    fn pop(&mut self) -> Option<QueuedItem<T>> {
        let queued = self.items.pop_front()?;
        self.weight -= queued.weight;
        Some(queued)
    }
}

impl<T> Default for LaneQueue<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), weight: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Queue = FairQueue<&'static str, u32>;

    fn popped(queue: &mut Queue, count: usize) -> Vec<u32> {
        (0..count).filter_map(|_| queue.pop().map(|(_, _, item)| item)).collect()
    }

    #[test]
    fn caller_with_one_item_does_not_wait_for_one_with_100_000() {
        let mut queue = Queue::default();
        (0..100_000).for_each(|number| queue.push(&"flood", u64::from(number % 100), 1, number));
        popped(&mut queue, 1_000);
        queue.push(&"other", 7, 1, u32::MAX);
        let next = popped(&mut queue, QUANTUM + 1);
        assert!(next.contains(&u32::MAX), "{next:?}");
    }

    #[test]
    fn weight_is_shared_and_not_the_number_of_items() {
        let mut queue = Queue::default();
        for _ in 0..1_000 {
            queue.push(&"heavy", 1, 100, 100);
            queue.push(&"light", 1, 1, 1);
        }
        let next = popped(&mut queue, 505);
        let heavy = next.iter().filter(|weight| **weight == 100).count();
        assert!((4..=6).contains(&heavy), "{heavy} heavy ones, as much as 500 light ones");
    }

    #[test]
    fn lanes_of_a_caller_take_turns_and_keep_their_order() {
        let mut queue = Queue::default();
        (0..1_000).for_each(|number| queue.push(&"a", 1, 1, number));
        queue.push(&"a", 2, 1, 5_000);
        queue.push(&"a", 2, 1, 5_001);
        let all = popped(&mut queue, 2_000);
        let of_second: Vec<usize> =
            all.iter().enumerate().filter(|(_, item)| **item >= 5_000).map(|(place, _)| place).collect();
        assert!(of_second.iter().all(|place| *place <= QUANTUM + 1), "{of_second:?}");
        assert!(all.iter().filter(|item| **item < 5_000).is_sorted());
        assert!(queue.is_empty() && queue.pop().is_none());
    }

    #[test]
    fn what_is_taken_above_the_share_is_paid_later() {
        let mut queue = Queue::default();
        queue.push(&"heavy", 1, 1_000, 1);
        queue.push(&"light", 1, 1, 2);
        assert_eq!(popped(&mut queue, 1), [1]);
        queue.push(&"heavy", 1, 1, 3);
        (0..1_000).for_each(|_| queue.push(&"light", 1, 1, 4));
        let all = popped(&mut queue, 2_000);
        let place = all.iter().position(|item| *item == 3).unwrap();
        assert!((900..=1_000).contains(&place), "after {place} of the other");
    }

    #[test]
    fn item_after_all_follows_all_before_it_and_nothing_behind_it() {
        let mut queue = Queue::default();
        (0..100).for_each(|number| queue.push(&"a", u64::from(number % 3), 1, number));
        queue.push_after_all(1_000);
        queue.push(&"b", 1, 1, 200);
        queue.push_after_all(1_001);
        let all = popped(&mut queue, 1_000);
        let place = |item| all.iter().position(|it| *it == item).unwrap();
        assert!((0..100).all(|number| place(number) < place(1_000)));
        assert!(place(200) < place(1_000), "it does not wait for the item after all");
        assert!(place(1_000) < place(1_001) && all.len() == 103);
        queue.push_after_all(7);
        assert!(!queue.is_empty());
        assert_eq!(popped(&mut queue, 2), [7]);
    }

    #[test]
    fn weights_are_those_of_what_is_queued() {
        let mut queue = Queue::default();
        queue.push(&"a", 1, 3, 0);
        queue.push(&"a", 2, 4, 0);
        queue.push(&"b", 1, 5, 0);
        assert_eq!(queue.weight(&"a", 2), QueuedWeight { all: 12, caller: 7, lane: 4 });
        assert_eq!(queue.weight(&"c", 2), QueuedWeight { all: 12, caller: 0, lane: 0 });
        popped(&mut queue, 3);
        assert_eq!(queue.weight(&"a", 1), QueuedWeight { all: 0, caller: 0, lane: 0 });
    }

    /// Callers that come and go leave nothing behind.
    #[test]
    fn members_without_items_are_forgotten() {
        let mut queue = FairQueue::<u64, ()>::default();
        queue.push(&u64::MAX, 0, 1, ());
        for caller in 0..10_000 {
            queue.push(&caller, caller, 1, ());
            queue.pop();
        }
        assert!(queue.callers.members.len() <= 3 && queue.callers.turns.len() <= 3);
    }
}
