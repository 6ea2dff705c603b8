//! The effects of fenced requests on items, and their refusals.

use lockkeeper_fence::dynamodb::{
    DELETED, DynamoDbError, Effect, Guarded, Operation, Reason, Resource, Transaction, Update, Value,
};
use lockkeeper_fence::{DynamoDbFence, Marks, Pair, Refused, Section};

use super::client::{Client, item, resource, server};
use crate::suite::token;

const FENCE: DynamoDbFence = DynamoDbFence;

fn exclusive(value: u64) -> Section {
    Section::exclusive(token(value))
}

fn permit(slot: u32, value: u64) -> Section {
    Section::permit(slot, token(value)).expect("a slot")
}

fn write(resource: &Resource, section: Section, effect: Effect) -> Guarded {
    FENCE.write(resource, section, effect).expect("a request")
}

fn enter(resource: &Resource, section: Section) -> Guarded {
    FENCE.enter(resource, section).expect("a request")
}

fn paid(amount: u64) -> Effect {
    Effect::Update(
        Update::new()
            .set("balance = balance - :amount")
            .add("payments :one")
            .remove("reservation")
            .when("balance >= :amount")
            .value(":amount", Value::number(amount))
            .value(":one", Value::number(1)),
    )
}

fn stale<T: std::fmt::Debug>(result: Result<T, DynamoDbError>, offered: u64, highest: u64) {
    let expected = Refused::Stale { offered: token(offered), highest: token(highest) };
    assert_eq!(result.expect_err("stale"), DynamoDbError::Refused(expected));
}

#[tokio::test]
async fn enter_returns_the_item_and_writes_change_only_their_attributes() {
    let server = server();
    let (client, account) = (Client::new(&server.url()), resource("account:7"));
    let (entered, _) = client.fenced(enter(&account, exclusive(5))).await.expect("never seen");
    assert_eq!(FENCE.content(&account, &entered), None, "only entered");

    let all = item(&[
        ("balance", Value::number(100)),
        ("reservation", Value::Bool(true)),
        ("set", Value::Ns(vec!["1".into()])),
    ]);
    client.fenced(write(&account, exclusive(5), Effect::Put(all))).await.expect("live");
    client.fenced(write(&account, exclusive(6), paid(30))).await.expect("higher");
    let (entered, _) = client.fenced(enter(&account, exclusive(6))).await.expect("equal");
    let content = FENCE.content(&account, &entered).expect("there");
    let expected = item(&[
        ("balance", Value::number(70)),
        ("payments", Value::number(1)),
        ("set", Value::Ns(vec!["1".into()])),
    ]);
    assert_eq!(content, expected);
    stale(client.fenced(write(&account, exclusive(5), paid(1))).await, 5, 6);
    stale(client.fenced(write(&account, exclusive(5), Effect::Delete)).await, 5, 6);
    assert_eq!(FENCE.content(&account, &client.get(&account).await.expect("there")), Some(expected));
}

#[tokio::test]
async fn failed_caller_condition_differs_from_a_stale_token() {
    let server = server();
    let (client, account) = (Client::new(&server.url()), resource("account:7"));
    let refused =
        client.fenced(write(&account, exclusive(5), paid(30))).await.expect_err("there is no balance");
    assert_eq!(refused, DynamoDbError::When { when: "balance >= :amount".to_owned() });
    assert_eq!(client.get(&account).await, None, "nothing was raised");
    let rich = item(&[("balance", Value::number(10))]);
    client.fenced(write(&account, exclusive(5), Effect::Put(rich))).await.expect("live");
    let refused = client.fenced(write(&account, exclusive(5), paid(30))).await.expect_err("too poor");
    assert!(matches!(refused, DynamoDbError::When { .. }), "{refused:?}");
    stale(client.fenced(write(&account, exclusive(4), paid(30))).await, 4, 5);
}

#[tokio::test]
async fn deleted_item_keeps_its_marks_until_a_later_write_restores_it() {
    let server = server();
    let (client, account) = (Client::new(&server.url()), resource("account:7"));
    let fields = item(&[("balance", Value::number(10)), ("more", Value::text("x"))]);
    client.fenced(write(&account, exclusive(5), Effect::Put(fields.clone()))).await.expect("never seen");
    client.fenced(write(&account, exclusive(6), Effect::Delete)).await.expect("higher");
    let left = client.get(&account).await.expect("a tombstone");
    assert_eq!(FENCE.content(&account, &left), None);
    assert_eq!(left.get(DELETED), Some(&Value::Bool(true)));
    stale(client.fenced(write(&account, exclusive(5), Effect::Put(fields.clone()))).await, 5, 6);
    // `enter` raises the marks, but the item stays deleted.
    let (entered, _) = client.fenced(enter(&account, exclusive(7))).await.expect("higher");
    assert!(entered.contains_key(DELETED));
    let update = Effect::Update(Update::new().set("balance = :b").value(":b", Value::number(1)));
    client.fenced(write(&account, exclusive(7), update)).await.expect("live");
    assert_eq!(client.get(&account).await.expect("there").get(DELETED), None);
    client.fenced(write(&account, exclusive(8), Effect::Delete)).await.expect("higher");
    client.fenced(write(&account, exclusive(8), Effect::Put(fields.clone()))).await.expect("live");
    let back = client.get(&account).await.expect("there");
    assert_eq!((back.get(DELETED), FENCE.content(&account, &back)), (None, Some(fields)));
}

#[tokio::test]
async fn slots_are_independent_and_a_section_without_one_is_checked_against_all() {
    let server = server();
    let (client, jobs) = (Client::new(&server.url()), resource("jobs"));
    let count = || Effect::Update(Update::new().add("done :one").value(":one", Value::number(1)));
    let pass = |guarded| async { client.fenced(guarded).await.map(|(_, tries)| tries) };
    assert_eq!(pass(write(&jobs, permit(3, 9), count())).await, Ok(1));
    // `lk_slots` is above this token, so the first try fails, and the second one leaves `lk_slots` unchanged.
    assert_eq!(pass(write(&jobs, permit(2, 4), count())).await, Ok(2));
    assert_eq!(pass(write(&jobs, permit(2, 4), count())).await, Ok(2));
    stale(pass(write(&jobs, permit(3, 8), count())).await, 8, 9);
    stale(pass(write(&jobs, exclusive(8), count())).await, 8, 9);
    stale(pass(enter(&jobs, Section::shared(token(8)))).await, 8, 9);
    let mark = |value| Pair { any: Some(token(value)), writer: Some(token(value)) };
    let found = client.get(&jobs).await.expect("there");
    assert_eq!(FENCE.marks(Some(&found)).expect("marks").slots, [(2, mark(4)), (3, mark(9))].into());
    assert_eq!(found["done"], Value::number(3), "each passed once");

    // A reader above all writers passes. So does a second reader below the first one, at its second try.
    assert_eq!(pass(enter(&jobs, Section::shared(token(11)))).await, Ok(1));
    assert_eq!(pass(enter(&jobs, Section::shared(token(10)))).await, Ok(2));
    stale(pass(write(&jobs, permit(2, 10), count())).await, 10, 11);
    assert_eq!(pass(write(&jobs, exclusive(12), Effect::Put(item(&[])))).await, Ok(1));
    stale(pass(write(&jobs, permit(3, 11), count())).await, 11, 12);
    for effect in [Effect::Delete, Effect::Put(item(&[]))] {
        let refused = FENCE.write(&jobs, permit(3, 13), effect).expect_err("the other slots' marks");
        assert!(matches!(refused, DynamoDbError::WholeItem { slot: 3 }), "{refused:?}");
    }
}

#[tokio::test]
async fn check_once_passes_once_even_if_its_first_response_was_lost() {
    let server = server();
    let (client, mail) = (Client::new(&server.url()), resource("mail"));
    let once = |section| {
        let effect = Effect::Update(Update::new().add("sent :one").value(":one", Value::number(1)));
        FENCE.check_once(&mail, section, effect).expect("a request")
    };
    client.fenced(once(exclusive(5))).await.expect("never seen");
    let repeated = client.fenced(once(exclusive(5))).await.expect_err("here before");
    assert_eq!(repeated, DynamoDbError::Refused(Refused::Repeated { token: token(5) }));
    assert_eq!(client.get(&mail).await.expect("there")["sent"], Value::number(1));

    // In a transaction the body contains an idempotency token, by which DynamoDB recognizes a repetition
    // (moto does not, so the test sends the body once).
    let all = Transaction::new(vec![once(exclusive(6))], "mail-6").expect("a transaction");
    assert_eq!(all.body()["ClientRequestToken"], "mail-6-0");
    client.together(all).await.expect("higher");
    assert_eq!(client.get(&mail).await.expect("there")["sent"], Value::number(2));
}

#[tokio::test]
async fn transaction_is_atomic_and_names_the_refused_request() {
    let server = server();
    let client = Client::new(&server.url());
    let (from, to, jobs) = (resource("from"), resource("to"), resource("jobs"));
    let set = |value: u64| Effect::Put(item(&[("balance", Value::number(value))]));
    let all = |members: Vec<Guarded>, name| Transaction::new(members, name).expect("a transaction");
    let first = all(vec![write(&from, exclusive(5), set(70)), write(&to, exclusive(5), set(30))], "first");
    assert_eq!(client.together(first).await, Ok(1));
    client.fenced(enter(&to, exclusive(8))).await.expect("higher");

    let second = all(vec![write(&from, exclusive(7), set(0)), write(&to, exclusive(7), set(100))], "second");
    let refused = client.together(second).await.expect_err("stale at the second");
    let why = Refused::Stale { offered: token(7), highest: token(8) };
    assert_eq!(refused, DynamoDbError::Member { index: 1, why: Box::new(why.into()) });
    assert!(
        refused.to_string().contains("request 2") && refused.to_string().contains("token 7"),
        "{refused}"
    );
    let left = client.get(&from).await.expect("there");
    assert_eq!((left["balance"].clone(), left["lk_any"].clone()), (Value::number(70), Value::number(5)));

    // If one member needs its second try, the transaction is sent again, under another idempotency token.
    client.fenced(write(&jobs, permit(3, 9), Effect::Update(Update::new()))).await.expect("never seen");
    let count = Effect::Update(Update::new().add("done :one").value(":one", Value::number(1)));
    let third = all(vec![write(&to, exclusive(8), set(1)), write(&jobs, permit(2, 8), count)], "third");
    assert_eq!(client.together(third).await, Ok(2));
    assert_eq!(client.get(&jobs).await.expect("there")["done"], Value::number(1));
}

#[test]
fn cancellation_for_other_reasons_is_reported_by_index() {
    let all = || {
        let members = ["a", "b"].map(|id| enter(&resource(id), exclusive(5)));
        Transaction::new(members.into(), "x").expect("a transaction")
    };
    let reason = |code: &str, item| Reason { code: code.to_owned(), item };
    let conflict = [reason("None", None), reason("TransactionConflict", None)];
    let error = all().after_cancelled(&conflict).expect_err("a conflict");
    assert!(matches!(&error, DynamoDbError::Cancelled { index: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("send it again"), "{error}");
    // Without the item the reason for the refusal is unknown; the request must not count as passed.
    let bare = [reason("ConditionalCheckFailed", None), reason("None", None)];
    let error = all().after_cancelled(&bare).expect_err("no item");
    assert_eq!(error, DynamoDbError::Member { index: 0, why: Box::new(DynamoDbError::Unexplained) });
    assert_eq!(all().after_cancelled(&[]).expect_err("no reason"), DynamoDbError::Unexplained);
    for (members, name) in [(0, "x"), (101, "x"), (1, ""), (1, "123456789012345678901234567890123")] {
        let members = (0..members).map(|id| enter(&resource(&format!("r{id}")), exclusive(5))).collect();
        let error = Transaction::new(members, name).expect_err("a limit");
        assert!(matches!(error, DynamoDbError::Limit { .. }), "{error}");
    }
}

#[tokio::test]
async fn damaged_marks_refuse_every_call_until_a_reset() {
    let server = server();
    let (client, stock) = (Client::new(&server.url()), resource("stock"));
    for bad in [Value::text("9"), Value::Bool(true), Value::number("9.5")] {
        let damaged = item(&[("id", Value::text("stock")), ("lk_any", bad.clone())]);
        let refused = enter(&stock, exclusive(9)).after_refusal(Some(&damaged));
        assert!(
            matches!(&refused, Err(DynamoDbError::Damaged { attribute, .. }) if attribute == "lk_any"),
            "{refused:?}"
        );
    }
    let damage = Effect::Put(item(&[("pieces", Value::number(1))]));
    let mut request = write(&stock, exclusive(9), damage).request().clone();
    let Operation::PutItem { item } = &mut request.operation else { panic!("a put") };
    item.insert("lk_any".to_owned(), Value::number("9.5"));
    client.send(&request).await.expect("live");
    let refused = client.fenced(enter(&stock, exclusive(9))).await;
    assert!(matches!(&refused, Err(DynamoDbError::Damaged { .. })), "{refused:?}");
    let found = client.get(&stock).await;
    client.send(&FENCE.reset(&stock, found.as_ref(), token(3))).await.expect("the way out");
    client.fenced(write(&stock, permit(2, 50), Effect::Update(Update::new()))).await.expect("higher");
    let found = client.get(&stock).await;
    client.send(&FENCE.reset(&stock, found.as_ref(), token(7))).await.expect("down");
    let both = Pair { any: Some(token(7)), writer: Some(token(7)) };
    let found = client.get(&stock).await.expect("there");
    assert_eq!(FENCE.marks(Some(&found)), Ok(Marks { base: both, slots: [].into() }));
    assert_eq!(found["pieces"], Value::number(1), "what is the callers' stays");
    stale(client.fenced(enter(&stock, permit(2, 6))).await, 6, 7);
    client.fenced(enter(&stock, exclusive(7))).await.expect("from there on");
}

#[test]
fn invalid_request_is_refused_when_built() {
    let stock = resource("stock");
    let shared = FENCE.write(&stock, Section::shared(token(5)), Effect::Delete).expect_err("a reader");
    assert!(matches!(shared, DynamoDbError::Refused(Refused::SharedWrite { .. })), "{shared:?}");
    for ours in [
        Effect::Put(item(&[("lk_any", Value::number(1))])),
        Effect::Update(Update::new().remove("lk_any")),
        Effect::Update(Update::new().set("a = :lk_token")),
        Effect::Update(Update::new().set("#a = b").name("#a", "lk_slots")),
    ] {
        let refused = FENCE.write(&stock, exclusive(5), ours).expect_err("the fence's own");
        assert!(matches!(refused, DynamoDbError::Ours { .. }), "{refused:?}");
    }
    assert!(matches!(Resource::new("", item(&[("id", Value::Null)])), Err(DynamoDbError::Resource(_))));
    assert_eq!(Resource::new("table", item(&[])), Err(DynamoDbError::NoKey));
    assert!(matches!(
        Resource::new("table", item(&[("lk_any", Value::Null)])),
        Err(DynamoDbError::Ours { .. })
    ));
    // A refusal that the item does not explain must not count as passed either.
    let guarded = enter(&stock, exclusive(5));
    assert_eq!(guarded.after_refusal(None).expect_err("why?"), DynamoDbError::Unexplained);
}
