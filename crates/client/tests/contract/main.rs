//! The contract suite: the abilities and promises of a backend are *measured* here, and compared with its
//! `Capabilities` and with its page in docs/backends/ (P11).
//!
//! A new backend adds one module in `subjects/` and one line in `contracts!`. A test checks that each page of a
//! compiled-in backend has its line.

mod abilities;
mod faults;
mod page;
mod permits;
mod promises;
mod recipes;
mod subject;
mod subjects;

/// Four tests per backend: abilities, promises, recipes, page. The name of a failed test shows the backend and which of
/// them failed.
macro_rules! contracts {
    ($($(#[$needs:meta])* $backend:ident => $subject:expr;)+) => {
        const SUBJECTS: &[&str] = &[$($(#[$needs])* stringify!($backend)),+];
    $(
        $(#[$needs])*
        mod $backend {
            use crate::subjects;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn abilities_are_as_declared() {
                crate::abilities::compare(&$subject).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn promises_are_as_declared() {
                crate::promises::compare(&$subject).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn recipes_work() {
                crate::recipes::check(&$subject).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn the_page_matches_the_code() {
                crate::page::compare(&$subject).await;
            }
        }
    )+};
}

contracts! {
    #[cfg(feature = "dynamodb")]
    dynamodb => subjects::dynamodb::Server::new().await;
    #[cfg(feature = "etcd")]
    etcd => subjects::etcd::Server::new();
    file => subjects::file::File::new();
    lockkeeper => subjects::service::Service::new();
    lockkeeper_of_three => subjects::service::Service::three();
    memory => subjects::memory::Memory::new();
    #[cfg(feature = "postgres")]
    postgres_row => subjects::postgres_row::Rows::new();
    #[cfg(feature = "postgres")]
    postgres_session => subjects::postgres::Advisory::session();
    #[cfg(feature = "redis")]
    redis => subjects::redis::Server::new("");
    #[cfg(feature = "redis")]
    redis_with_a_counter => subjects::redis::Server::new("?fencing=counter");
    #[cfg(feature = "redlock")]
    redlock => subjects::redlock::Servers::new();
    #[cfg(feature = "zookeeper")]
    zookeeper => subjects::zookeeper::Server::new();
}

#[test]
fn every_page_of_a_compiled_in_backend_has_a_subject() {
    let compiled_in = ::lockkeeper::backends::BACKENDS.iter().filter_map(|known| known.info);
    for page in compiled_in.flat_map(|info| info.pages) {
        assert!(SUBJECTS.contains(&page.replace('-', "_").as_str()), "{page}: not in {SUBJECTS:?}");
    }
}
