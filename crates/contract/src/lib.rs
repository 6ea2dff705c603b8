//! The contract suite: the abilities and promises of a lock service are *measured* here, and compared with
//! its `Capabilities`, and with its page (P11). Ours are in `docs/backends/`.
//!
//! A lock service passes the suite with a [`Subject`] and a call of [`contract!`] in a test of its package.

#![allow(missing_docs, reason = "the suite's parts are called by the macro")]

pub mod abilities;
pub mod faults;
pub mod page;
mod permits;
pub mod promises;
pub mod recipes;
mod subject;
pub mod traffic;

pub use faults::Fault;
pub use lockkeeper_rig::{Faults, Protocol, ServiceRefusal};
pub use subject::{Subject, start_waiting, until, until_waiting};

/// Defines the tests of some subjects, each in a module of its own, so that the name of a failed test shows
/// which of them failed: abilities, promises and recipes; with `page` also the tables of its page, a path
/// below the package, and their column; with `faults` also what it survives.
///
/// ```ignore
/// lockkeeper_contract::contract! {
///     redis => Server::new(), page "../../../docs/backends/redis.md" column 1, faults [Fault::IdleCut];
/// }
/// ```
#[macro_export]
macro_rules! contract {
    ($(
        $backend:ident => $subject:expr
        $(, page $page:literal column $column:literal)?
        $(, faults $faults:expr)?;
    )+) => {$(
        mod $backend {
            #[allow(unused_imports, reason = "a subject may need nothing of it")]
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn abilities_are_as_declared() {
                $crate::abilities::compare(&$subject).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn promises_are_as_declared() {
                $crate::promises::compare(&$subject).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn recipes_work() {
                $crate::recipes::check(&$subject).await;
            }

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn the_page_matches_the_code() {
                let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join($page);
                $crate::page::compare(&$subject, &page, $column).await;
            })?

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn faults_are_survived() {
                $crate::faults::survives(&$subject, &$faults).await;
            })?
        }
    )+};
}
