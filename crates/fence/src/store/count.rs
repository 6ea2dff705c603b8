//! The bound on the marks that a store keeps.

use super::error::MarksError;
use crate::rule::{Marks, Passed};

/// Most marks that a store keeps unless it is told otherwise: one for each resource, and one for each slot
/// with marks of its own. Their file takes some 100 bytes for each, and up to 1 KiB with the longest names.
pub const MARKS_MAX_DEFAULT: u64 = 1_000_000;

/// The number of marks of all resources, and its limit.
#[derive(Debug)]
pub(super) struct MarkCount {
    pub(super) kept: u64,
    pub(super) max: u64,
}

impl MarkCount {
    /// Applies `change`, unless that would add marks above the limit.
    ///
    /// # Errors
    /// Those of `change`, and [`MarksError::Full`]; the marks are unchanged then.
    pub(super) fn bound<E: From<MarksError>>(
        &mut self,
        marks: &mut Marks,
        change: impl FnOnce(&mut Marks) -> Result<Passed, E>,
    ) -> Result<Passed, E> {
        let before = count(marks);
        let passed = if self.kept < self.max {
            change(marks)?
        } else {
            let mut changed = marks.clone();
            let passed = change(&mut changed)?;
            if count(&changed) > before {
                return Err(MarksError::Full { max: self.max }.into());
            }
            *marks = changed;
            passed
        };
        self.kept = (self.kept + count(marks)).saturating_sub(before);
        Ok(passed)
    }
}

/// The marks of one resource; none if it was never seen.
fn count(marks: &Marks) -> u64 {
    if *marks == Marks::default() { 0 } else { 1 + marks.slots.len() as u64 }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Token;

    use super::*;
    use crate::rule::{Action, Section};

    #[test]
    fn marks_above_the_limit_are_refused_and_those_that_are_there_rise() {
        let token = |value| Token::new(value).expect("a token");
        let permit = |slot, value| Section::permit(slot, token(value)).expect("a slot");
        let mut counted = MarkCount { kept: 0, max: 3 };
        let mut enter = |marks: &mut Marks, section| {
            counted
                .bound(marks, |marks| marks.check(Action::Enter, section).map_err(MarksError::from))
                .map(|_| counted.kept)
        };
        let (mut first, mut second, mut third) = Default::default();
        assert!(matches!(enter(&mut first, permit(0, 1)), Ok(2)), "the resource, and its slot");
        assert!(matches!(enter(&mut second, Section::shared(token(1))), Ok(3)));
        assert!(matches!(enter(&mut third, Section::shared(token(1))), Err(MarksError::Full { max: 3 })));
        assert!(matches!(enter(&mut first, permit(1, 2)), Err(MarksError::Full { max: 3 })), "another slot");
        assert!(third == Marks::default() && first.slots.len() == 1);
        assert!(matches!(enter(&mut first, permit(0, 3)), Ok(3)));
        assert!(
            matches!(enter(&mut first, Section::exclusive(token(4))), Ok(2)),
            "the slot has no marks of its own any more"
        );
        assert!(matches!(enter(&mut third, Section::shared(token(1))), Ok(3)));
    }
}
