//! The order of requests at one resource.

use crate::rig::{Running, Upstream};

const SLOW: &str = "PUT /hold/a|Fencing-Token: 5|=old";

#[tokio::test]
async fn later_holder_waits_for_the_slow_request_of_the_earlier_one_and_shuts_it_out() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.wait = crate::rig::SOON).await;
    let slow = gate.begin(SLOW);
    upstream.until("begun PUT /hold/a 5").await;
    let next = gate.begin("PUT /hold/a|Fencing-Token: 6|=new");
    gate.until_status("POST /hold/a|Fencing-Token: 5|Fencing-Action: enter", 412).await;
    assert_eq!(upstream.log(), ["begun PUT /hold/a 5"], "the next one is not forwarded before the end");
    upstream.go_on.add_permits(2);
    assert_eq!((slow.await.unwrap().status, next.await.unwrap().status), (200, 200));
    let order = ["begun PUT /hold/a 5", "ended PUT /hold/a 5", "begun PUT /hold/a 6", "ended PUT /hold/a 6"];
    assert_eq!(upstream.log(), order);
    let late = gate.ask(SLOW).await;
    assert_eq!(late.status, 412);
    assert!(late.body.contains(r#""highest":6"#), "{}", late.body);
    assert_eq!(upstream.log().len(), 4, "a stale request never reaches the upstream");
}

#[tokio::test]
async fn requests_of_one_token_and_of_other_resources_run_at_the_same_time() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    let all: Vec<_> = ["PUT /hold/a|Fencing-Token: 5", SLOW, "PUT /hold/b|Fencing-Token: 9"]
        .into_iter()
        .map(|request| gate.begin(request))
        .collect();
    upstream.until("begun PUT /hold/b 9").await;
    crate::rig::until("both", async || upstream.log().len() == 3).await;
    upstream.go_on.add_permits(3);
    for one in all {
        assert_eq!(one.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn reads_with_a_token_enter_and_those_without_are_free() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    assert_eq!(gate.ask("GET /a").await.status, 200);
    assert_eq!(gate.ask("PUT /a").await.status, 428);
    assert_eq!(gate.ask("GET /a|Fencing-Token: 6").await.status, 200);
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 5").await.status, 412);
    assert_eq!(gate.ask("POST /a|Fencing-Token: 7|Fencing-Action: enter").await.status, 204);
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 6").await.status, 412);
    assert_eq!(gate.ask("PUT /a/|Fencing-Token: 6").await.status, 412, "the same resource");
    assert_eq!(gate.ask("PUT /%61|Fencing-Token: 6").await.status, 412, "the same resource");
    assert!(!upstream.log().iter().any(|line| line.contains("PUT") || line.contains("POST")));
}

#[tokio::test]
async fn token_that_says_another_mode_than_at_first_is_refused() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    assert_eq!(gate.ask("GET /a|Fencing-Token: 10").await.status, 200);
    let refused = gate.ask("PUT /a|Fencing-Token: 10|Fencing-Mode: permit;slot=0").await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.body.contains("gate:mode-changed") && refused.body.contains("`exclusive` first"),
        "{refused:?}"
    );
    assert_eq!(gate.ask("GET /a|Fencing-Token: 10|Fencing-Mode: shared").await.status, 200, "a downgrade");
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 10").await.status, 200, "sent before the downgrade");
    let permit = "/a|Fencing-Token: 11|Fencing-Mode: permit;slot=1";
    assert_eq!(gate.ask(&format!("GET {permit}")).await.status, 200);
    assert_eq!(gate.ask(&format!("PUT {permit}")).await.status, 200);
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 11").await.status, 400, "nor the other way round");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_modes_of_a_token_that_come_together_one_is_refused() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    for resource in 0..100 {
        let exclusive = gate.begin(&format!("PUT /{resource}|Fencing-Token: 7"));
        let permit = gate.begin(&format!("PUT /{resource}|Fencing-Token: 7|Fencing-Mode: permit;slot=0"));
        let mut answers = [exclusive.await.unwrap().status, permit.await.unwrap().status];
        answers.sort_unstable();
        assert_eq!(answers, [200, 400], "resource {resource}");
    }
}

#[tokio::test]
async fn marks_survive_an_orderly_end_and_nothing_settles_after_it() {
    let upstream = Upstream::start().await;
    let gate = Running::before(&upstream.url()).await;
    let slow = gate.begin(SLOW);
    upstream.until("begun PUT /hold/a 5").await;
    let ending = tokio::spawn(gate.end());
    upstream.go_on.add_permits(1);
    let (data, all_ended) = ending.await.unwrap();
    assert_eq!((slow.await.unwrap().status, all_ended), (200, true), "the gate waits for what is inside");
    let gate = Running::on(data, &upstream.url(), |_| {}).await;
    assert_eq!(gate.ask("PUT /hold/a|Fencing-Token: 4").await.status, 412);
    upstream.go_on.add_permits(1);
    assert_eq!(gate.ask("PUT /hold/a|Fencing-Token: 6").await.status, 200);
}
