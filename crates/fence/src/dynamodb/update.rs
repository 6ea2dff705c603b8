//! The caller's part of a fenced write: what becomes of the item.

use std::collections::BTreeMap;

use super::value::{Item, Value};

/// What a fenced write does to the item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Changes some attributes, in DynamoDB's own expressions. For every section that may write.
    Update(Update),
    /// Replaces the whole item; its key is added if it is not in it. Not for a permit of a slot: the marks of the other
    /// slots would go too.
    Put(Item),
    /// Removes the item, all but its key and its marks: a tombstone, with `lk_deleted` set. Not for a permit of a slot.
    ///
    /// An item that was really deleted would have forgotten its marks, and let every token in. For the same reason a
    /// time to live (TTL) on tombstones is safe only if no section that began before can still be running then.
    Delete,
}

/// An update in DynamoDB's own words, with placeholders: the fence adds its part to each. A name that is a reserved word
/// of DynamoDB (`left`, `hold`, `name`, …) needs a placeholder, as everywhere.
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
    /// An update that changes nothing so far.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A further action of `SET`: `count = :count`.
    #[must_use]
    pub fn set(mut self, action: &str) -> Self {
        self.set.push(action.to_owned());
        self
    }

    /// A further action of `REMOVE`: an attribute.
    #[must_use]
    pub fn remove(mut self, action: &str) -> Self {
        self.remove.push(action.to_owned());
        self
    }

    /// A further action of `ADD`: `count :one`.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "it is DynamoDB's word")]
    pub fn add(mut self, action: &str) -> Self {
        self.add.push(action.to_owned());
        self
    }

    /// A further action of `DELETE`, which takes elements out of a set: `colours :red`.
    #[must_use]
    pub fn delete(mut self, action: &str) -> Self {
        self.delete.push(action.to_owned());
        self
    }

    /// The caller's own condition, beside the fence's.
    #[must_use]
    pub fn when(mut self, condition: &str) -> Self {
        self.when = Some(condition.to_owned());
        self
    }

    /// What a placeholder for a name (`#…`) stands for.
    #[must_use]
    pub fn name(mut self, placeholder: &str, name: &str) -> Self {
        self.names.insert(placeholder.to_owned(), name.to_owned());
        self
    }

    /// What a placeholder for a value (`:…`) stands for.
    #[must_use]
    pub fn value(mut self, placeholder: &str, value: Value) -> Self {
        self.values.insert(placeholder.to_owned(), value);
        self
    }

    /// What of it is the fence's alone, if anything: attributes and placeholders that begin with `lk_`.
    pub(super) fn ours(&self) -> Option<&str> {
        let actions =
            [&self.set, &self.remove, &self.add, &self.delete].into_iter().flatten().chain(&self.when);
        let names = self.names.iter().flat_map(|(placeholder, name)| [placeholder, name]);
        actions.chain(names).chain(self.values.keys()).map(String::as_str).find(|text| names_ours(text))
    }
}

/// Whether a word of `text` begins as the fence's own do.
pub(super) fn names_ours(text: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices("lk_").any(|(at, _)| !text[..at].ends_with(part_of_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_fences_own_is_told_from_what_only_looks_like_it() {
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
