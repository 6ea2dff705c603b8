//! The DynamoDB fence on moto: the common suite, and its own tests.
//!
//! moto shows that the requests are well-formed and that the conditions agree with the rule. It does not show
//! the guarantees of DynamoDB itself: that check and write are one step (the rig serializes requests),
//! durability, that a transaction sent twice under one idempotency token takes effect once (moto applies it
//! again), that values of different types compare as false (moto returns an error), and the behaviour of a
//! global table. Nor does it enforce all of DynamoDB's limits (permissions, sizes, throughput).

mod client;
mod requests;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::suite::{Lasting, Subject};
use client::{Client, resource, server};
use lockkeeper_fence::dynamodb::{DynamoDbError, Effect, Item, Resource, Update, Value, item_to_json};
use lockkeeper_fence::{DynamoDbFence, Marks, Refused, Section};
use lockkeeper_rig::DynamoDb;

crate::suite::contract!(moto => User, lasting);

fn refusal<T>(result: Result<T, DynamoDbError>) -> Result<T, Refused> {
    result.map_err(|error| match error {
        DynamoDbError::Refused(refused) => refused,
        other => panic!("{other}: {other:?}"),
    })
}

fn number(item: Option<&Item>) -> u64 {
    item.and_then(|item| item.get("number")).and_then(Value::as_u64).unwrap_or_default()
}

struct User {
    client: Client,
    id: String,
    resource: Resource,
}

impl Subject for User {
    type World = (DynamoDb, AtomicU64);
    // Few, since a request to moto takes milliseconds.
    const CASES: u32 = 12;
    const ROUNDS: u64 = 15;

    async fn world() -> Self::World {
        (server(), AtomicU64::new(0))
    }

    async fn fresh((server, made): &Self::World) -> Self {
        Self::at(&format!("{} number:{}", server.url(), made.fetch_add(1, Ordering::SeqCst))).await
    }

    async fn another(&self) -> Self {
        Self::at(&self.address()).await
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        let entered =
            self.client.fenced(DynamoDbFence.enter(&self.resource, section).expect("a request")).await;
        let (item, _) = refusal(entered)?;
        assert!(
            DynamoDbFence.marks(Some(&item)).expect("marks").base.any.is_some() || section.slot().is_some()
        );
        Ok(())
    }

    async fn read(&self) -> u64 {
        number(self.client.get(&self.resource).await.as_ref())
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        // Alternates between both kinds of write, if both are allowed.
        let effect = match section.slot() {
            None if number.is_multiple_of(2) => {
                Effect::Put([("number".to_owned(), Value::number(number))].into())
            }
            _ => Effect::Update(
                Update::new()
                    .set("#number = :number")
                    .name("#number", "number")
                    .value(":number", Value::number(number)),
            ),
        };
        let guarded = refusal(DynamoDbFence.write(&self.resource, section, effect))?;
        refusal(self.client.fenced(guarded).await).map(drop)
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        let effect = Effect::Update(Update::new());
        let guarded = refusal(DynamoDbFence.check_once(&self.resource, section, effect))?;
        refusal(self.client.fenced(guarded).await).map(drop)
    }

    async fn marks(&self) -> Marks {
        let item = self.client.get(&self.resource).await;
        DynamoDbFence
            .marks(item.as_ref())
            .unwrap_or_else(|error| panic!("{error}: {}", item_to_json(&item.unwrap_or_default())))
    }
}

impl Lasting for User {
    const KILLS: u64 = 20;

    fn address(&self) -> String {
        format!("{} {}", self.client.url, self.id)
    }

    async fn at(address: &str) -> Self {
        let (url, id) = address.split_once(' ').expect("a URL and an id");
        Self { client: Client::new(url), id: id.to_owned(), resource: resource(id) }
    }
}
