//! Through PgBouncer with `pool_mode=transaction`: the next statement may run on another connection.

use lockkeeper_rig::PgBouncer;

use crate::row::support::{audit, audited_grants, client, holder, server, token, until_waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_through_a_transaction_pooler() {
    let server = server();
    audit(&server);
    let bouncer = PgBouncer::with(&server, &["default_pool_size=3"]);
    let mut tasks = Vec::new();
    for number in 0..6 {
        let locks = client(&bouncer.url(), &format!("client {number}")).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let held = locks.mutex("pooled").acquire().await.unwrap();
                tokio::task::yield_now().await;
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(audited_grants(&server), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_pooler_polls_and_the_findings_report_it() {
    let server = server();
    let bouncer = PgBouncer::start(&server);
    let (pooled, direct) = (client(&bouncer.url(), "pooled").await, client(&server.url(), "direct").await);
    let says = |findings: Vec<lockkeeper::Finding>| -> Vec<String> {
        findings.into_iter().map(|finding| finding.says).collect()
    };
    let found = says(pooled.findings().await.unwrap());
    assert!(found.iter().any(|says| says.contains("a transaction pooler lies between")), "{found:?}");
    let found = says(direct.findings().await.unwrap());
    assert!(found.iter().all(|says| !says.contains("pooler")), "{found:?}");
    for (holds, waits) in [(&pooled, &direct), (&direct, &pooled)] {
        let held = holds.mutex("pooled").acquire().await.unwrap();
        let next = waits.mutex("pooled");
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        until_waiting(holds, "pooled", 1).await;
        let before = token(&held);
        held.release().await.unwrap();
        let next = next.await.unwrap();
        assert!(token(&next) > before);
        assert_eq!(holder(holds, "pooled").await.token, next.token_hint());
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_behind_the_pooler_is_enough_for_all_clients() {
    let server = server();
    for mode in ["pool_mode=transaction", "pool_mode=statement"] {
        let bouncer = PgBouncer::with(&server, &["default_pool_size=1", mode]);
        let (one, two) = (client(&bouncer.url(), "one").await, client(&bouncer.url(), "two").await);
        let held = one.mutex("pooled").acquire().await.unwrap();
        let next = two.mutex("pooled");
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        until_waiting(&one, "pooled", 1).await;
        held.release().await.unwrap();
        next.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_restarts_loses_no_hold() {
    let server = server();
    let bouncer = PgBouncer::start(&server);
    let locks = client(&bouncer.url(), "client").await;
    let held = locks.mutex("pooled").acquire().await.unwrap();
    bouncer.kill();
    bouncer.start_again();
    assert_eq!(holder(&locks, "pooled").await.token, held.token_hint());
    held.verify().await.unwrap();
    held.release().await.unwrap();
}
