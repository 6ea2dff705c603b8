//! Two nodes of a Galera cluster that grant one lock at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockkeeper::{AcquireError, Wait};
use lockkeeper_rig::MariaDb;

use crate::{SECOND, client, refused};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_grant_at_once_certify_each_other() {
    const ROUNDS: u64 = 40;
    let nodes = MariaDb::galera();
    assert_eq!(nodes[1].sql("SHOW STATUS LIKE 'wsrep_cluster_size'"), "wsrep_cluster_size\t2");
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for node in &nodes {
        let locks = client(node, "").await;
        let (inside, last) = (inside.clone(), last.clone());
        tasks.push(tokio::spawn(async move {
            let mut sections = 0;
            while sections < ROUNDS {
                // Without the queue, so that both try at once.
                let held = match locks.mutex("one").wait(Wait::No).acquire().await {
                    Ok(held) => held,
                    Err(
                        AcquireError::Busy(_) | AcquireError::Backend(_) | AcquireError::Ambiguous { .. },
                    ) => continue,
                    Err(error) => panic!("{error}"),
                };
                assert!(!inside.swap(true, Ordering::SeqCst), "two sections at the same time");
                let token = held.token_hint().unwrap().get();
                assert!(last.swap(token, Ordering::SeqCst) < token, "tokens rise");
                inside.store(false, Ordering::SeqCst);
                sections += 1;
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let failed = |node: &MariaDb| -> u64 {
        ["wsrep_local_cert_failures", "wsrep_local_bf_aborts"]
            .map(|name| node.sql(&format!("SHOW STATUS LIKE '{name}'")))
            .iter()
            .map(|line| line.rsplit('\t').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    assert!(failed(&nodes[0]) + failed(&nodes[1]) > 0, "no conflict was certified: the test shows nothing");
    let findings = format!("{:?}", client(&nodes[0], "").await.findings().await.unwrap());
    assert!(findings.contains("a node of a Galera cluster"), "{findings}");

    // What a client holds at one node is held at the other, too.
    let held = client(&nodes[0], "").await.mutex("two").acquire().await.unwrap();
    assert!(client(&nodes[1], "").await.mutex("two").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let _held =
        client(&nodes[1], "").await.mutex("two").wait(Wait::For(30 * SECOND)).acquire().await.unwrap();

    let error = refused(&format!("{}?lock=session", nodes[0].url())).await;
    assert!(error.contains("Galera") && error.contains("use `lock=row`"), "{error}");
}
