//! The properties that all fences share: one suite, instantiated per fence by [`contract!`].
//!
//! A new fence needs one [`Subject`], and one [`Lasting`] if its marks outlive the process. Each is compared
//! with the pure rule, [`Marks::check`], so that a second implementation of the rule (in SQL, in a script)
//! can't differ from it.
//!
//! `histories`: every short history. `property`: long random ones. `concurrent`: many concurrent users,
//! checked by properties that hold in every order of their calls. `kill`: users in separate processes, killed
//! at random points or many at once.
#![allow(dead_code, reason = "a fence that forgets with its process leaves out the part for processes")]

pub(crate) mod child;
pub(crate) mod concurrent;
pub(crate) mod histories;
pub(crate) mod kill;
pub(crate) mod property;

use std::future::Future;

use lockkeeper_core::Token;
use lockkeeper_fence::{Action, Marks, Refused, Section};

/// One user of one resource behind a fence. The resource holds a number, 0 when it is fresh.
///
/// Refusals are results; any other error is a panic, which ends the test. The subject itself retries errors
/// that a caller must retry (a serialization failure, a lost connection).
pub(crate) trait Subject: Sized + Send + Sync + 'static {
    /// State that must live as long as the test: a server, a directory.
    type World: Send + Sync + 'static;

    /// The length of the histories that are run exhaustively: 24^STEPS of them if the fence supports every
    /// call.
    const STEPS: u32 = 2;
    /// The number of long random histories.
    const CASES: u32 = 24;
    /// The number of sections of each concurrent user.
    const ROUNDS: u64 = 50;

    /// Whether a call may wait for other calls. Then its arrival makes lower tokens stale, even if the call
    /// itself is refused in the end.
    const WAITS: bool = false;

    fn world() -> impl Future<Output = Self::World> + Send;
    /// A user of a resource that was never seen.
    fn fresh(world: &Self::World) -> impl Future<Output = Self> + Send;
    /// Another user of the same resource, as independent of this one as possible within a process.
    fn another(&self) -> impl Future<Output = Self> + Send;

    /// Whether the fence supports this action of this section; a separate test checks that it refuses the
    /// others.
    fn takes(_action: Action, _section: Section) -> bool {
        true
    }

    fn enter(&self, section: Section) -> impl Future<Output = Result<(), Refused>> + Send;
    fn read(&self) -> impl Future<Output = u64> + Send;
    fn write(&self, section: Section, number: u64) -> impl Future<Output = Result<(), Refused>> + Send;
    fn check_once(&self, section: Section) -> impl Future<Output = Result<(), Refused>> + Send;
    fn marks(&self) -> impl Future<Output = Marks> + Send;
}

/// A resource that other processes can use, and that outlives them.
pub(crate) trait Lasting: Subject {
    /// The number of kills.
    const KILLS: u64 = 30;
    /// The range of the kill times, in microseconds: about the length of a section.
    const KILLS_SPREAD_US: u64 = 3001;

    /// The address by which another process opens the resource.
    fn address(&self) -> String;
    /// A user of the resource, in another process.
    fn at(address: &str) -> impl Future<Output = Self> + Send;
}

/// One test per fence and property, so that a failure names both: `contract!(file => File, lasting)`.
macro_rules! contract {
    ($name:ident => $subject:ty, lasting) => {
        crate::suite::contract!($name => $subject,
            #[test]
            fn a_user_killed_at_random_points_loses_nothing_acknowledged() {
                const TEST: &str =
                    concat!(module_path!(), "::a_user_killed_at_random_points_loses_nothing_acknowledged");
                crate::suite::kill::nothing_acknowledged_is_lost::<$subject>(TEST);
            }

            #[test]
            fn processes_that_all_believe_they_hold_the_lock_lose_no_acknowledged_update() {
                const TEST: &str = concat!(
                    module_path!(),
                    "::processes_that_all_believe_they_hold_the_lock_lose_no_acknowledged_update"
                );
                crate::suite::kill::no_acknowledged_update_of_processes_is_lost::<$subject>(TEST);
            }
        );
    };
    ($name:ident => $subject:ty $(, $($further:item)*)?) => {
        mod $name {
            #[allow(unused_imports, reason = "the subject may stand in a path of its own")]
            use super::*;

            #[test]
            fn every_short_history_is_answered_as_the_rule_does() {
                crate::suite::histories::answered_as_the_rule_does::<$subject>();
            }

            #[test]
            fn long_random_histories_are_answered_as_the_rule_does() {
                crate::suite::property::answered_as_the_rule_does::<$subject>();
            }

            #[test]
            fn concurrent_users_lose_no_acknowledged_update() {
                crate::suite::concurrent::no_acknowledged_update_is_lost::<$subject>();
            }

            #[test]
            fn concurrent_results_are_explained_by_the_rule() {
                crate::suite::concurrent::every_answer_has_its_reason::<$subject>();
            }

            #[test]
            fn check_once_lets_one_of_many_through() {
                crate::suite::concurrent::check_once_lets_one_of_many_through::<$subject>();
            }

            $($($further)*)?
        }
    };
}
pub(crate) use contract;

/// The runtime of the subjects: two threads, as on the smallest machine that runs the tests.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

pub(crate) fn token(value: u64) -> Token {
    Token::new(value).expect("a token")
}

/// Performs `action`; a write puts `number`.
pub(crate) async fn ask<S: Subject>(
    subject: &S,
    action: Action,
    section: Section,
    number: u64,
) -> Result<(), Refused> {
    match action {
        Action::Enter => subject.enter(section).await,
        Action::Write => subject.write(section, number).await,
        Action::CheckOnce => subject.check_once(section).await,
    }
}

/// The effective marks of the base and of all slots below `slots`. Some stores keep slots that are not above
/// the base; effective marks don't depend on that.
pub(crate) fn said(marks: &Marks, slots: u32) -> Vec<lockkeeper_fence::Pair> {
    (0..slots).map(|slot| marks.effective(slot)).chain([marks.base]).collect()
}
