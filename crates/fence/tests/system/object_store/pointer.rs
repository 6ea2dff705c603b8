//! The pointer fence beyond the rule: separate data, drafts, and sweeps that remove only unneeded data.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, TryStreamExt};
use lockkeeper_fence::object_store::Swept;
use lockkeeper_fence::{ObjectError, PointerFence, Refused, Section};
use lockkeeper_rig::{Azurite, S3};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use crate::object_store::faults::{Faults, Faulty, When};
use crate::object_store::stores::{azure_client, foreign, in_memory, s3_client};
use crate::suite::token;

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

fn exclusive(value: u64) -> Section {
    Section::exclusive(token(value))
}

async fn fenced(store: &Arc<dyn ObjectStore>) -> PointerFence {
    PointerFence::connect(Arc::clone(store)).await.expect("fit")
}

/// The names of all objects.
async fn all(store: &Arc<dyn ObjectStore>) -> Vec<String> {
    let all = store.list(None).map_ok(|meta| meta.location.to_string()).try_collect::<Vec<_>>();
    all.await.expect("listed")
}

async fn read(fence: &PointerFence) -> Option<String> {
    let content = fence.read("stock").await.expect("readable")?;
    Some(String::from_utf8(content.to_vec()).expect("text"))
}

/// On every store: data that were written can be read, old data are swept, and a deleted resource keeps its
/// marks.
#[tokio::test]
async fn data_are_swept_only_when_no_pointer_names_them() {
    let s3 = S3::start(&foreign());
    let azurite = Azurite::start(&foreign());
    for store in [in_memory(), s3_client(&s3.url()), azure_client(&azurite.url())] {
        let fence = fenced(&store).await;
        assert_eq!(fence.enter("stock", exclusive(5)).await.expect("never seen"), None);
        for content in ["one", "two", "three"] {
            fence.write("stock", exclusive(5), content).await.expect("live");
            assert_eq!(read(&fence).await.as_deref(), Some(content));
        }
        let data = fence.enter("stock", exclusive(5)).await.expect("live").expect("there");
        assert!(data.as_ref().starts_with("stock.data/0-"), "{data}");
        assert_eq!(all(&store).await.len(), 4, "a pointer, and three data");
        assert_eq!(fence.sweep("stock", HOUR).await.expect("swept"), Swept { removed: 0, left: 2 });
        assert_eq!(fence.sweep("stock", NOW).await.expect("swept"), Swept { removed: 2, left: 0 });
        assert_eq!(fence.sweep("stock", NOW).await.expect("swept"), Swept::default());
        assert_eq!(all(&store).await.len(), 2);
        assert_eq!(read(&fence).await.as_deref(), Some("three"));
        fence.delete("stock", exclusive(6)).await.expect("live");
        assert_eq!(read(&fence).await, None);
        assert_eq!(fence.sweep("stock", NOW).await.expect("swept"), Swept { removed: 1, left: 0 });
        assert_eq!(all(&store).await, ["stock"]);
        let told = fence.write("stock", exclusive(5), "late").await;
        assert!(matches!(told, Err(ObjectError::Refused(Refused::Stale { .. }))), "{told:?}");
        assert_eq!(all(&store).await, ["stock"], "a stale writer leaves nothing");
        fence.reset("stock", token(1)).await.expect("done");
        fence.write("stock", exclusive(1), "new").await.expect("live");
        assert_eq!(read(&fence).await.as_deref(), Some("new"));
    }
}

#[tokio::test]
async fn sweep_keeps_foreign_objects() {
    let store = in_memory();
    let fence = fenced(&store).await;
    fence.write("stock", exclusive(1), "one").await.expect("live");
    fence.write("stocks", exclusive(1), "one").await.expect("live");
    fence.write("stocks", exclusive(1), "two").await.expect("live");
    let theirs =
        ["stock.data/readme", "stock.data/0-12", "stock.data/below/0-00000000000000000000000000000000"];
    for path in theirs {
        store.put(&Path::from(path), "theirs".into()).await.expect("put");
    }
    assert_eq!(fence.sweep("stock", NOW).await.expect("swept"), Swept::default());
    for path in theirs {
        store.head(&Path::from(path)).await.expect("still there");
    }
    assert_eq!(fence.sweep("stocks", NOW).await.expect("swept"), Swept { removed: 1, left: 0 });
    assert_eq!(fence.sweep("never seen", NOW).await.expect("swept"), Swept::default());
}

#[tokio::test]
async fn draft_can_be_uploaded_by_other_means_and_published() {
    let s3 = S3::start(&foreign());
    let store = s3_client(&s3.url());
    let fence = fenced(&store).await;
    fence.enter("stock", exclusive(5)).await.expect("never seen");
    let draft = fence.draft("stock").await.expect("a name");
    let missing = fence.publish(exclusive(5), &draft).await;
    assert!(matches!(missing, Err(ObjectError::DraftMissing { .. })), "{missing:?}");
    let mut upload = store.put_multipart(draft.path()).await.expect("begun");
    let part = vec![7; 5 << 20];
    upload.put_part(part.clone().into()).await.expect("a part");
    upload.put_part("the end".into()).await.expect("a part");
    upload.complete().await.expect("whole");
    assert_eq!(read(&fence).await, None, "not published yet");
    fence.publish(exclusive(5), &draft).await.expect("live");
    let found = fence.read("stock").await.expect("readable").expect("there");
    assert_eq!(found.len(), part.len() + 7);
    let told = fence.publish(Section::shared(token(6)), &draft).await;
    assert!(matches!(told, Err(ObjectError::Refused(Refused::SharedWrite { .. }))), "{told:?}");
}

/// The writer stalls between upload and publishing, and a sweep runs in between.
#[tokio::test]
async fn a_draft_that_was_swept_can_not_be_published() {
    let store = in_memory();
    let fence = fenced(&store).await;
    fence.write("stock", exclusive(5), "old").await.expect("live");
    for older_than in [NOW, HOUR] {
        let draft = fence.draft("stock").await.expect("a name");
        store.put(draft.path(), "new".into()).await.expect("uploaded");
        fence.sweep("stock", older_than).await.expect("swept");
        let kept = store.head(draft.path()).await.is_ok();
        assert_eq!(kept, older_than == HOUR, "a young draft is left for the next sweep");
        if !kept {
            store.put(draft.path(), "new".into()).await.expect("uploaded again");
        }
        let told = fence.publish(exclusive(5), &draft).await.expect_err("swept");
        assert!(matches!(told, ObjectError::DraftSwept { .. }), "{told:?}");
        assert!(told.to_string().contains("Make a new draft"), "{told}");
        assert_eq!(read(&fence).await.as_deref(), Some("old"));
    }
}

/// Runs `what` on a new fence. `between` runs once, at the first moment `when` of a call on an object whose
/// name begins with `at`.
async fn meanwhile<T>(
    when: When,
    at: &'static str,
    between: impl AsyncFnOnce(&PointerFence) + Send + 'static,
    what: impl AsyncFnOnce(PointerFence) -> T,
) -> (T, Arc<dyn ObjectStore>)
where
    T: Send,
{
    let inner = in_memory();
    let other = fenced(&inner).await;
    other.write("stock", exclusive(5), "old").await.expect("live");
    let store = Faulty::new(Arc::clone(&inner), Faults::default(), 1);
    let fence = fenced(&(Arc::clone(&store) as Arc<dyn ObjectStore>)).await;
    let (ask, asked) = tokio::sync::oneshot::channel::<tokio::sync::oneshot::Sender<()>>();
    let mut ask = Some(ask);
    store.between(move |now, path| {
        if now != when || !path.as_ref().starts_with(at) {
            return None;
        }
        let ask = ask.take()?;
        let (done, wait) = tokio::sync::oneshot::channel();
        ask.send(done).ok()?;
        Some(wait.map(drop).boxed())
    });
    let others = async {
        let done = asked.await.expect("the moment came");
        between(&other).await;
        done.send(()).expect("the call waits");
    };
    let (result, ()) = tokio::join!(what(fence), others);
    (result, inner)
}

#[tokio::test]
async fn a_write_whose_upload_is_swept_uploads_again() {
    let sweep = async |fence: &PointerFence| {
        let swept = fence.sweep("stock", NOW).await.expect("swept");
        assert_eq!(swept, Swept { removed: 1, left: 0 }, "the upload under way");
    };
    let write = async |fence: PointerFence| {
        fence.write("stock", exclusive(6), "new").await.expect("live");
        read(&fence).await
    };
    let (found, store) = meanwhile(When::AfterPut, "stock.data/", sweep, write).await;
    assert_eq!(found.as_deref(), Some("new"));
    let data = all(&store).await.into_iter().filter(|name| name.starts_with("stock.data/1-")).count();
    assert_eq!(data, 1, "uploaded under the new count");
}

#[tokio::test]
async fn a_writer_that_becomes_stale_while_uploading_leaves_nothing() {
    let enter = async |fence: &PointerFence| {
        fence.enter("stock", exclusive(9)).await.expect("live");
    };
    let write = async |fence: PointerFence| fence.write("stock", exclusive(6), "new").await;
    let (told, store) = meanwhile(When::AfterPut, "stock.data/", enter, write).await;
    assert!(matches!(told, Err(ObjectError::Refused(Refused::Stale { .. }))), "{told:?}");
    assert_eq!(all(&store).await.len(), 2, "the pointer and the old data");
}

#[tokio::test]
async fn a_reader_whose_data_are_swept_follows_the_pointer_again() {
    let replace = async |fence: &PointerFence| {
        fence.write("stock", exclusive(6), "new").await.expect("live");
        assert_eq!(fence.sweep("stock", NOW).await.expect("swept").removed, 1);
    };
    let (found, _) = meanwhile(When::AfterGet, "stock", replace, async |fence| read(&fence).await).await;
    assert_eq!(found.as_deref(), Some("new"));
}

#[tokio::test]
async fn data_changed_outside_the_fence_are_reported() {
    let store = in_memory();
    let fence = fenced(&store).await;
    fence.write("stock", exclusive(5), "ten").await.expect("live");
    let data = fence.enter("stock", exclusive(5)).await.expect("live").expect("there");
    store.put(&data, PutPayload::from_static(b"eleven")).await.expect("put");
    let told = fence.read("stock").await.expect_err("longer").to_string();
    assert!(told.contains("are 6 bytes, and 3 were published"), "{told}");
    store.delete(&data).await.expect("deleted");
    let told = fence.read("stock").await.expect_err("gone").to_string();
    assert!(told.contains("are gone"), "{told}");
    fence.write("stock", exclusive(5), "anew").await.expect("live");
    assert_eq!(read(&fence).await.as_deref(), Some("anew"));
}
