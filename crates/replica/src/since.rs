//! Issue times of tokens, to within a second except for old ones, in memory that does not grow with the
//! number of holds (E3). Every node notes the times at which it applied the grants, so that they survive a
//! change of leader.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper_core::Token;

/// Tokens rise with time, so one pair (time, first token issued then) covers all tokens issued within a
/// second of that time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Since(VecDeque<(Duration, u64)>);

/// When there are more pairs than this, every other one of the older half is dropped: the age of an old hold
/// need not be exact to the second.
const ENTRIES_MAX: usize = 1 << 14;

impl Since {
    /// To be called when tokens from `token` on were issued.
    pub(crate) fn issued(&mut self, now: Duration, token: Token) {
        match self.0.back() {
            Some((at, _)) if now < *at + Duration::from_secs(1) => {}
            Some((_, first)) if token.get() <= *first => {}
            _ => self.0.push_back((now, token.get())),
        }
        if self.0.len() > ENTRIES_MAX {
            let mut index = 0;
            self.0.retain(|_| {
                index += 1;
                index > ENTRIES_MAX / 2 || index % 2 == 1
            });
        }
    }

    /// The earliest time at which the token may have been issued; `None` if it was issued before this node
    /// started, voted or received a snapshot.
    pub(crate) fn of(&self, token: Token) -> Option<Duration> {
        let after = self.0.partition_point(|&(_, first)| first <= token.get());
        after.checked_sub(1).map(|index| self.0[index].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    #[test]
    fn token_age_is_exact_to_the_second_of_its_issue() {
        let mut since = Since::default();
        let at = |ms| Duration::from_millis(ms);
        for (ms, value) in [(0, 5), (200, 6), (1_500, 7), (9_000, 20)] {
            since.issued(at(ms), token(value));
        }
        assert_eq!(since.of(token(4)), None, "before this node started");
        assert_eq!(since.of(token(6)), Some(at(0)));
        assert_eq!(since.of(token(7)), Some(at(1_500)));
        assert_eq!(since.of(token(25)), Some(at(9_000)));
    }

    #[test]
    fn size_is_bounded_and_only_old_tokens_lose_precision() {
        let mut since = Since::default();
        for second in 0..200_000 {
            since.issued(Duration::from_secs(second), token(second + 1));
        }
        assert!(since.0.len() <= ENTRIES_MAX + 1);
        assert_eq!(since.of(token(200_000)), Some(Duration::from_secs(199_999)));
        assert!(since.of(token(1_000)).is_some_and(|at| at <= Duration::from_secs(999)));
    }
}
