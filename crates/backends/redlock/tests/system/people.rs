//! Inspection: the state on which a majority agrees.

use lockkeeper_rig::Redis;

use crate::support::{NAME, SECOND, Servers, hold, try_to_hold, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_shown_only_if_a_majority_has_it() {
    let servers = Servers::start(5);
    let locks = servers.client("ours").await;
    let set = |server: &Redis| drop(server.cli(&["SET", NAME, "somebody", "PX", "60000"]));
    servers.0[..2].iter().for_each(set);
    assert_eq!(locks.inspect(NAME).await.unwrap().holds, [], "two of five are nobody's lock");
    let held = try_to_hold(&locks).await.expect("three of five are free");
    let info = locks.inspect(NAME).await.unwrap();
    assert_eq!(info.holds.len(), 1, "{info:?}");
    assert!(info.holds[0].label.starts_with("ours"), "{info:?}");
    assert_eq!(locks.list(None).await.unwrap().len(), 1);
    held.release().await.unwrap();
    set(&servers.0[2]);
    let info = locks.inspect(NAME).await.unwrap();
    assert!(info.holds[0].label.contains("somebody"), "{info:?}");
    let busy = locks.mutex(NAME).wait(lockkeeper::Wait::No).acquire().await.unwrap_err().to_string();
    assert!(busy.contains("somebody"), "{busy}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_needs_only_a_majority() {
    let servers = Servers::start(5);
    let (one, two) = (servers.client("one").await, servers.client("two").await);
    let held = servers.held_by_all(&one, 30 * SECOND).await;
    let waiting = tokio::spawn(async move { hold(&two, 30 * SECOND).await.map(drop) });
    servers.0[0].stop();
    servers.0[1].kill();
    until("holder and waiter are shown", async || {
        // The three servers left must all answer in time, which one of them may fail to do on a busy machine.
        let info = one.inspect(NAME).await.ok()?;
        let shown = info.holds.first().is_some_and(|holder| holder.label.starts_with("one"));
        (shown && info.waiter_count == 1 && info.waiters[0].label.starts_with("two")).then_some(())
    })
    .await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap();
    servers.0[2].kill();
    let error = one.inspect(NAME).await.unwrap_err().to_string();
    assert!(error.contains("2 of 5 servers answered, 3 must"), "{error}");
    servers.0[0].cont();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn findings_name_the_server_and_its_unsafe_settings() {
    let sound = || Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let servers = Servers::of([sound(), sound(), sound(), Redis::start()]);
    let findings = servers.client("doctor").await.findings().await.unwrap();
    let spoils: Vec<&str> =
        findings.iter().filter(|finding| finding.spoils).map(|finding| finding.says.as_str()).collect();
    assert!(spoils.iter().any(|says| says.contains("4 servers: 3 must agree")), "{spoils:?}");
    let of_the_last = format!("127.0.0.1:{}: appendonly no", servers.0[3].port());
    assert!(spoils.iter().any(|says| says.starts_with(&of_the_last)), "{spoils:?}");
    assert_eq!(spoils.len(), 2, "{spoils:?}");
}
