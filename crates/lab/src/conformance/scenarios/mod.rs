//! What is played, and which promise each scenario is about. Scenarios with other drivers and other locks run
//! beside each other; those that disturb the whole service run one after the other, at the end.

mod exclusion;
mod loss;
mod requests;
mod service;

use std::pin::Pin;

use super::protocol::LockMode;
use super::stage::Cast;
use super::{Outcome, Promise};

/// A scenario.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) promise: Promise,
    pub(super) pairs: Pairs,
    pub(super) needs: &'static [Need],
    pub(super) play: PlayFn,
}

type PlayFn = for<'cast> fn(&'cast Cast<'cast>) -> Pin<Box<dyn Future<Output = Outcome> + 'cast>>;

/// With which drivers a scenario is played.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairs {
    /// Each driver beside each, itself included.
    All,
    /// Each driver beside the next one.
    Next,
    /// All drivers at once, after all other scenarios: it disturbs the service.
    AtEnd,
}

/// What a scenario needs.
#[derive(Clone, Copy)]
pub(super) enum Need {
    /// Drivers and a service with this mode.
    Mode(LockMode),
    /// Drivers with this feature.
    Feature(&'static str),
    /// Grants in the order of arrival.
    Fair,
    /// Our own service.
    Own,
    /// A service behind proxies of the harness.
    Proxy,
    /// Nodes that the harness has started.
    Cluster,
}

/// All scenarios, the longest first.
pub(super) const SCENARIOS: &[Scenario] = &[
    loss::STALLED_PROGRAM,
    loss::RENEWED,
    loss::STOPPED,
    loss::CUT_OFF,
    loss::KILLED,
    requests::UNKNOWN,
    requests::UNSEEN,
    requests::LOST_ANSWERS,
    requests::CANCELLED,
    requests::BAD_INPUT,
    exclusion::PAIR,
    exclusion::CONTENDED,
    exclusion::SHARED,
    exclusion::PERMITS,
    exclusion::SEVERAL,
    exclusion::SUBTREE,
    exclusion::ELECTION,
    exclusion::ORDER,
    loss::RELEASED_TWICE,
    loss::BROKEN,
    service::LEADER,
    service::ALL_KILLED,
    service::ALL_STOPPED,
];
