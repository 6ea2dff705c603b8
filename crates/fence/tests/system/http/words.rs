//! Requests of clients, and the responses to them.

use lockkeeper_fence::http::Rules;
use lockkeeper_fence::{MarkStore, MemoryFence};

use crate::http::rig::{Service, resource};

#[tokio::test]
async fn a_section_enters_reads_and_writes_and_a_lower_token_is_stale() {
    let service = Service::start().await;
    let entered = service.ask("POST /a|Fencing-Token: 5|Fencing-Action: enter").await;
    assert_eq!((entered.status, entered.body.as_str()), (204, ""));
    assert_eq!(service.book.number("/a"), 0, "the handler never sees an enter");
    assert_eq!(service.ask("GET /a|Fencing-Token: 5").await.body, "0");
    assert_eq!(service.ask("PUT /a|Fencing-Token: 5||1").await.status, 200);
    assert_eq!(service.ask("POST /a|Fencing-Token: 5||2").await.status, 200, "an equal token passes");

    let entered = service.ask("GET /a|Fencing-Token: 6").await;
    assert_eq!((entered.status, entered.body.as_str()), (200, "2"), "a read with a token enters");
    let stale = service.ask("PUT /a|Fencing-Token: 5||9").await;
    assert_eq!((stale.status, stale.problem()), (412, "stale"));
    assert!(stale.body.contains("\"offered\":5") && stale.body.contains("\"highest\":6"), "{stale:?}");
    assert!(stale.head.contains("cache-control: no-store"), "{stale:?}");
    let stale = service.ask("GET /a|Fencing-Token: 5").await;
    assert_eq!((stale.status, stale.problem()), (412, "stale"));
    assert_eq!(service.book.number("/a"), 2);
    assert_eq!(service.ask("PUT /b|Fencing-Token: 5||1").await.status, 200, "another path, another resource");
    service.until_unused().await;
}

#[tokio::test]
async fn guarded_method_requires_a_token_and_others_do_not() {
    let service = Service::start().await;
    for method in ["POST", "PUT", "PATCH", "DELETE", "TRACE", "MOVE", "PROPPATCH", "X-OWN"] {
        let refused = service.ask(&format!("{method} /a")).await;
        assert_eq!((refused.status, refused.problem()), (428, "token-required"), "{method}");
        let refused = service.ask(&format!("{method} /a|Fencing-Mode: shared")).await;
        assert_eq!(refused.status, 428, "{method}: a mode is no token");
    }
    assert_eq!(service.ask("GET /a").await.status, 200);
    assert_eq!(service.ask("OPTIONS /a").await.status, 405, "the handler's own answer");

    let rules = Rules::default().guard([axum::http::Method::GET, axum::http::Method::PUT]);
    let strict = Service::with(MemoryFence::new(), rules).await;
    assert_eq!(strict.ask("GET /a").await.status, 428);
    assert_eq!(strict.ask("POST /a||1").await.status, 200, "not guarded here");
    assert_eq!(strict.ask("POST /a|Fencing-Token: 3||1").await.status, 200);
    assert_eq!(strict.ask("POST /a|Fencing-Token: 2||1").await.status, 412, "a token that comes is checked");
}

#[tokio::test]
async fn malformed_request_is_400_and_does_not_reach_the_handler() {
    let service = Service::start().await;
    for (request, problem) in [
        ("PUT /a|Fencing-Token: five||7", "malformed"),
        ("PUT /a|Fencing-Token: 0||7", "malformed"),
        ("PUT /a|Fencing-Token: 5|Fencing-Token: 6||7", "malformed"),
        ("PUT /a|Fencing-Token: 5|Fencing-Mode: reader||7", "malformed"),
        ("PUT /a|Fencing-Token: 5|Fencing-Mode: exclusive;slot=1||7", "malformed"),
        ("PUT /a|Fencing-Token: 5|Fencing-Action: enter||7", "malformed"),
        ("DELETE /a|Fencing-Token: 5|Fencing-Action: enter", "malformed"),
        ("PUT /a|Fencing-Token: 5|Fencing-Resource:||7", "malformed"),
        ("GET /a|Fencing-Mode: shared", "malformed"),
        ("PUT /%ff|Fencing-Token: 5||7", "malformed"),
        ("PUT /%00|Fencing-Token: 5||7", "malformed"),
        ("PUT /a|Fencing-Token: 5|Fencing-Mode: shared||7", "shared-write"),
        ("GET /a|Fencing-Token: 5|Fencing-Mode: shared|Fencing-Action: check_once", "shared-write"),
    ] {
        let refused = service.ask(request).await;
        assert_eq!((refused.status, refused.problem()), (400, problem), "{request}");
    }
    assert_eq!(service.book.number("/a"), 0);
    assert_eq!(service.fence.doors_in_use(), 0);
    let marks = service.fence.marks(&resource("/a")).await.expect("in memory");
    assert_eq!(marks, lockkeeper_fence::Marks::default(), "no mark rose");
}

#[tokio::test]
async fn resource_comes_from_the_client_or_the_path_or_only_from_the_service() {
    let service = Service::start().await;
    assert_eq!(service.ask("PUT /a%62?x=1|Fencing-Token: 7||1").await.status, 200);
    assert_eq!(service.ask("PUT /ab|Fencing-Token: 6||1").await.status, 412, "one resource, written twice");
    assert_eq!(service.ask("PUT /c|Fencing-Resource: stock|Fencing-Token: 7||1").await.status, 200);
    assert_eq!(service.ask("PUT /d|Fencing-Resource: stock|Fencing-Token: 6||1").await.status, 412);

    let by_first_part = |parts: &axum::http::request::Parts| {
        parts.uri.path().split('/').nth(1).unwrap_or_default().to_owned()
    };
    let service = Service::with(MemoryFence::new(), Rules::default().resource_by(by_first_part)).await;
    assert_eq!(service.ask("PUT /stock/1|Fencing-Token: 7||1").await.status, 200);
    assert_eq!(service.ask("PUT /stock/2|Fencing-Token: 6||1").await.status, 412);
    assert_eq!(service.ask("PUT /stock/2|Fencing-Resource: stock|Fencing-Token: 8||1").await.status, 200);
    let refused = service.ask("PUT /stock/2|Fencing-Resource: mine|Fencing-Token: 9||1").await;
    assert_eq!((refused.status, refused.problem()), (400, "malformed"));
    let refused = service.ask("PUT /|Fencing-Token: 9||1").await;
    assert_eq!((refused.status, refused.problem()), (400, "malformed"), "it has no first part");
}

#[tokio::test]
async fn check_once_runs_the_handler_once_per_token() {
    let service = Service::start().await;
    let once = "PUT /a|Fencing-Token: 5|Fencing-Action: check_once||1";
    let answers: Vec<_> = (0..8).map(|_| service.begin(once)).collect();
    let mut statuses = Vec::new();
    for answer in answers {
        statuses.push(answer.await.expect("asked").status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409, 409, 409, 409, 409, 409, 409]);
    assert_eq!(service.ask(once).await.problem(), "repeated");
    assert_eq!(
        service.ask("PUT /a|Fencing-Token: 5||2").await.status,
        200,
        "not once: an equal token passes"
    );
}

#[tokio::test]
async fn handler_receives_its_section() {
    let service = Service::start().await;
    assert_eq!(service.ask("GET /who").await.body, "nobody");
    assert_eq!(service.ask("GET /who|Fencing-Token: 5").await.body, "enter /who 5");
    assert_eq!(service.ask("PUT /who|Fencing-Token: 5").await.body, "write /who 5");
}

#[tokio::test]
async fn reset_accepts_lower_tokens_again() {
    let service = Service::start().await;
    assert_eq!(service.ask("PUT /a|Fencing-Token: 70||1").await.status, 200);
    let token = lockkeeper_fence::Token::new(3).expect("a token");
    service.fence.reset(&resource("/a"), token).await.expect("in memory");
    assert_eq!(service.ask("PUT /a|Fencing-Token: 2||1").await.status, 412);
    assert_eq!(service.ask("PUT /a|Fencing-Token: 3||1").await.status, 200);
    let store = MemoryFence::new();
    MarkStore::reset(&store, &resource("never seen"), token).await.expect("in memory");
    assert_eq!(store.marks("never seen").base.any, Some(token));
}
