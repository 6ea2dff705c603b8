//! The judge: from what clients said of their holds, and when, whether a promise is broken. Pure.
//!
//! Guarantee: a finding is certain. Times are the harness's, and each is used as the bound that it is: an
//! answer was given before it was received, a command was carried out after it was sent. So a slow machine
//! hides a violation, but makes none.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Promise;
use super::protocol::{Granted, LockMode};

/// When the harness sent or received something, since its start.
pub(crate) type Moment = Duration;

/// By how much later than it was written a `lost` event may be received: the harness reads each driver's
/// output by itself.
const EVENT_DELAY: Duration = Duration::from_secs(1);

/// What an acquire asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The driver that acquires, for texts.
    pub(crate) driver: String,
    pub(crate) names: Vec<String>,
    pub(crate) subtree: bool,
    pub(crate) mode: LockMode,
    pub(crate) permits: Option<u32>,
    /// The ttl of the client's session.
    pub(crate) ttl: Duration,
    /// What an overlap of this hold breaks: that of the scenario.
    pub(crate) promise: Promise,
}

/// A hold, as its client described it.
#[derive(Clone, Debug)]
pub(crate) struct ClaimedHold {
    wanted: Wanted,
    token: Option<u64>,
    /// The acquire was sent.
    asked: Moment,
    /// The grant was received.
    granted: Moment,
    /// The latest moment at which the client certainly said that it holds.
    seen: Moment,
    /// The latest moment at which it claims to hold: `seen`, or a deadline that it announced.
    until: Moment,
    ended: bool,
}

/// All holds of a run.
#[derive(Default)]
pub(crate) struct History {
    holds: Vec<ClaimedHold>,
    findings: Vec<Violation>,
}

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) text: String,
}

impl History {
    /// A grant; returns its index.
    pub(crate) fn granted(
        &mut self,
        wanted: Wanted,
        asked: Moment,
        granted: Moment,
        answer: Granted,
    ) -> usize {
        let hold = ClaimedHold {
            wanted,
            token: answer.token,
            asked,
            granted,
            seen: granted,
            until: granted,
            ended: false,
        };
        self.holds.push(hold);
        let index = self.holds.len() - 1;
        self.claims(index, asked, answer.valid_ms);
        index
    }

    /// The answer to a `check` that was sent at `sent`.
    pub(crate) fn confirmed(&mut self, index: usize, sent: Moment, valid_ms: Option<u64>) {
        let hold = &mut self.holds[index];
        hold.seen = hold.seen.max(sent);
        hold.until = hold.until.max(hold.seen);
        self.claims(index, sent, valid_ms);
    }

    fn claims(&mut self, index: usize, sent: Moment, valid_ms: Option<u64>) {
        let hold = &mut self.holds[index];
        let Some(valid) = valid_ms.map(Duration::from_millis) else { return };
        if valid > hold.wanted.ttl {
            let Wanted { driver, ttl, .. } = &hold.wanted;
            let text =
                format!("{driver} says that a hold is valid for {valid:?}, longer than its ttl {ttl:?}");
            self.violation(Promise::P5, text);
        } else if !hold.ended {
            hold.until = hold.until.max(sent + valid);
        }
    }

    /// Its loss was reported, by an event or an answer received at `at`.
    pub(crate) fn lost(&mut self, index: usize, at: Moment) {
        self.end(index, at.saturating_sub(EVENT_DELAY));
    }

    /// A release was sent, or its process was killed.
    pub(crate) fn released(&mut self, index: usize, at: Moment) {
        self.end(index, at);
    }

    /// The release that was sent at `sent` was answered: it was held until then.
    pub(crate) fn was_held(&mut self, index: usize, sent: Moment) {
        let hold = &mut self.holds[index];
        hold.seen = hold.seen.max(sent);
        hold.until = hold.seen;
    }

    fn end(&mut self, index: usize, at: Moment) {
        let hold = &mut self.holds[index];
        hold.until = hold.until.min(at).max(hold.seen);
        hold.ended = true;
    }

    /// A violation that needs no judge.
    pub(crate) fn violation(&mut self, promise: Promise, text: String) {
        self.findings.push(Violation { promise, text });
    }

    /// The number of holds so far.
    pub(crate) fn len(&self) -> usize {
        self.holds.len()
    }

    /// All violations, on a lock service that has tokens or has none.
    pub(crate) fn judge(&self, has_tokens: bool) -> Vec<Violation> {
        let mut findings = self.findings.clone();
        for (one, other) in self.pairs() {
            findings.extend(overlap(one, other).or_else(|| falls(one, other)));
        }
        findings.extend(self.holds.iter().filter_map(|hold| self.crowd(hold)));
        let without = self.holds.iter().filter(|hold| has_tokens && hold.token.is_none());
        findings.extend(without.map(|hold| Violation {
            promise: Promise::P2,
            text: format!("{} was granted without one, although the service has tokens", hold.shown()),
        }));
        findings
    }

    /// Whether the tokens of any two grants can be compared.
    pub(crate) fn has_compared(&self) -> bool {
        self.pairs().any(|(one, other)| in_order(one, other).is_some())
    }

    /// Each two holds that share a name.
    fn pairs(&self) -> impl Iterator<Item = (&ClaimedHold, &ClaimedHold)> {
        let each = self.holds.iter().enumerate();
        let pairs = each.flat_map(|(at, one)| self.holds[at + 1..].iter().map(move |other| (one, other)));
        pairs.filter(|(one, other)| one.shares_a_name(other))
    }

    /// More permits at the time of a grant than there are.
    fn crowd(&self, hold: &ClaimedHold) -> Option<Violation> {
        let permits = hold.wanted.permits?;
        let beside = |other: &&ClaimedHold| {
            let is_permit = other.wanted.mode == LockMode::Permit && other.shares_a_name(hold);
            is_permit && other.granted <= hold.granted && hold.granted < other.until
        };
        // With `hold` itself, even if its client said nothing of it later.
        let others = self.holds.iter().filter(|other| !std::ptr::eq(*other, hold)).filter(beside);
        let held = 1 + others.count();
        (held > permits as usize).then(|| Violation {
            promise: hold.wanted.promise,
            text: format!("{held} clients held one of {permits} permits of {}", hold.shown()),
        })
    }
}

impl ClaimedHold {
    fn shares_a_name(&self, other: &Self) -> bool {
        let covers = |one: &Self, other: &Self| {
            one.wanted.names.iter().any(|name| {
                other.wanted.names.iter().any(|it| {
                    let below = it.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'));
                    it == name || (one.wanted.subtree && below)
                })
            })
        };
        covers(self, other) || covers(other, self)
    }

    fn excludes(&self, other: &Self) -> bool {
        let modes = (self.wanted.mode, other.wanted.mode);
        !matches!(modes, (LockMode::Shared, LockMode::Shared) | (LockMode::Permit, LockMode::Permit))
    }

    fn shown(&self) -> String {
        let Wanted { driver, names, mode, .. } = &self.wanted;
        let mode = format!("{mode:?}").to_lowercase();
        let token = self.token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
        format!("`{}` ({driver}, {mode}, {token})", names.join("`, `"))
    }
}

/// Two holds that exclude each other, at the same moment.
fn overlap(one: &ClaimedHold, other: &ClaimedHold) -> Option<Violation> {
    let overlaps = one.granted < other.until && other.granted < one.until;
    (overlaps && one.excludes(other)).then(|| {
        let (first, second) = if one.granted <= other.granted { (one, other) } else { (other, one) };
        let ms = |moment: Moment| moment.as_millis();
        Violation {
            promise: first.wanted.promise,
            text: format!(
                "{} was granted at {} ms, while {} said to hold until {} ms at least",
                second.shown(),
                ms(second.granted),
                first.shown(),
                ms(first.until)
            ),
        }
    })
}

/// A later grant without a higher token.
fn falls(one: &ClaimedHold, other: &ClaimedHold) -> Option<Violation> {
    let [(earlier, before), (later, after)] = in_order(one, other)?;
    (after <= before).then(|| Violation {
        promise: Promise::P2,
        text: format!("{} was granted after {}", later.shown(), earlier.shown()),
    })
}

/// The earlier and the later grant with their tokens. Which is later is certain if it was asked for after the
/// other one was received, or if they exclude each other.
fn in_order<'a>(one: &'a ClaimedHold, other: &'a ClaimedHold) -> Option<[(&'a ClaimedHold, u64); 2]> {
    let is_later = |later: &ClaimedHold, earlier: &ClaimedHold| {
        earlier.granted < later.asked || (earlier.excludes(later) && earlier.until <= later.granted)
    };
    let (earlier, later) = match () {
        () if is_later(other, one) => (one, other),
        () if is_later(one, other) => (other, one),
        () => return None,
    };
    Some([(earlier, earlier.token?), (later, later.token?)])
}

/// Each text once, at most three for a promise.
pub(crate) fn shortened(findings: Vec<Violation>) -> Vec<Violation> {
    let (mut seen, mut kept) = (BTreeSet::new(), Vec::<Violation>::new());
    for finding in findings {
        let of_promise = kept.iter().filter(|it| it.promise == finding.promise).count();
        if of_promise < 3 && seen.insert(finding.text.clone()) {
            kept.push(finding);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    const fn ms(moment: u64) -> Moment {
        Duration::from_millis(moment)
    }

    fn wanted(name: &str, mode: LockMode) -> Wanted {
        Wanted {
            driver: "test".to_owned(),
            names: vec![name.to_owned()],
            subtree: false,
            mode,
            permits: (mode == LockMode::Permit).then_some(2),
            ttl: TTL,
            promise: Promise::P1,
        }
    }

    /// Acquires at `asked`, answered 10 ms later.
    fn grant(history: &mut History, mode: LockMode, asked: u64, token: u64, valid_ms: u64) -> usize {
        let answer = Granted { token: Some(token), valid_ms: Some(valid_ms) };
        history.granted(wanted("a", mode), ms(asked), ms(asked + 10), answer)
    }

    fn release(history: &mut History, index: usize, at: u64) {
        history.released(index, ms(at));
        history.was_held(index, ms(at));
    }

    fn broken(history: &History) -> Vec<Promise> {
        history.judge(true).iter().map(|finding| finding.promise).collect()
    }

    use LockMode::{Exclusive, Permit, Shared};

    #[test]
    fn one_after_the_other_is_held() {
        let mut history = History::default();
        let one = grant(&mut history, Exclusive, 0, 1, 1_900);
        release(&mut history, one, 100);
        let two = grant(&mut history, Exclusive, 100, 2, 1_900);
        history.lost(two, ms(1_900));
        grant(&mut history, Exclusive, 2_000, 3, 1_900);
        assert_eq!(broken(&history), []);
    }

    #[test]
    fn two_holders_break_p1() {
        let mut history = History::default();
        grant(&mut history, Exclusive, 0, 1, 1_900);
        grant(&mut history, Exclusive, 50, 2, 1_900);
        assert_eq!(broken(&history), [Promise::P1]);
        // A reader beside a writer; two readers are right.
        let mut history = History::default();
        grant(&mut history, Shared, 0, 1, 1_900);
        grant(&mut history, Shared, 20, 2, 1_900);
        assert_eq!(broken(&history), []);
        grant(&mut history, Exclusive, 50, 3, 1_900);
        assert_eq!(broken(&history), [Promise::P1, Promise::P1]);
    }

    #[test]
    fn a_name_below_a_subtree_is_excluded_and_others_are_not() {
        let mut history = History::default();
        let mut tree = wanted("a", Exclusive);
        tree.subtree = true;
        let answer = |token| Granted { token: Some(token), valid_ms: Some(1_900) };
        history.granted(tree, ms(0), ms(10), answer(1));
        history.granted(wanted("ab", Exclusive), ms(20), ms(30), answer(2));
        assert_eq!(broken(&history), []);
        history.granted(wanted("a/b", Exclusive), ms(20), ms(30), answer(3));
        assert_eq!(broken(&history), [Promise::P1]);
    }

    #[test]
    fn too_many_permits_break_p1() {
        let mut history = History::default();
        let one = grant(&mut history, Permit, 0, 1, 1_900);
        grant(&mut history, Permit, 20, 2, 1_900);
        release(&mut history, one, 40);
        grant(&mut history, Permit, 50, 3, 1_900);
        assert_eq!(broken(&history), []);
        grant(&mut history, Permit, 70, 4, 1_900);
        assert_eq!(broken(&history), [Promise::P1]);
    }

    #[test]
    fn a_token_that_does_not_rise_breaks_p2() {
        for token in [4, 5] {
            let mut history = History::default();
            let one = grant(&mut history, Exclusive, 0, 5, 1_900);
            release(&mut history, one, 100);
            grant(&mut history, Exclusive, 100, token, 1_900);
            assert_eq!(broken(&history), [Promise::P2], "{token}");
        }
        // Asked for at the same time: either may be first.
        let mut history = History::default();
        grant(&mut history, Shared, 0, 2, 1_900);
        grant(&mut history, Shared, 5, 1, 1_900);
        assert_eq!(broken(&history), []);
    }

    #[test]
    fn a_grant_without_a_token_breaks_p2_if_the_service_has_tokens() {
        let mut history = History::default();
        let one = grant(&mut history, Exclusive, 0, 1, 1_900);
        release(&mut history, one, 100);
        let answer = Granted { token: None, valid_ms: Some(1_900) };
        history.granted(wanted("a", Permit), ms(200), ms(210), answer);
        assert_eq!(broken(&history), [Promise::P2]);
        assert_eq!(history.judge(false), []);
        assert!(!history.has_compared());
        grant(&mut history, Permit, 220, 2, 1_900);
        assert!(history.has_compared());
    }

    #[test]
    fn a_grant_before_the_announced_deadline_breaks_the_promise() {
        let mut history = History::default();
        let one = grant(&mut history, Exclusive, 0, 1, 1_900);
        grant(&mut history, Exclusive, 1_800, 2, 1_900);
        assert_eq!(broken(&history), [Promise::P1]);
        // A loss that is reported only after the next grant does not excuse it,
        history.lost(one, ms(4_000));
        assert_eq!(broken(&history), [Promise::P1]);
        // but one that may have been written before it does.
        history.lost(one, ms(1_850));
        assert_eq!(broken(&history), []);
    }

    #[test]
    fn a_check_after_the_next_grant_breaks_the_promise() {
        let mut history = History::default();
        let one = grant(&mut history, Exclusive, 0, 1, 500);
        grant(&mut history, Exclusive, 1_000, 2, 1_900);
        assert_eq!(broken(&history), []);
        history.confirmed(one, ms(1_500), None);
        assert_eq!(broken(&history), [Promise::P1]);
        // What a client has said can't be unsaid.
        history.lost(one, ms(1_600));
        assert_eq!(broken(&history), [Promise::P1]);
    }

    #[test]
    fn a_validity_above_the_ttl_breaks_p5() {
        let mut history = History::default();
        let one = grant(&mut history, Exclusive, 0, 1, 2_001);
        assert_eq!(broken(&history), [Promise::P5]);
        history.confirmed(one, ms(100), Some(60_000));
        assert_eq!(broken(&history), [Promise::P5, Promise::P5]);
    }

    #[test]
    fn findings_are_few() {
        let finding = |text: u32| Violation { promise: Promise::P1, text: text.to_string() };
        let all = [1, 1, 2, 3, 4].map(finding).to_vec();
        assert_eq!(shortened(all), [1, 2, 3].map(finding));
    }
}
