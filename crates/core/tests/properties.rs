//! Properties over random histories: the table agrees with the naive oracle, and retries, duplicates and
//! losses are harmless.
//!
//! The first property generates arbitrary commands, sensible or not; the third one simulates honest clients
//! on a lossy network. `PROPTEST_CASES` sets the number of histories of each property. A failing history is
//! shrunk, printed, and stored in `properties.regressions` beside this file.

mod lossy_client;
mod oracle;
mod random_steps;

use lockkeeper_core::{Command, Effects, LockName, Table, invariants};
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
        config.cases = lockkeeper_corpus::size(cases / 40, cases / 3, cases);
    }
    config
}

/// Runs a history on the table and the oracle, with every check after every command.
fn play(mut pair: Pair, steps: impl IntoIterator<Item = Step>) -> Result<(), String> {
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

/// Runs a history on a table that leaves nearly all work in the backlog, and resumes it from time to time.
/// Checks the invariants after every command: all of them when the backlog is empty, and otherwise those that
/// always hold.
fn play_with_little_work(
    work_max: usize,
    permit_waiters_passed_max: usize,
    steps: impl IntoIterator<Item = Step>,
) -> Result<(), String> {
    let mut table =
        Table::new(1).with_work_max(work_max).with_permit_waiters_passed_max(permit_waiters_passed_max);
    let mut effects = Effects::new();
    let mut history: Vec<Command> = Vec::new();
    for (count, step) in steps.into_iter().enumerate() {
        let now = table.snapshot();
        let commands = match step {
            Step::Restart | Step::CheckToken { .. } => vec![Command::Resume; 3],
            step => random_steps::command(step, &now, &history).into_iter().collect(),
        };
        history.extend(commands.iter().cloned());
        let drain = if count % 7 == 0 { 10_000 } else { 0 };
        for command in commands.into_iter().chain(std::iter::repeat_n(Command::Resume, drain)) {
            if command == Command::Resume && !table.has_backlog() {
                break;
            }
            let before = table.snapshot();
            effects.clear();
            let reply = table.apply(command.clone(), &mut effects);
            let after = table.snapshot();
            invariants::step(&before, &command, &reply, &effects, &after)?;
            invariants::all(&table)?;
        }
        if drain > 0 && table.has_backlog() {
            return Err("the backlog does not end".to_owned());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(8_000))]

    /// Compares reply, effects and snapshot, and checks every invariant, after every command and after every
    /// restart.
    #[test]
    fn table_and_oracle_agree_after_every_command(steps in vec(random_steps::step(), 1..70)) {
        let verdict = play(Pair::new(), steps);
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

proptest! {
    #![proptest_config(config(600))]

    /// As the property above, with many waiters: one release may grant several waiters of several queues, and
    /// must grant no others (G1, P8).
    #[test]
    fn table_and_oracle_agree_on_long_queues(
        steps in vec(random_steps::crowding_step(), 50..220),
    ) {
        let verdict = play(Pair::new(), random_steps::openings().chain(steps));
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }

    /// As the property above, but few permits may be granted past waiters (M2), of which each may wait at
    /// several names.
    #[test]
    fn table_and_oracle_agree_on_permits_that_pass_few_waiters(
        waiters in 0_usize..3,
        steps in vec(random_steps::permit_step(), 30..120),
    ) {
        let pair = Pair::with_permit_waiters_passed_max(waiters);
        let verdict = play(pair, random_steps::openings().chain(steps));
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }

    /// As the property above, with waits that declare holds: those that would close a cycle are refused (K2).
    #[test]
    fn table_and_oracle_agree_on_deadlocks(steps in vec(random_steps::declaring_step(), 20..90)) {
        let verdict = play(Pair::new(), random_steps::openings().chain(steps));
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}

proptest! {
    #![proptest_config(config(8_000))]

    /// P7 and P8 for honest clients whose frames and answers are lost: once the network has recovered, no
    /// hold or waiter is orphaned, and every client has received one final answer for each acquire, which
    /// equals the outcome at the table.
    #[test]
    fn lossy_network_leaves_no_orphans_and_one_outcome_per_acquire(
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

proptest! {
    #![proptest_config(config(2_000))]

    /// P1, P2 and P4 at any time; P7 and P8 whenever the backlog is empty.
    #[test]
    fn backlog_drains_and_invariants_hold(
        work_max in 1_usize..4,
        permit_waiters_passed_max in prop::sample::select([0, 1, 2, 1_024].as_slice()),
        steps in vec(
            prop_oneof![
                random_steps::crowding_step(),
                random_steps::permit_step(),
                random_steps::declaring_step(),
            ],
            20..120,
        ),
    ) {
        let steps = random_steps::openings().chain(steps);
        let verdict = play_with_little_work(work_max, permit_waiters_passed_max, steps);
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}
