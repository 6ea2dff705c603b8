//! The stores that a fence accepts, and its errors for the others.

use std::mem::discriminant;
use std::sync::Arc;

use futures_util::TryStreamExt;
use lockkeeper_fence::object_store::Unfit;
use lockkeeper_fence::{ObjectError, ObjectFence, PointerFence};
use lockkeeper_rig::{Azurite, S3};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;

use crate::object_store::faults::{Faults, Faulty};
use crate::object_store::stores::{azure_client, foreign, in_memory, s3_client};

/// The reason why both fences refuse `store`, and its text. Also checks that no object is left in the store.
async fn refused(store: Arc<dyn ObjectStore>) -> (Unfit, String) {
    let object = ObjectFence::connect(Arc::clone(&store)).await.expect_err("unfit");
    let pointer = PointerFence::connect(Arc::clone(&store)).await.expect_err("unfit");
    assert_eq!(left(store.as_ref()).await, [""; 0], "the probes were not removed");
    let told = object.to_string();
    let ObjectError::Unfit { why, .. } = object else { panic!("{object:?}") };
    let ObjectError::Unfit { why: of_pointer, .. } = pointer else { panic!("{pointer:?}") };
    assert_eq!(discriminant(&why), discriminant(&of_pointer), "{why:?}, {of_pointer:?}");
    (why, told)
}

async fn accepted(store: Arc<dyn ObjectStore>) {
    ObjectFence::connect(Arc::clone(&store)).await.expect("fit");
    PointerFence::connect(Arc::clone(&store)).await.expect("fit");
    assert_eq!(left(store.as_ref()).await, [""; 0], "the probes were not removed");
}

async fn left(store: &dyn ObjectStore) -> Vec<String> {
    store.list(None).map_ok(|meta| meta.location.to_string()).try_collect().await.expect("listed")
}

fn faulty(faults: Faults) -> Arc<dyn ObjectStore> {
    Faulty::new(in_memory(), faults, 1)
}

#[tokio::test]
async fn stores_that_honour_conditions_are_accepted_and_left_empty() {
    accepted(in_memory()).await;
    let s3 = S3::start(&foreign());
    accepted(s3_client(&s3.url())).await;
    let azurite = Azurite::start(&foreign());
    accepted(azure_client(&azurite.url())).await;
    accepted(Arc::new(PrefixStore::new(s3_client(&s3.url()), "part/of/it"))).await;
}

/// s3rver ignores conditions.
#[tokio::test]
async fn an_s3_that_ignores_conditions_is_refused() {
    let s3 = S3::without_conditions(&foreign());
    let (why, told) = refused(s3_client(&s3.url())).await;
    assert!(matches!(why, Unfit::Ignored { what } if what.contains("If-None-Match")), "{why:?}");
    assert!(told.contains("lockkeeper") && told.contains("ignores the condition"), "{told}");
}

#[tokio::test]
async fn a_store_that_honours_only_one_of_the_conditions_is_refused() {
    let (why, _) = refused(faulty(Faults { ignores_if_match: true, ..Faults::default() })).await;
    assert!(matches!(why, Unfit::Ignored { what } if what.contains("If-Match")), "{why:?}");
    let (why, _) = refused(faulty(Faults { ignores_if_none_match: true, ..Faults::default() })).await;
    assert!(matches!(why, Unfit::Ignored { what } if what.contains("If-None-Match")), "{why:?}");
}

#[tokio::test]
async fn store_whose_etags_do_not_identify_content_is_refused() {
    let (why, _) = refused(faulty(Faults { one_etag: true, ..Faults::default() })).await;
    assert_eq!(why, Unfit::SameETag { etag: "\"the one\"".to_owned() });
    let (why, _) = refused(faulty(Faults { no_etag: true, ..Faults::default() })).await;
    assert_eq!(why, Unfit::NoETag);
}

#[tokio::test]
async fn a_store_that_checks_and_puts_in_two_steps_is_refused() {
    let (why, told) = refused(faulty(Faults { two_steps: true, ..Faults::default() })).await;
    assert!(matches!(why, Unfit::NotAtomic { done: 8, of: 8, .. }), "{why:?}");
    assert!(told.contains("two steps"), "{told}");
}

#[tokio::test]
async fn a_store_without_conditional_puts_is_refused_with_its_answer() {
    let (why, told) = refused(faulty(Faults { unsupported: true, ..Faults::default() })).await;
    assert!(matches!(why, Unfit::Unsupported { .. }), "{why:?}");
    assert!(told.contains("a conditional put not yet implemented"), "{told}");
    let (why, told) = refused(faulty(Faults { refuses_if_match: true, ..Faults::default() })).await;
    assert!(matches!(why, Unfit::Unsupported { what, .. } if what.contains("If-Match")), "{why:?}");
    assert!(told.contains("another ETag"), "{told}");
}

#[tokio::test]
async fn local_files_are_refused_and_the_error_names_file_fence() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = || LocalFileSystem::new_with_prefix(dir.path()).expect("a directory");
    for store in [Arc::new(files()) as Arc<dyn ObjectStore>, Arc::new(PrefixStore::new(files(), "part"))] {
        let (why, told) = refused(store).await;
        assert_eq!(why, Unfit::LocalFiles);
        assert!(told.contains("FileFence"), "{told}");
    }
}

/// A store that does not respond is not reported as unfit, but as an error of the store.
#[tokio::test]
async fn unreachable_store_is_reported_as_store_error() {
    let error = ObjectFence::connect(faulty(Faults { put_lost: 100, ..Faults::default() }));
    let error = error.await.expect_err("no answer");
    assert!(matches!(error, ObjectError::Store { .. }), "{error:?}");
    let error = ObjectFence::connect(s3_client("http://127.0.0.1:9")).await.expect_err("nobody listens");
    assert!(matches!(error, ObjectError::Store { .. }), "{error:?}");
}

#[tokio::test]
async fn failed_removal_of_probes_is_reported() {
    let store = faulty(Faults { keeps: true, ..Faults::default() });
    let error = ObjectFence::connect(store).await.expect_err("litter").to_string();
    assert!(error.contains("cannot delete `.lockkeeper-probe/") && error.contains("not allowed"), "{error}");
}
