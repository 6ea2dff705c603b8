//! Explores all states and reports the result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display};
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// The result of a run; `A` is the type of the model's events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exploration<A> {
    /// The number of distinct states reached.
    pub states: usize,
    /// The broken promises, each with a path of events from which no event can be removed.
    pub broken: BTreeMap<&'static str, Vec<A>>,
    /// The reachability properties of the model that were reached.
    pub reached: BTreeSet<&'static str>,
}

/// Visits every reachable state. If `until` is not empty, stops once all promises in it are broken. The
/// number of states of a complete run does not depend on the number of threads; the paths are reproducible
/// with one thread only.
#[must_use]
pub fn explore<M>(model: M, until: &[&'static str], threads: usize) -> Exploration<M::Action>
where
    M: Model + Copy + Send + Sync + 'static,
    M::State: Clone + PartialEq + Debug + Hash + Send + Sync + 'static,
    M::Action: Copy + PartialEq,
{
    let until = HasDiscoveries::AllOf(until.iter().copied().collect());
    let stops = !matches!(&until, HasDiscoveries::AllOf(none) if none.is_empty());
    let until = if stops { until } else { HasDiscoveries::All };
    let checker = model.checker().threads(threads).finish_when(until).spawn_bfs().join();
    let mut report = Exploration {
        states: checker.unique_state_count(),
        broken: BTreeMap::new(),
        reached: BTreeSet::new(),
    };
    let found = checker.discoveries();
    for property in model.properties() {
        let Some(path) = found.get(property.name) else { continue };
        if property.expectation == Expectation::Always {
            let path = shorten(model, property.condition, path.clone().into_actions());
            report.broken.insert(property.name, path);
        } else {
            report.reached.insert(property.name);
        }
    }
    report
}

/// Removes every event that is not necessary to break the promise.
fn shorten<M>(model: M, holds: fn(&M, &M::State) -> bool, mut path: Vec<M::Action>) -> Vec<M::Action>
where
    M: Model + Copy,
    M::Action: Copy + PartialEq,
{
    let mut index = 0;
    while index < path.len() {
        let mut without = path.clone();
        without.remove(index);
        match until_broken(model, holds, &without) {
            Some(length) => {
                without.truncate(length);
                path = without;
                index = 0;
            }
            None => index += 1,
        }
    }
    path
}

/// The number of events after which the promise is broken. `None` if the promise is not broken, or if an
/// event of the path is not possible in the state before it.
fn until_broken<M>(model: M, holds: fn(&M, &M::State) -> bool, path: &[M::Action]) -> Option<usize>
where
    M: Model + Copy,
    M::Action: Copy + PartialEq,
{
    let mut state = model.init_states().into_iter().next()?;
    for (index, &action) in path.iter().enumerate() {
        let mut possible = Vec::new();
        model.actions(&state, &mut possible);
        state = possible.contains(&action).then(|| model.next_state(&state, action))??;
        if !holds(&model, &state) {
            return Some(index + 1);
        }
    }
    None
}

/// Describes a path for people: the events in order, with equal successive events combined.
#[must_use]
pub fn path(actions: &[impl Display]) -> String {
    let mut words: Vec<(String, u32)> = Vec::new();
    for action in actions {
        let text = action.to_string();
        match words.last_mut() {
            Some((last, times)) if *last == text => *times += 1,
            _ => words.push((text, 1)),
        }
    }
    let words = words.into_iter().map(|(text, times)| match times {
        1 => text,
        _ => format!("{text} × {times}"),
    });
    words.collect::<Vec<_>>().join(" → ")
}
