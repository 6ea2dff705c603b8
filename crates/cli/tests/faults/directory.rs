//! A data directory that is taken away, and two nodes that want one.

use lockkeeper_cli::exit;

use crate::server::{LONG, Server};

/// The node has ended by itself and said why.
#[track_caller]
pub(crate) fn has_stopped(server: &mut Server, words: &[&str]) {
    let status = server.ended();
    assert_eq!(status.code(), Some(i32::from(exit::IO)), "{status}: {}", server.log());
    let log = server.log();
    let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default();
    assert!(words.iter().all(|word| line.contains(word)), "no {words:?} in {log}");
}

/// It would go on in files without a name otherwise, and every grant of it would be gone with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_data_were_deleted_stops_and_its_successor_has_higher_tokens() {
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
async fn a_node_whose_data_were_moved_stops_and_finds_them_when_they_are_back() {
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

/// Who removes the lock file lets a second node in; the first must leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_lock_file_was_removed_makes_way() {
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
