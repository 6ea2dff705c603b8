//! What DynamoDB answers under load and after faults: refused for now, cancelled, executed without an answer.

use lockkeeper::backends::dynamodb::init;
use lockkeeper::{AcquireError, BackendErrorKind, Guard, Locks, ReleaseError, Unfenced};
use lockkeeper_rig::DynamoDb;

use crate::faulty_service::{Fault, FaultyService};
use crate::{start, url};

/// Two clients of one table: through the faulty service, and directly.
async fn clients(server: &DynamoDb, more: &str) -> (Locks, Locks, FaultyService) {
    let direct = url(server, "locks", more);
    assert!(init(&direct).await.unwrap());
    let faulty = FaultyService::default();
    let through = direct.replace(&server.url(), &faulty.start(server).await);
    (
        Locks::connect_as(&through, "faulty").await.unwrap(),
        Locks::connect_as(&direct, "direct").await.unwrap(),
        faulty,
    )
}

fn token(guard: &Guard<Unfenced>) -> u64 {
    guard.token_hint().unwrap().get()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttled_requests_and_conflicts_are_tried_again() {
    let server = start();
    let (locks, direct, faulty) = clients(&server, "").await;
    faulty.fail("BatchGetItem", [Fault::Refused("ThrottlingException"); 4]);
    faulty.fail(
        "TransactWriteItems",
        [
            Fault::Cancelled(["TransactionConflict", "None"]),
            Fault::Cancelled(["None", "TransactionConflict"]),
            Fault::Cancelled(["ThrottlingError", "None"]),
            Fault::Cancelled(["None", "ConditionalCheckFailed"]),
            Fault::Refused("ProvisionedThroughputExceededException"),
        ],
    );
    let held = locks.mutex("x").acquire().await.unwrap();
    faulty.assert_all_happened();
    assert_eq!(token(&held), 1, "nothing was executed before");
    assert!(direct.mutex("x").try_acquire().await.unwrap().is_none());
    faulty.fail(
        "UpdateItem",
        [
            Fault::Refused("TransactionConflictException"),
            Fault::Refused("ExpiredTokenException"),
            Fault::Refused("ProvisionedThroughputExceededException"),
        ],
    );
    held.release().await.unwrap();
    faulty.assert_all_happened();
    direct.mutex("x").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
}

/// A request without an answer is repeated, and DynamoDB refuses the repeat: the first one has changed the
/// item. An item that is deleted does not tell by whom (P12).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_grant_and_own_release_are_recognized_after_a_lost_answer() {
    let server = start();
    for more in ["", "&attributes=python"] {
        server.wipe();
        let (locks, direct, faulty) = clients(&server, more).await;
        for round in 1..=3 {
            faulty.fail("TransactWriteItems", [Fault::AnswerLost]);
            let held = locks.mutex("x").acquire().await.unwrap();
            faulty.assert_all_happened();
            assert_eq!(token(&held), 2 * round - 1, "granted once");
            held.verify().await.unwrap();
            assert!(direct.mutex("x").try_acquire().await.unwrap().is_none());
            let operation = if more.is_empty() { "UpdateItem" } else { "DeleteItem" };
            faulty.fail(operation, [Fault::AnswerLost]);
            let released = held.release().await;
            assert!(
                matches!(
                    (operation, &released),
                    ("UpdateItem", Ok(())) | ("DeleteItem", Err(ReleaseError::Ambiguous { .. }))
                ),
                "{released:?}"
            );
            faulty.assert_all_happened();
            let next = direct.mutex("x").try_acquire().await.unwrap().expect("it is free");
            assert_eq!(token(&next), 2 * round);
            // A late repeat of the release must not end this hold.
            next.verify().await.unwrap();
            next.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permission_is_an_error_at_once() {
    let server = start();
    let (locks, direct, faulty) = clients(&server, "").await;
    faulty.fail("TransactWriteItems", [Fault::Refused("AccessDeniedException")]);
    match locks.mutex("x").acquire().await {
        Err(AcquireError::Backend(error)) => {
            assert_eq!(error.kind, BackendErrorKind::Denied);
            assert!(error.message.contains("AccessDenied"), "{error}");
        }
        other => panic!("not refused: {other:?}"),
    }
    faulty.assert_all_happened();
    direct.mutex("x").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_an_end_are_cut_off() {
    let server = start();
    let (locks, _, faulty) = clients(&server, "").await;
    // The SDK repeats the call.
    faulty.fail("BatchGetItem", [Fault::AnswerWithoutEnd; 3]);
    let error = locks.inspect("x").await.unwrap_err().to_string();
    assert!(error.contains("length limit exceeded"), "{error}");
    faulty.assert_all_happened();
}
