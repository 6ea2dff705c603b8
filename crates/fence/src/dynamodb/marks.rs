//! The marks as attributes of the guarded item, and the rule as a condition over them.
//!
//! `lk_any` and `lk_writer` are the base pair: the highest token that passed, and the highest that passed as
//! a writer (`rule.rs` explains the pair). Only permits have slots, and they are writers, so a slot needs
//! only one mark: `lk_slot_3`, the highest token in slot 3. A reader raises only the base's `any`, against
//! which every slot is checked anyway. `lk_slots` is the highest mark of all slots: a section without a slot
//! is checked against `lk_slots`, since a condition can't iterate over the slots' attributes.
//!
//! DynamoDB has no maximum function, so a mark that may already be above the token (`lk_slots` for a permit
//! of a slot, `lk_any` for a reader) takes up to two tries. The first one sets the mark to the token, on
//! condition that the mark is at most the token. If that fails because the mark is higher, the second one
//! requires a higher mark and leaves it unchanged. A third is never needed, since marks only rise.

use lockkeeper_core::limits::PERMITS_MAX;
use lockkeeper_core::{ModeKind, Slot, Token};

use super::error::DynamoDbError;
use super::value::{Item, Value};
use crate::rule::{Action, Marks, Pair, Section};

pub(super) const ANY: &str = "lk_any";
pub(super) const WRITER: &str = "lk_writer";
pub(super) const SLOTS: &str = "lk_slots";
/// The attribute that marks the item as deleted (a tombstone).
pub const DELETED: &str = "lk_deleted";
const SLOT: &str = "lk_slot_";

/// Which of the two conditions a request has; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Try {
    /// Condition: the mark that other sections share (`lk_slots` or `lk_any`) is at most the token. The write
    /// raises it to the token.
    Raise,
    /// Condition: that mark is higher than the token. The write leaves it unchanged.
    Above,
}

/// The conditions on the marks under which a section passes, and the marks that it raises.
pub(super) struct Rule {
    /// Each of these marks must be at most the token (below it, if `once`), or missing.
    pub(super) faces: Vec<Faced>,
    /// This mark must be above the token.
    pub(super) above: Option<&'static str>,
    /// These marks are set to the token.
    pub(super) raises: Vec<String>,
}

/// A mark that a section is checked against.
pub(super) struct Faced {
    pub(super) mark: String,
    /// Whether an equal token is refused too.
    pub(super) once: bool,
}

/// Translates the rule (F-a to F-d) for one try.
pub(super) fn rule(action: Action, section: Section, this: Try) -> Rule {
    let once = action == Action::CheckOnce;
    let faced = |mark: &str| Faced { mark: mark.to_owned(), once };
    let (faces, raises, others) = match (section.mode(), section.slot()) {
        (ModeKind::Shared, _) => (vec![faced(WRITER), faced(SLOTS)], vec![], Some(ANY)),
        (_, None) => (vec![faced(ANY), faced(SLOTS)], vec![ANY.to_owned(), WRITER.to_owned()], None),
        (_, Some(slot)) => (vec![faced(ANY), faced(&slot_mark(slot))], vec![slot_mark(slot)], Some(SLOTS)),
    };
    let mut rule = Rule { faces, above: None, raises };
    match (others, this) {
        (Some(mark), Try::Raise) => {
            rule.faces.push(Faced { mark: mark.to_owned(), once: false });
            rule.raises.push(mark.to_owned());
        }
        (Some(mark), Try::Above) => rule.above = Some(mark),
        (None, _) => {}
    }
    rule
}

/// The try that fits the marks of the item.
pub(super) fn which(section: Section, item: &Item) -> Result<Try, DynamoDbError> {
    let others = match (section.mode(), section.slot()) {
        (ModeKind::Shared, _) => ANY,
        (_, None) => return Ok(Try::Raise),
        (_, Some(_)) => SLOTS,
    };
    Ok(if mark(item, others)? > Some(section.token()) { Try::Above } else { Try::Raise })
}

fn slot_mark(slot: Slot) -> String {
    format!("{SLOT}{slot}")
}

fn mark(item: &Item, attribute: &str) -> Result<Option<Token>, DynamoDbError> {
    let Some(value) = item.get(attribute) else { return Ok(None) };
    match value.as_u64().and_then(Token::new) {
        Some(token) => Ok(Some(token)),
        None => Err(DynamoDbError::Damaged {
            attribute: attribute.to_owned(),
            value: value.to_json().to_string(),
        }),
    }
}

/// Reads the marks of an item.
pub(super) fn marks(item: &Item) -> Result<Marks, DynamoDbError> {
    let mut marks =
        Marks { base: Pair { any: mark(item, ANY)?, writer: mark(item, WRITER)? }, ..Marks::default() };
    for attribute in slot_marks(item) {
        let number = attribute[SLOT.len()..].parse().ok().filter(|slot| *slot < PERMITS_MAX);
        let slot: Slot = number.ok_or_else(|| DynamoDbError::Damaged {
            attribute: attribute.to_owned(),
            value: "the mark of a slot that no lock has".to_owned(),
        })?;
        let token = mark(item, attribute)?;
        marks.slots.insert(slot, Pair { any: token, writer: token });
    }
    let (highest, stored) = (marks.slots.values().filter_map(|own| own.any).max(), mark(item, SLOTS)?);
    if highest > stored {
        return Err(DynamoDbError::Damaged {
            attribute: SLOTS.to_owned(),
            value: "below the mark of a slot".to_owned(),
        });
    }
    Ok(marks)
}

pub(super) fn slot_marks(item: &Item) -> impl Iterator<Item = &str> {
    item.keys().map(String::as_str).filter(|name| name.starts_with(SLOT))
}

/// Whether an attribute belongs to the fence.
pub(super) fn is_ours(attribute: &str) -> bool {
    attribute.starts_with("lk_")
}

/// A token as a DynamoDB value.
pub(super) fn value(token: Token) -> Value {
    Value::number(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(marks: &[(&str, u64)]) -> Item {
        marks.iter().map(|(name, mark)| ((*name).to_owned(), Value::number(mark))).collect()
    }

    /// Applies `rule` as DynamoDB would.
    fn applied(rule: &Rule, token: Token, item: &Item) -> Option<Item> {
        let get = |name: &str| item.get(name).and_then(Value::as_u64);
        let (faces, token) = (&rule.faces, token.get());
        let below = faces.iter().all(|faced| match get(&faced.mark) {
            None => true,
            Some(mark) if faced.once => mark < token,
            Some(mark) => mark <= token,
        });
        let above = rule.above.is_none_or(|mark| get(mark).is_some_and(|mark| mark > token));
        (below && above).then(|| {
            let mut item = item.clone();
            item.extend(rule.raises.iter().map(|name| (name.clone(), Value::number(token))));
            item
        })
    }

    /// Compares the conditions with `Marks::check` on random histories, without a store.
    #[test]
    fn conditions_agree_with_the_rule() {
        let mut random = fastrand::Rng::with_seed(6);
        let (mut passed, mut refused, mut second) = (0, 0, 0);
        for _ in 0..3000 {
            let (mut item, mut marks) = (Item::new(), Marks::default());
            for _ in 0..12 {
                let token = Token::new(random.u64(1..=6)).expect("a token");
                let section = match random.u8(..5) {
                    0 => Section::exclusive(token),
                    1 => Section::shared(token),
                    2 => Section::new(ModeKind::Permit, None, token).expect("no slot"),
                    slot => Section::permit(u32::from(slot) - 3, token).expect("a slot"),
                };
                let action = [Action::Enter, Action::Write, Action::CheckOnce][random.usize(..3)];
                if section.mode() == ModeKind::Shared && action != Action::Enter {
                    continue;
                }
                let this = which(section, &item).expect("good marks");
                second += u32::from(this == Try::Above);
                let other = if this == Try::Raise { Try::Above } else { Try::Raise };
                let after = applied(&rule(action, section, this), token, &item);
                if this == Try::Above || section.slot().is_some() || section.mode() == ModeKind::Shared {
                    assert_eq!(
                        applied(&rule(action, section, other), token, &item),
                        None,
                        "one try at most passes"
                    );
                }
                let ruled = marks.check(action, section);
                assert_eq!(after.is_some(), ruled.is_ok(), "{action} {section:?} of {item:?}");
                passed += u32::from(ruled.is_ok());
                refused += u32::from(ruled.is_err());
                item = after.unwrap_or(item);
                let seen = super::marks(&item).expect("good marks");
                for slot in 0..3 {
                    assert_eq!(seen.effective(slot), marks.effective(slot), "slot {slot} of {item:?}");
                }
                assert_eq!(seen.base, marks.base);
            }
        }
        assert!(passed > 5000 && refused > 5000 && second > 500, "{passed}, {refused}, {second}");
    }

    #[test]
    fn invalid_marks_are_reported_by_attribute() {
        for (name, bad) in [
            (ANY, Value::text("7")),
            (WRITER, Value::number(0)),
            (SLOTS, Value::number("1.5")),
            ("lk_slot_3", Value::number(1_u64 << 53)),
            ("lk_slot_x", Value::number(1)),
        ] {
            let error = marks(&[(name.to_owned(), bad)].into()).expect_err(name);
            assert!(
                matches!(&error, DynamoDbError::Damaged { attribute, .. } if attribute == name),
                "{error}"
            );
        }
        let error = marks(&item(&[("lk_slot_3", 9), (SLOTS, 8)])).expect_err("below");
        assert!(matches!(&error, DynamoDbError::Damaged { attribute, .. } if attribute == SLOTS), "{error}");
    }
}
