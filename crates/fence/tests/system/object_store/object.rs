//! The object fence beyond the rule: content, tombstones, resets, names, and foreign objects.

use std::sync::Arc;

use futures_util::TryStreamExt;
use lockkeeper_fence::object_store::CONTENT_BYTES_MAX;
use lockkeeper_fence::{Marks, ObjectError, ObjectFence, Pair, PointerFence, Refused, Section};
use lockkeeper_rig::{Azurite, S3};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::object_store::stores::{azure_client, foreign, in_memory, s3_client};
use crate::suite::token;

fn exclusive(value: u64) -> Section {
    Section::exclusive(token(value))
}

async fn fenced(store: &Arc<dyn ObjectStore>) -> ObjectFence {
    ObjectFence::connect(Arc::clone(store)).await.expect("fit")
}

fn is_stale<T>(told: &Result<T, ObjectError>) -> bool {
    matches!(told, Err(ObjectError::Refused(Refused::Stale { .. })))
}

#[tokio::test]
async fn content_returned_by_enter_can_not_be_changed_by_lower_tokens() {
    let fence = fenced(&in_memory()).await;
    assert_eq!(fence.enter("stock", exclusive(5)).await.expect("never seen"), None);
    fence.write("stock", exclusive(5), "ten").await.expect("live");
    let found = fence.enter("stock", exclusive(6)).await.expect("live");
    assert_eq!(found.as_deref(), Some(&b"ten"[..]));
    let told = fence.write("stock", exclusive(5), "eleven").await;
    assert!(is_stale(&told), "{told:?}");
    assert_eq!(fence.read("stock").await.expect("readable").as_deref(), Some(&b"ten"[..]));
    assert_eq!(fence.read("other").await.expect("readable"), None);
    assert_eq!(fence.marks("other").await.expect("readable"), Marks::default());
}

#[tokio::test]
async fn deleted_object_keeps_its_marks() {
    let store = in_memory();
    let fence = fenced(&store).await;
    fence.write("stock", exclusive(5), "ten").await.expect("live");
    let told = fence.delete("stock", exclusive(4)).await;
    assert!(is_stale(&told), "{told:?}");
    fence.delete("stock", exclusive(6)).await.expect("live");
    assert_eq!(fence.read("stock").await.expect("readable"), None);
    assert_eq!(fence.marks("stock").await.expect("readable").base.writer, Some(token(6)));
    let told = fence.write("stock", exclusive(5), "late").await;
    assert!(is_stale(&told), "{told:?}");
    fence.write("stock", exclusive(6), "").await.expect("an empty content is one");
    assert_eq!(fence.read("stock").await.expect("readable").as_deref(), Some(&b""[..]));
}

#[tokio::test]
async fn reset_moves_the_marks_up_or_down_and_keeps_the_content() {
    let fence = fenced(&in_memory()).await;
    fence.write("stock", Section::permit(3, token(70)).expect("a slot"), "ten").await.expect("live");
    for to in [90, 2] {
        fence.reset("stock", token(to)).await.expect("done");
        let pair = Pair { any: Some(token(to)), writer: Some(token(to)) };
        let marks = fence.marks("stock").await.expect("readable");
        assert_eq!(marks, Marks { base: pair, ..Marks::default() });
        let told = fence.enter("stock", exclusive(to - 1)).await;
        assert!(is_stale(&told), "{told:?}");
        assert_eq!(fence.read("stock").await.expect("readable").as_deref(), Some(&b"ten"[..]));
    }
    fence.enter("stock", exclusive(2)).await.expect("live again");
    fence.reset("never seen", token(5)).await.expect("done");
    let told = fence.enter("never seen", exclusive(4)).await;
    assert!(is_stale(&told), "{told:?}");
}

/// If the ETag were equal for equal contents (an MD5 of the bytes), a put on condition of one change would
/// also be accepted after another one.
#[tokio::test]
async fn equal_contents_have_unequal_etags_in_every_store() {
    let s3 = S3::start(&foreign());
    let azurite = Azurite::start(&foreign());
    for store in [in_memory(), s3_client(&s3.url()), azure_client(&azurite.url())] {
        let fence = fenced(&store).await;
        let mut etags = Vec::new();
        for _ in 0..4 {
            fence.write("stock", exclusive(5), "the same").await.expect("live");
            fence.enter("stock", exclusive(5)).await.expect("live");
            etags.push(store.head(&"stock".into()).await.expect("there").e_tag.expect("an ETag"));
        }
        let all = etags.len();
        etags.sort();
        etags.dedup();
        assert_eq!(etags.len(), all, "{store}: {etags:?}");
    }
}

#[tokio::test]
async fn invalid_object_names_are_refused() {
    let fence = fenced(&in_memory()).await;
    for (bad, why) in [
        ("", "empty"),
        (&"x".repeat(513), "513 bytes"),
        ("a\nb", "control character"),
        ("/a", "begins or ends with `/`"),
        ("a/", "begins or ends with `/`"),
        ("a//b", "empty path segment"),
        ("a/../b", "`a/../b`"),
    ] {
        let told = fence.enter(bad, exclusive(1)).await.expect_err(bad);
        let named = matches!(told, ObjectError::BadResource(_) | ObjectError::BadPath { .. });
        assert!(named && told.to_string().contains(why), "{bad:?}: {told}");
    }
    for good in ["a", "orders/42", "größe 3", "a=b&c?d", "..a", &"x/".repeat(255)[..509]] {
        fence.write(good, exclusive(1), good.to_owned()).await.expect(good);
        assert_eq!(fence.read(good).await.expect("readable").as_deref(), Some(good.as_bytes()));
    }
}

/// The names contain characters that an HTTP client must percent-encode.
#[tokio::test]
async fn names_and_arbitrary_bytes_round_trip_over_http() {
    let s3 = S3::start(&foreign());
    let azurite = Azurite::start(&foreign());
    let every_byte: Vec<u8> = (0..=255).collect();
    for store in [s3_client(&s3.url()), azure_client(&azurite.url())] {
        let fence = fenced(&store).await;
        for name in ["orders/42", "größe 3", "a=b&c", "100% +"] {
            fence.write(name, exclusive(1), every_byte.clone()).await.expect(name);
            assert_eq!(fence.read(name).await.expect("readable"), Some(every_byte.clone().into()), "{name}");
        }
        let all: Vec<_> = store.list(None).try_collect().await.expect("listed");
        assert_eq!(all.len(), 4, "one object each");
    }
}

#[tokio::test]
async fn foreign_objects_are_refused_and_left_unchanged() {
    let store = in_memory();
    let fence = fenced(&store).await;
    let path = Path::from("stock");
    store.put(&path, "plain".into()).await.expect("put");
    for told in [
        fence.enter("stock", exclusive(1)).await.map(drop),
        fence.write("stock", exclusive(1), "ten").await,
        fence.delete("stock", exclusive(1)).await,
        fence.read("stock").await.map(drop),
        fence.reset("stock", token(1)).await,
    ] {
        assert!(matches!(told, Err(ObjectError::Foreign { .. })), "{told:?}");
    }
    let bytes = store.get(&path).await.expect("there").bytes().await.expect("read");
    assert_eq!(&bytes[..], b"plain");
}

#[tokio::test]
async fn each_fence_refuses_objects_of_the_other() {
    let store = in_memory();
    let object = fenced(&store).await;
    let pointer = PointerFence::connect(Arc::clone(&store)).await.expect("fit");
    object.write("small", exclusive(1), "ten").await.expect("live");
    pointer.write("large", exclusive(1), "ten").await.expect("live");
    let told = pointer.write("small", exclusive(2), "x").await.expect_err("an object's").to_string();
    assert!(told.contains("`ObjectFence`"), "{told}");
    let told = object.write("large", exclusive(2), "x").await.expect_err("a pointer's").to_string();
    assert!(told.contains("`PointerFence`"), "{told}");
}

#[tokio::test]
async fn damaged_object_is_not_treated_as_never_seen() {
    let store = in_memory();
    let fence = fenced(&store).await;
    let path = Path::from("stock");
    fence.write("stock", exclusive(5), "ten").await.expect("live");
    let good = store.get(&path).await.expect("there").bytes().await.expect("read");
    let text = String::from_utf8(good.to_vec()).expect("text");
    let damages = [
        (text.replace("ten", "two"), "damaged"),
        (text.replace("any 5", "any 4"), "checksum"),
        (text[..text.len() - 4].to_owned(), "damaged"),
        (text[..20].to_owned(), "no end"),
    ];
    for (damaged, why) in damages {
        store.put(&path, damaged.into()).await.expect("put");
        for told in [
            fence.enter("stock", exclusive(1)).await.map(drop),
            fence.write("stock", exclusive(9), "x").await,
            fence.read("stock").await.map(drop),
            fence.marks("stock").await.map(drop),
        ] {
            let error = told.expect_err("damaged");
            assert!(matches!(error, ObjectError::Corrupt { .. }), "{error:?}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
    store.put(&path, good.into()).await.expect("put");
    fence.write("stock", exclusive(5), "restored").await.expect("live");
}

#[tokio::test]
async fn content_above_the_limit_is_refused_and_the_error_names_pointer_fence() {
    let fence = fenced(&in_memory()).await;
    let limit = usize::try_from(CONTENT_BYTES_MAX).expect("8 MiB");
    fence.write("stock", exclusive(1), vec![7; limit]).await.expect("fits");
    let found = fence.enter("stock", exclusive(2)).await.expect("live").expect("there");
    assert_eq!(found.len(), limit);
    let told = fence.write("stock", exclusive(2), vec![7; limit + 1]).await.expect_err("too large");
    let text = told.to_string();
    assert!(text.contains("8388609 bytes") && text.contains("PointerFence"), "{text}");
}
