//! The effect of a fenced write, which the caller gives.

use std::collections::BTreeMap;

use super::value::{Item, Value};

/// The effect of a fenced write on the item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Changes some attributes, by DynamoDB's expressions. For every section that may write.
    Update(Update),
    /// Replaces the whole item; the key is added if it is missing. Refused for a section with a slot, since
    /// the replacement would remove the marks of the other slots.
    Put(Item),
    /// Removes the item except for its key and its marks: a tombstone, with `lk_deleted` set. Refused for a
    /// section with a slot, as `Put`.
    ///
    /// Deleting the item itself would delete its marks, after which stale tokens pass. For the same reason, a
    /// TTL on tombstones is safe only if no section that began before the deletion can still be running when
    /// the TTL ends.
    Delete,
}

/// An update in DynamoDB's expression syntax, with placeholders. The fence adds its actions, its condition
/// and its placeholders. A name that is a reserved word of DynamoDB (`left`, `hold`, `name`, …) needs a
/// placeholder, as in any expression.
///
/// ```
/// # use lockkeeper_fence::dynamodb::{Update, Value};
/// Update::new()
///     .set("balance = balance - :amount")
///     .set("#state = :paid")
///     .remove("reservation")
///     .when("balance >= :amount")
///     .name("#state", "state")
///     .value(":amount", Value::number(250))
///     .value(":paid", Value::text("paid"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Update {
    pub(super) set: Vec<String>,
    pub(super) remove: Vec<String>,
    pub(super) add: Vec<String>,
    pub(super) delete: Vec<String>,
    pub(super) when: Option<String>,
    pub(super) names: BTreeMap<String, String>,
    pub(super) values: BTreeMap<String, Value>,
}

impl Update {
    /// An empty update.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an action of `SET`: `count = :count`.
    #[must_use]
    pub fn set(mut self, action: &str) -> Self {
        self.set.push(action.to_owned());
        self
    }

    /// Adds an action of `REMOVE`: an attribute.
    #[must_use]
    pub fn remove(mut self, action: &str) -> Self {
        self.remove.push(action.to_owned());
        self
    }

    /// Adds an action of `ADD`: `count :one`.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "it is DynamoDB's word")]
    pub fn add(mut self, action: &str) -> Self {
        self.add.push(action.to_owned());
        self
    }

    /// Adds an action of `DELETE`, which removes elements from a set: `colours :red`.
    #[must_use]
    pub fn delete(mut self, action: &str) -> Self {
        self.delete.push(action.to_owned());
        self
    }

    /// Sets the caller's own condition, in addition to the fence's.
    #[must_use]
    pub fn when(mut self, condition: &str) -> Self {
        self.when = Some(condition.to_owned());
        self
    }

    /// Defines a placeholder for a name (`#…`).
    #[must_use]
    pub fn name(mut self, placeholder: &str, name: &str) -> Self {
        self.names.insert(placeholder.to_owned(), name.to_owned());
        self
    }

    /// Defines a placeholder for a value (`:…`).
    #[must_use]
    pub fn value(mut self, placeholder: &str, value: Value) -> Self {
        self.values.insert(placeholder.to_owned(), value);
        self
    }

    /// The first text that uses a name reserved for the fence (attributes and placeholders that begin with
    /// `lk_`), if any.
    pub(super) fn ours(&self) -> Option<&str> {
        let actions =
            [&self.set, &self.remove, &self.add, &self.delete].into_iter().flatten().chain(&self.when);
        let names = self.names.iter().flat_map(|(placeholder, name)| [placeholder, name]);
        actions.chain(names).chain(self.values.keys()).map(String::as_str).find(|text| names_ours(text))
    }
}

/// Whether a word of `text` begins with the fence's prefix.
pub(super) fn names_ours(text: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices("lk_").any(|(at, _)| !text[..at].ends_with(part_of_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_recognized() {
        for ours in ["lk_any = :x", "a = :lk_t", "#lk_any", "x = if_not_exists(lk_any, :a)"] {
            assert_eq!(Update::new().set(ours).ours(), Some(ours));
            assert_eq!(Update::new().when(ours).ours(), Some(ours));
        }
        assert_eq!(Update::new().name("#a", "lk_any").ours(), Some("lk_any"));
        assert_eq!(Update::new().value(":lk_t", Value::Null).ours(), Some(":lk_t"));
        let other =
            Update::new().set("milk_any = :x").remove("walk_").name("#lk", "lk").value(":x", Value::Null);
        assert_eq!(other.ours(), None);
    }
}
