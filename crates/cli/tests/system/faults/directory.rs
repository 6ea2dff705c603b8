//! A data directory that is removed or moved, and two nodes that use the same one.

use lockkeeper_cli::exit;

use crate::faults::server::{LONG, Server};

/// Asserts that the node has ended by itself, with all these words in its error message.
#[track_caller]
pub(crate) fn has_stopped(server: &mut Server, words: &[&str]) {
    let status = server.ended();
    assert_eq!(status.code(), Some(i32::from(exit::IO)), "{status}: {}", server.log());
    let log = server.log();
    let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default();
    assert!(words.iter().all(|word| line.contains(word)), "no {words:?} in {log}");
}

/// A node that did not stop would continue with unlinked files, and its grants would be lost when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_deleted_data_stops_and_its_successor_issues_higher_tokens() {
    let mut server = Server::started("");
    let locks = server.client("one").await;
    let before = locks.mutex("a").ttl(LONG).acquire().await.unwrap();
    std::fs::remove_dir_all(&server.data).unwrap();
    has_stopped(&mut server, &["was deleted, moved or replaced", "start"]);
    server.start();
    let other = server.client("other").await;
    let after = other.mutex("a").ttl(LONG).acquire().await.unwrap();
    assert!(after.token() > before.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_moved_data_stops_and_recovers_when_they_are_back() {
    let mut server = Server::started("");
    let locks = server.client("one").await;
    let held = locks.mutex("a").ttl(LONG).acquire().await.unwrap();
    let elsewhere = server.beside("elsewhere");
    std::fs::rename(&server.data, &elsewhere).unwrap();
    has_stopped(&mut server, &["was deleted, moved or replaced", "Put"]);
    std::fs::rename(&elsewhere, &server.data).unwrap();
    server.start();
    held.verify().await.unwrap();
}

/// Removing the lock file admits a second node; the first one must stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_a_removed_lock_file_stops() {
    let mut first = Server::started("");
    let mut second = Server::new("");
    second.data.clone_from(&first.data);
    let refused = second.refused();
    assert_eq!(refused.code(), Some(i32::from(exit::BUSY)), "{}", second.log());
    assert!(second.log().contains("in use by another process, pid "), "{}", second.log());
    std::fs::remove_file(first.data.join("lock")).unwrap();
    has_stopped(&mut first, &["was deleted, moved or replaced"]);
    second.start();
}
