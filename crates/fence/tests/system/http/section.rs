//! Concurrent sections: which ones run together, which ones wait, and that no acknowledged update is lost.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_fence::http::Rules;
use lockkeeper_fence::{DurableMarks, MarkStore, MemoryFence};
use tokio::io::AsyncReadExt;

use crate::http::rig::{Service, ask, send};

#[tokio::test]
async fn higher_token_starts_after_the_lower_ones_have_ended_and_makes_them_stale_at_once() {
    let service = Service::start().await;
    let five = service.begin("PUT /hold/handler|Fencing-Token: 5");
    service.until("begun 5").await;
    let six = service.begin("PUT /hold/handler|Fencing-Token: 6");
    service.until_shut_for("/hold/handler", 5).await;
    assert_eq!(service.ask("PUT /hold/handler|Fencing-Token: 5").await.problem(), "stale");
    assert_eq!(service.book.told(), ["begun 5"], "6 has not begun");

    service.go_on.add_permits(1);
    assert_eq!(five.await.expect("asked").status, 200);
    service.until("begun 6").await;
    assert_eq!(service.book.told(), ["begun 5", "ended 5", "begun 6"]);
    service.go_on.add_permits(1);
    assert_eq!(six.await.expect("asked").status, 200);
    service.until_unused().await;
}

#[tokio::test]
async fn an_enter_too_waits_until_lower_writes_have_ended() {
    let service = Service::start().await;
    let five = service.begin("PUT /hold/handler|Fencing-Token: 5");
    service.until("begun 5").await;
    let enter = service.begin("POST /hold/handler|Fencing-Token: 6|Fencing-Action: enter");
    service.until_shut_for("/hold/handler", 5).await;
    assert!(!enter.is_finished(), "whoever reads after this enter must see what 5 writes");
    service.go_on.add_permits(1);
    assert_eq!(five.await.expect("asked").status, 200);
    assert_eq!(enter.await.expect("asked").status, 204);
}

#[tokio::test]
async fn waiting_request_is_refused_as_soon_as_a_later_section_arrives() {
    let service = Service::start().await;
    let five = service.begin("PUT /hold/handler|Fencing-Token: 5");
    service.until("begun 5").await;
    let six = service.begin("PUT /hold/handler|Fencing-Token: 6");
    service.until_shut_for("/hold/handler", 5).await;
    let seven = service.begin("PUT /hold/handler|Fencing-Token: 7");
    assert_eq!(six.await.expect("asked").problem(), "stale");
    service.go_on.add_permits(2);
    assert_eq!(five.await.expect("asked").status, 200);
    assert_eq!(seven.await.expect("asked").status, 200);
    assert!(!service.book.told().iter().any(|told| told == "begun 6"));
}

#[tokio::test]
async fn one_holder_readers_and_slots_run_together() {
    let service = Service::start().await;
    for (requests, tokens) in [
        (["PUT /hold/one|Fencing-Token: 3", "GET /hold/one|Fencing-Token: 3"], [3, 3]),
        (
            [
                "GET /hold/shared|Fencing-Mode: shared|Fencing-Token: 5",
                "GET /hold/shared|Fencing-Mode: shared|Fencing-Token: 4",
            ],
            [5, 4],
        ),
        (
            [
                "PUT /hold/permits|Fencing-Mode: permit;slot=0|Fencing-Token: 7",
                "PUT /hold/permits|Fencing-Mode: permit;slot=1|Fencing-Token: 6",
            ],
            [7, 6],
        ),
    ] {
        let first = service.begin(requests[0]);
        service.until(&format!("begun {}", tokens[0])).await;
        let second = service.begin(requests[1]);
        // Neither may end before both have begun.
        crate::http::rig::until("both at work", async || {
            let told = service.book.told();
            tokens.iter().all(|token| told.contains(&format!("begun {token}")))
                && told.iter().filter(|told| told.starts_with("begun")).count()
                    == told.iter().filter(|told| told.starts_with("ended")).count() + 2
        })
        .await;
        service.go_on.add_permits(2);
        assert_eq!(first.await.expect("asked").status, 200);
        assert_eq!(second.await.expect("asked").status, 200);
    }
    service.until_unused().await;
}

#[tokio::test]
async fn wait_beyond_the_limit_is_503_and_can_be_retried() {
    let rules = Rules::default().wait_at_most(Duration::from_millis(30));
    let service = Service::with(MemoryFence::new(), rules).await;
    let five = service.begin("PUT /hold/handler|Fencing-Token: 5");
    service.until("begun 5").await;
    let once = "PUT /hold/handler|Fencing-Token: 6|Fencing-Action: check_once";
    let busy = service.ask(once).await;
    assert_eq!((busy.status, busy.problem()), (503, "busy"));
    assert!(busy.head.contains("retry-after: 1"), "{busy:?}");
    service.go_on.add_permits(2);
    assert_eq!(five.await.expect("asked").status, 200);
    service.until_unused().await;
    assert_eq!(service.ask(once).await.status, 200, "nothing was used up by waiting in vain");
}

#[tokio::test]
async fn disconnected_client_leaves() {
    let service = Service::start().await;
    let five = send(service.address, "PUT /hold/handler|Fencing-Token: 5").await;
    service.until("begun 5").await;
    // A waiting request whose client disconnects is removed.
    let six = send(service.address, "PUT /hold/handler|Fencing-Token: 6").await;
    service.until_shut_for("/hold/handler", 5).await;
    drop(six);
    drop(five);
    service.until("dropped 5").await;
    service.go_on.add_permits(1);
    assert_eq!(service.ask("PUT /hold/handler|Fencing-Token: 7").await.status, 200);
    service.until_unused().await;
}

#[tokio::test]
async fn panicking_handler_leaves() {
    let service = Service::start().await;
    assert_eq!(service.ask("PUT /panic|Fencing-Token: 5").await.status, 0, "no answer");
    service.until_unused().await;
    assert_eq!(service.ask("POST /panic|Fencing-Token: 6|Fencing-Action: enter").await.status, 204);
}

#[tokio::test]
async fn write_stays_admitted_until_its_body_ends_and_read_until_its_handler_returns() {
    let service = Service::start().await;
    let enter = "POST /hold/body|Fencing-Token: 6|Fencing-Action: enter";
    let read = send(service.address, "GET /hold/body|Fencing-Token: 5").await;
    service.until("begun 5").await;
    service.until_unused().await;
    drop(read);

    let mut write = send(service.address, "PUT /hold/body|Fencing-Token: 5").await;
    let mut seen = Vec::new();
    while !seen.ends_with(b"first \r\n") {
        seen.push(write.read_u8().await.expect("the beginning of the body"));
    }
    let entering = service.begin(enter);
    service.until_shut_for("/hold/body", 5).await;
    assert!(!entering.is_finished());
    service.go_on.add_permits(2);
    assert_eq!(entering.await.expect("asked").status, 204);

    // If the client disconnects in the middle of the response body, that ends the write, too.
    let mut write = send(service.address, "PUT /hold/body|Fencing-Token: 7").await;
    write.read_u8().await.expect("the beginning of the answer");
    drop(write);
    service.go_on.add_permits(1);
    assert_eq!(service.ask("POST /hold/body|Fencing-Token: 8|Fencing-Action: enter").await.status, 204);
    service.until_unused().await;
}

/// Runs sections that all act as the lock holder: enter, read, write the number plus one. Each request has
/// its own connection.
async fn loses_no_acknowledged_update<M: MarkStore>(store: M, clients: u64, rounds: u64) {
    let service = Service::with(store, Rules::default()).await;
    let tokens = Arc::new(AtomicU64::new(1));
    let mut tasks = Vec::new();
    for client in 0..clients {
        let (address, tokens) = (service.address, Arc::clone(&tokens));
        tasks.push(tokio::spawn(async move {
            let mut acknowledged = 0;
            let mut random = fastrand::Rng::with_seed(client);
            for _ in 0..rounds {
                let token = tokens.fetch_add(1, Ordering::Relaxed);
                let by_get = random.bool();
                if !by_get {
                    let enter = format!("POST /n|Fencing-Token: {token}|Fencing-Action: enter");
                    if ask(address, &enter).await.status != 204 {
                        continue;
                    }
                }
                let header = if by_get { format!("|Fencing-Token: {token}") } else { String::new() };
                let read = ask(address, &format!("GET /n{header}")).await;
                if read.status != 200 {
                    continue;
                }
                let next = read.body.parse::<u64>().expect("a number") + 1;
                let written = ask(address, &format!("PUT /n|Fencing-Token: {token}||{next}")).await;
                match written.status {
                    200 => acknowledged += 1,
                    412 => {}
                    other => panic!("{other}: {written:?}"),
                }
            }
            acknowledged
        }));
    }
    let mut acknowledged = 0;
    for task in tasks {
        acknowledged += task.await.expect("a client");
    }
    println!("{acknowledged} of {} sections acknowledged", clients * rounds);
    assert_eq!(service.book.number("/n"), acknowledged);
    assert!(acknowledged > 0, "the last section at least is live");
    service.until_unused().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_acknowledged_update_is_lost() {
    loses_no_acknowledged_update(MemoryFence::new(), 8, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_acknowledged_update_is_lost_with_durable_marks() {
    let dir = tempfile::tempdir().expect("a directory");
    let marks = DurableMarks::open(dir.path().join("marks.redb")).expect("new");
    loses_no_acknowledged_update(marks, 8, 25).await;
}
