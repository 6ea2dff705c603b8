//! The store as a whole: more resources than fit in memory, concurrent checks, and shutdown.

use super::*;
use crate::rule::Refused;

fn exclusive(value: u64) -> Section {
    Section::exclusive(Token::new(value).expect("a token"))
}

fn name(number: u64) -> Resource {
    Resource::new(&format!("resource {number}")).expect("a name")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_marks_are_loaded_again() {
    const RESOURCES: u64 = 200;
    let dir = tempfile::tempdir().expect("a directory");
    let marks = Arc::new(DurableMarks::with_room(&dir.path().join("marks.redb"), 8, 200).expect("new"));
    for round in [10, 20] {
        let checks: Vec<_> = (1..=RESOURCES)
            .map(|number| {
                let marks = Arc::clone(&marks);
                tokio::spawn(async move {
                    marks.check(&name(number), Action::Enter, exclusive(number + round)).await
                })
            })
            .collect();
        for check in checks {
            let passed = check.await.expect("no panic").expect("never seen, or higher");
            assert_eq!(passed, Passed::Raised);
        }
    }
    for number in 1..=RESOURCES {
        let highest = Token::new(number + 20).expect("a token");
        let section = exclusive(number + 19);
        let stale = marks.check(&name(number), Action::Enter, section).await.expect_err("20 was here");
        assert!(
            matches!(&stale, MarksError::Refused(Refused::Stale { highest: told, .. }) if *told == highest),
            "{stale:?}"
        );
        assert_eq!(marks.marks(&name(number)).await.expect("kept").base.any, Some(highest));
    }
}

#[tokio::test]
async fn cancelled_check_is_harmless_and_a_dropped_store_releases_its_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.redb");
    let marks = DurableMarks::open(&path).expect("new");
    let resource = name(1);
    {
        let mut check = std::pin::pin!(marks.check(&resource, Action::Enter, exclusive(5)));
        // Polls the check once, then drops it.
        let _ = std::future::poll_fn(|context| std::task::Poll::Ready(check.as_mut().poll(context))).await;
    }
    let _ = marks.check(&resource, Action::Enter, exclusive(6)).await.expect("higher");
    drop(marks);
    let marks = DurableMarks::open(&path).expect("free when the drop has returned");
    let stale = marks.check(&resource, Action::Enter, exclusive(5)).await.expect_err("6 was here");
    assert!(matches!(stale, MarksError::Refused(Refused::Stale { .. })), "{stale:?}");
}

#[tokio::test]
async fn store_that_is_full_refuses_further_resources_also_after_it_was_opened_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.redb");
    for token in [5, 6] {
        let marks = DurableMarks::open_with_limit(&path, 3).expect("free");
        let _ = marks.check(&name(1), Action::Enter, exclusive(token)).await.expect("higher");
        let permit = Section::permit(7, Token::new(token).expect("a token")).expect("a slot");
        let _ = marks.check(&name(2), Action::Enter, permit).await.expect("higher");
        assert_eq!(marks.count(), 3, "two resources, and a slot");
        let full = marks.check(&name(3), Action::Enter, exclusive(5)).await.expect_err("the fourth");
        assert!(matches!(full, MarksError::Full { max: 3 }), "{full:?}");
        assert_eq!(marks.marks(&name(3)).await.expect("readable"), Marks::default());
    }
}
