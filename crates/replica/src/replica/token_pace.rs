//! How many tokens cached holds may draw (C3).
//!
//! A table that is founded anew, because its directories were wiped, starts at the microseconds since 2026
//! (T1). So the counter of a table must stay below that clock. Single tokens are too slow to reach it, blocks
//! are not.

use std::time::Duration;

use lockkeeper_core::{Acquire, Table, WallTime, limits};

/// 2026-01-01T00:00:00Z in milliseconds of Unix time.
const TOKENS_EPOCH_MS: u64 = 1_767_225_600_000;
/// The distance that blocks leave between the counter and the clock: for clocks that differ between nodes,
/// and for one that is set back. Also the bound on the time since the leader began that counts.
const DISTANCE: Duration = Duration::from_secs(3_600);

/// The leader's account of blocks.
#[derive(Default)]
pub(super) struct TokenPace {
    /// The distance in microseconds when the leader's lease clock was 0, if no token was issued until its
    /// first request for a block.
    began: Option<i64>,
    /// Tokens of the commands that are queued or in flight.
    pending: u64,
}

impl TokenPace {
    /// The number of spare tokens that an acquire may draw: as many as it asks for, or none.
    pub(super) fn allow(&mut self, asked: u32, table: &Table, wall: WallTime, now: Duration) -> u32 {
        if asked == 0 || table.rules() < limits::RULES_WITH_CACHED_HOLDS || table.last_token() == 0 {
            return 0;
        }
        let clock = wall.0.saturating_sub(TOKENS_EPOCH_MS).saturating_mul(1_000);
        let distance = |counter: u64| clock as i64 - counter as i64;
        let passed = now.as_micros() as i64;
        let began = *self.began.get_or_insert_with(|| distance(table.last_token()).saturating_sub(passed));
        // A quarter of the time that passes widens a distance that is too small; blocks may use the rest.
        let least = (DISTANCE.as_micros() as i64).min(began.saturating_add(passed / 4));
        let drawn = u64::from(asked) + 1;
        if distance(table.last_token() + self.pending + drawn) < least {
            return 0;
        }
        self.pending += drawn;
        asked
    }

    /// An acquire has been applied.
    pub(super) fn applied(&mut self, acquire: &Acquire) {
        if acquire.spare_tokens > 0 {
            self.pending = self.pending.saturating_sub(u64::from(acquire.spare_tokens) + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Command, Effects};

    use super::*;

    const NOON: u64 = TOKENS_EPOCH_MS + 1_000_000_000;

    fn table(last_token: u64) -> Table {
        let mut table = Table::new(1);
        let _raised = table.apply(Command::RaiseTokens { above: last_token }, &mut Effects::new());
        table
    }

    /// The tokens that are drawn in blocks of 1,024 within so many seconds, a thousand blocks each
    /// millisecond.
    fn drawn(pace: &mut TokenPace, first: u64, seconds: u64) -> u64 {
        let mut counter = first;
        for ms in 0..seconds * 1_000 {
            let table = table(counter);
            let now = Duration::from_millis(ms);
            let allowed = (0..1_000).filter(|_| pace.allow(1_023, &table, WallTime(NOON + ms), now) > 0);
            let tokens = allowed.count() as u64 * 1_024;
            pace.pending -= tokens;
            counter += tokens;
        }
        counter - first
    }

    #[test]
    fn table_far_behind_the_clock_draws_down_to_an_hour() {
        let clock = 1_000_000_000 * 1_000;
        let two_hours = clock - 2 * 3_600 * 1_000_000;
        let tokens = drawn(&mut TokenPace::default(), two_hours, 4);
        let hour = 3_600 * 1_000_000;
        assert!((hour..hour + 4 * 1_000_000 + 2_000).contains(&(tokens + 1_024)), "{tokens}");
    }

    #[test]
    fn new_table_draws_three_quarters_of_the_time() {
        let founded = 1_000_000_000 * 1_000;
        let tokens = drawn(&mut TokenPace::default(), founded, 4);
        assert!((2_900_000..=3_000_000).contains(&tokens), "{tokens}");
        // The counter is ahead of the clock, as after `--tokens-above`: the distance still grows.
        let ahead = drawn(&mut TokenPace::default(), founded + 10_000_000_000, 1);
        assert!((700_000..=750_000).contains(&ahead), "{ahead}");
    }

    #[test]
    fn commands_in_flight_count_until_they_are_applied() {
        let mut pace = TokenPace::default();
        let far = table(1_000_000_000 * 1_000 - 3_600 * 1_000_000 - 1_500);
        let wall = WallTime(NOON);
        assert_eq!(pace.allow(1_023, &far, wall, Duration::ZERO), 1_023);
        assert_eq!(pace.allow(1_023, &far, wall, Duration::ZERO), 0, "the first one is in flight");
        assert_eq!(pace.allow(0, &far, wall, Duration::ZERO), 0);
        assert_eq!(pace.allow(15, &table(0), wall, Duration::ZERO), 0, "a table without a token");
    }

    #[test]
    fn older_rules_draw_no_blocks() {
        let mut old = Table::with_rules(1, limits::RULES_WITH_CACHED_HOLDS - 1);
        let _raised = old.apply(Command::RaiseTokens { above: 5 }, &mut Effects::new());
        assert_eq!(TokenPace::default().allow(15, &old, WallTime(NOON), Duration::ZERO), 0);
    }
}
