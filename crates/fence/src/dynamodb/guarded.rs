//! A fenced request, its refusal and its second try.

use super::Resource;
use super::error::DynamoDbError;
use super::marks::{self, ANY, DELETED, SLOTS, Try, WRITER};
use super::request::{DynamoRequest, Operation};
use super::update::{Effect, Update};
use super::value::{Item, Value};
use crate::rule::{Action, Section};

/// A fenced request: check and effect in one step.
///
/// Send [`request`](Self::request). If DynamoDB returns `ConditionalCheckFailedException`, pass the item in
/// that response to [`after_refusal`](Self::after_refusal), which returns the refusal, or the request for a
/// second try.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a request does nothing before it is sent"]
pub struct Guarded {
    resource: Resource,
    action: Action,
    section: Section,
    effect: Effect,
    this: Try,
    request: DynamoRequest,
}

impl Guarded {
    pub(super) fn new(
        resource: &Resource,
        action: Action,
        section: Section,
        effect: Effect,
    ) -> Result<Self, DynamoDbError> {
        // A shared hold may only enter. The rule refuses its writes whatever the marks, so nothing needs to
        // be sent.
        if section.mode() == crate::ModeKind::Shared {
            let _ = crate::Marks::default().check(action, section)?;
        }
        if let (Some(slot), Effect::Put(_) | Effect::Delete) = (section.slot(), &effect) {
            return Err(DynamoDbError::WholeItem { slot });
        }
        let ours = match &effect {
            Effect::Update(update) => update.ours().map(str::to_owned),
            Effect::Put(item) => item.keys().find(|name| marks::is_ours(name)).cloned(),
            Effect::Delete => None,
        };
        if let Some(what) = ours {
            return Err(DynamoDbError::Ours { what });
        }
        let this = Try::Raise;
        let request = build(resource, action, section, &effect, this);
        Ok(Self { resource: resource.clone(), action, section, effect, this, request })
    }

    /// The request to send.
    #[must_use]
    pub fn request(&self) -> &DynamoRequest {
        &self.request
    }

    /// Interprets a refusal. `item` is the item in the response; `None` if there was none, because the item
    /// does not exist yet. Returns the request for a second try, which happens at most once: for a permit of
    /// a slot or a reader, if another section has raised the mark that they share (`lk_slots` or `lk_any`)
    /// above this section's token.
    ///
    /// # Errors
    /// [`DynamoDbError::Refused`] if a later section has passed: stop. [`DynamoDbError::When`] if the
    /// caller's own condition did not hold. [`DynamoDbError::Damaged`]; [`DynamoDbError::Unexplained`] if the
    /// request would pass on `item`, which then is not the item that came with the refusal.
    pub fn after_refusal(mut self, item: Option<&Item>) -> Result<Self, DynamoDbError> {
        let none = Item::new();
        let item = item.unwrap_or(&none);
        let _ = marks::marks(item)?.check(self.action, self.section)?;
        let this = marks::which(self.section, item)?;
        if this == self.this {
            return Err(match &self.effect {
                Effect::Update(Update { when: Some(when), .. }) => DynamoDbError::When { when: when.clone() },
                _ => DynamoDbError::Unexplained,
            });
        }
        self.this = this;
        self.request = build(&self.resource, self.action, self.section, &self.effect, this);
        Ok(self)
    }
}

/// The request for the first or second try.
fn build(resource: &Resource, action: Action, section: Section, effect: &Effect, this: Try) -> DynamoRequest {
    let rule = marks::rule(action, section, this);
    let (mut names, mut values) = match effect {
        Effect::Update(update) => (update.names.clone(), update.values.clone()),
        Effect::Put(_) | Effect::Delete => Default::default(),
    };
    let mut name = |attribute: &str| {
        let placeholder = format!("#{attribute}");
        names.insert(placeholder.clone(), attribute.to_owned());
        placeholder
    };
    values.insert(TOKEN.to_owned(), marks::value(section.token()));

    let mut conditions = Vec::new();
    if let Effect::Update(Update { when: Some(when), .. }) = effect {
        conditions.push(format!("({when})"));
    }
    for faced in &rule.faces {
        let (mark, below) = (name(&faced.mark), if faced.once { "<" } else { "<=" });
        conditions.push(format!("(attribute_not_exists({mark}) OR {mark} {below} {TOKEN})"));
    }
    if let Some(mark) = rule.above {
        conditions.push(format!("{} > {TOKEN}", name(mark)));
    }

    let marked = || rule.raises.iter().map(|mark| (mark.clone(), marks::value(section.token())));
    let operation = match effect {
        Effect::Update(update) => {
            let mut set = update.set.clone();
            set.extend(rule.raises.iter().map(|mark| format!("{} = {TOKEN}", name(mark))));
            let mut remove = update.remove.clone();
            if action != Action::Enter {
                remove.push(name(DELETED));
            }
            if set.is_empty() {
                // A reader whose token is below `lk_any` raises no mark, but an update needs at least one
                // action: set `lk_any` to itself.
                set.push(format!("{0} = {0}", name(ANY)));
            }
            Operation::UpdateItem {
                key: resource.key().clone(),
                update_expression: expression(&set, &remove, &update.add, &update.delete),
            }
        }
        Effect::Put(item) => Operation::PutItem {
            item: item.clone().into_iter().chain(resource.key().clone()).chain(marked()).collect(),
        },
        Effect::Delete => {
            let deleted = [(DELETED.to_owned(), Value::Bool(true))];
            Operation::PutItem {
                item: resource.key().clone().into_iter().chain(marked()).chain(deleted).collect(),
            }
        }
    };
    DynamoRequest {
        table_name: resource.table().to_owned(),
        operation,
        condition_expression: conditions.join(" AND "),
        expression_attribute_names: names,
        expression_attribute_values: values,
        return_all_new: action == Action::Enter,
    }
}

/// The placeholder of the token.
const TOKEN: &str = ":lk_token";

fn expression(set: &[String], remove: &[String], add: &[String], delete: &[String]) -> String {
    let parts = [("SET", set), ("REMOVE", remove), ("ADD", add), ("DELETE", delete)];
    let parts = parts.into_iter().filter(|(_, actions)| !actions.is_empty());
    parts.map(|(word, actions)| format!("{word} {}", actions.join(", "))).collect::<Vec<_>>().join(" ")
}

/// Sets the base marks, and removes `lk_slots` and the marks of the slots that `item` has.
pub(super) fn reset(resource: &Resource, item: Option<&Item>, to: crate::Token) -> DynamoRequest {
    let slots: Vec<String> = item.into_iter().flat_map(marks::slot_marks).map(str::to_owned).collect();
    let gone: Vec<String> =
        slots.into_iter().chain([SLOTS.to_owned()]).map(|attribute| format!("#{attribute}")).collect();
    let set = [ANY, WRITER].map(|mark| format!("#{mark} = {TOKEN}"));
    let names = [ANY, WRITER].into_iter().map(|mark| format!("#{mark}")).chain(gone.iter().cloned());
    DynamoRequest {
        table_name: resource.table().to_owned(),
        operation: Operation::UpdateItem {
            key: resource.key().clone(),
            update_expression: expression(&set, &gone, &[], &[]),
        },
        condition_expression: String::new(),
        expression_attribute_names: names.map(|name| (name.clone(), name[1..].to_owned())).collect(),
        expression_attribute_values: [(TOKEN.to_owned(), marks::value(to))].into(),
        return_all_new: false,
    }
}

/// Whether an attribute of an item belongs to the caller.
pub(super) fn is_the_callers(attribute: &str, resource: &Resource) -> bool {
    !marks::is_ours(attribute) && !resource.key().contains_key(attribute)
}
