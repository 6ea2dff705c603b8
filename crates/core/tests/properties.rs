//! Properties over random histories: the table answers as the naive oracle does, and no retry, duplicate or loss does
//! harm.
//!
//! The first property draws any commands at all, sensible or not; the second draws an honest client behind a bad
//! network. `PROPTEST_CASES` sets the number of histories of each; a failing one is shrunk, printed, and kept in
//! `properties.regressions` beside this file.

mod lossy_client;
mod oracle;
mod random_steps;

use lockkeeper_core::{Command, LockName};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use oracle::pair::Pair;
use random_steps::Step;

fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/properties.regressions"))),
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

/// Plays a history on the table and the oracle, with every check after every command.
fn play(steps: impl IntoIterator<Item = Step>) -> Result<(), String> {
    let mut pair = Pair::new();
    let mut history: Vec<Command> = Vec::new();
    for step in steps {
        match step {
            Step::Restart => pair.restart()?,
            Step::CheckToken { name, token } => {
                let name = LockName::parse(name).expect("a legal name");
                pair.check_token(&name, random_steps::token(token, &pair.now))?;
                pair.queries_agree(&name)?;
            }
            step => {
                if let Some(command) = random_steps::command(step, &pair.now, &history) {
                    let _answer = pair.apply(&command)?;
                    history.push(command);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(8_000))]

    /// Reply, effects, snapshot and every invariant, after every command; also after a restart in the middle.
    #[test]
    fn the_table_answers_as_the_oracle_does(steps in vec(random_steps::step(), 1..70)) {
        let verdict = play(steps);
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

proptest! {
    #![proptest_config(config(600))]

    /// The same where many wait: one end may grant several, of several queues, and must grant nobody else (G1, P8).
    #[test]
    fn long_queues_are_served_as_the_oracle_serves_them(
        steps in vec(random_steps::crowding_step(), 50..220),
    ) {
        let verdict = play(random_steps::openings().chain(steps));
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

proptest! {
    #![proptest_config(config(8_000))]

    /// P7 and P8 for an honest client that loses frames and answers: at rest there is no orphan hold or waiter, and
    /// every acquire had one final outcome, which agrees with what really happened.
    #[test]
    fn an_honest_client_behind_a_bad_network_leaves_no_orphans(
        acts in vec(lossy_client::act(), 1..90),
        shuffle in any::<u64>(),
    ) {
        let mut world = lossy_client::World::new(3);
        for act in acts {
            let verdict = world.act(act);
            prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
        }
        let verdict = world.settle(shuffle);
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}
