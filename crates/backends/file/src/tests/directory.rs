//! The directory: its creation, refusals and error messages.

use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use lockkeeper_backend::{Answer, BackendError, Push, Url, answer_to};

use super::super::FileBackend;
use super::super::store::Config;
use super::{Client, config, request, token, within};

fn refusal(config: Config) -> String {
    BackendError::from(FileBackend::with_config(config).map(drop).expect_err("refused")).message
}

async fn next_token(config: Config) -> u64 {
    let backend = FileBackend::with_config(config).unwrap();
    let mut client = Client::new(&backend, "c").await;
    let (_, granted) = client.take(request("x")).await;
    token(&granted)
}

fn year_1970() -> Duration {
    Duration::from_secs(1000)
}

#[tokio::test]
async fn a_recreated_directory_starts_above_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/locks");
    let first = next_token(config(&path)).await;
    assert!(first > 20_000_000_000_000, "microseconds since 2026");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::remove_dir_all(&path).unwrap();
    assert!(next_token(config(&path)).await > first);
}

#[tokio::test]
async fn a_clock_in_1970_is_refused_without_tokens_above() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks");
    let config = Config { wall_clock: year_1970, ..config(&path) };
    let message = refusal(config.clone());
    assert!(message.contains("1000 s since 1970") && message.contains("?tokens_above=N"), "{message}");
    let told = Config { tokens_above: Some(41), ..config.clone() };
    assert_eq!(next_token(told).await, 42);
    // An existing counter needs no clock, and never decreases.
    assert_eq!(next_token(config.clone()).await, 43);
    assert_eq!(next_token(Config { tokens_above: Some(7), ..config.clone() }).await, 44);
    assert_eq!(next_token(Config { tokens_above: Some(100), ..config }).await, 101);
}

#[tokio::test]
async fn a_lost_counter_is_not_recreated_with_a_clock_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks");
    next_token(config(&path)).await;
    std::fs::remove_file(path.join("counter")).unwrap();
    let back = || Duration::from_secs(1_767_225_700);
    let message = refusal(Config { wall_clock: back, ..config(&path) });
    assert!(message.contains("behind") && message.contains("?tokens_above=N"), "{message}");
    assert!(next_token(config(&path)).await > 20_000_000_000_000);
}

#[tokio::test]
async fn a_damaged_counter_is_refused_without_tokens_above() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks");
    let first = next_token(config(&path)).await;
    std::fs::write(path.join("counter"), [7; 1024]).unwrap();
    let message = refusal(config(&path));
    assert!(message.contains("counter") && message.contains("?tokens_above=N"), "{message}");
    assert!(next_token(Config { tokens_above: Some(first), ..config(&path) }).await > first);
    assert!(next_token(config(&path)).await > first + 1);
}

#[test]
fn an_invalid_lock_directory_is_refused_with_a_one_line_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let newer = dir.path().join("newer");
    std::fs::create_dir(&newer).unwrap();
    std::fs::write(newer.join("FORMAT"), "lockkeeper-file 2\n").unwrap();
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("FORMAT"), "something else\n").unwrap();
    for (path, words) in [
        (file.clone(), "not a directory"),
        (file.join("below"), "not a directory"),
        (newer, "format 2, this program knows 1"),
        (other, "something else"),
    ] {
        let message = refusal(config(&path));
        assert!(message.contains(words) && !message.contains('\n'), "{message}");
        assert!(message.contains(path.file_name().unwrap().to_str().unwrap()), "{message}");
    }
}

#[test]
fn invalid_urls_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("locks");
    let open = |text: &str| {
        let url = Url::parse(text, &["file"]).unwrap();
        FileBackend::open(&url).map(drop).map_err(|e| e.to_string())
    };
    let base = base.display();
    open(&format!("file://{base}?tokens_above=5&fuse=allow")).unwrap();
    for (text, words) in [
        (format!("file://host{base}"), "three slashes"),
        ("file:relative".to_owned(), "absolute"),
        (format!("file://{base}?token_above=5"), "did you mean `tokens_above`"),
        (format!("file://{base}?tokens_above=many"), "0 to 2^52"),
        (format!("file://{base}?tokens_above=9007199254740991"), "0 to 2^52"),
        (format!("file://{base}?fuse=yes"), "fuse=allow"),
    ] {
        let message = open(&text).unwrap_err();
        assert!(message.contains(words), "{text}: {message}");
    }
}

#[tokio::test]
async fn files_get_permissions_matching_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    for (bits, folder, file) in [(0o1777, 0o777, 0o666), (0o770, 0o770, 0o660), (0o755, 0o700, 0o600)] {
        let path = dir.path().join(format!("{bits:o}"));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bits)).unwrap();
        let backend = FileBackend::with_config(config(&path)).unwrap();
        let mut client = Client::new(&backend, "c").await;
        client.take(request("x")).await;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path.join("locks")), folder, "{bits:o}");
        assert_eq!(mode(&path.join("sessions")), folder, "{bits:o}");
        for name in ["counter", "FORMAT", "locks/x", "locks/x.hold"] {
            assert_eq!(mode(&path.join(name)), file, "{bits:o} {name}");
        }
        let session = std::fs::read_dir(path.join("sessions")).unwrap().next().unwrap().unwrap();
        assert_eq!(mode(&session.path()), file, "{bits:o}");
    }
}

#[tokio::test]
async fn deleting_the_directory_is_reported_as_a_loss_to_its_holders() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks");
    let backend = FileBackend::with_config(config(&path)).unwrap();
    let (mut a, mut b) = (Client::new(&backend, "a").await, Client::new(&backend, "b").await);
    let (held, granted) = a.take(request("x")).await;
    let (_, waiting) = b.ask(request("x"));
    let waiting = tokio::spawn(waiting);
    b.queued().await;
    std::fs::remove_dir_all(&path).unwrap();
    a.push(|push| matches!(push, Push::Lost(_))).await;
    let finish = lockkeeper_backend::Call::Finish {
        seq: lockkeeper_core::Seq(90),
        target: held,
        done_through: lockkeeper_core::Seq(0),
    };
    let answer = within(answer_to(&*a.conn, finish)).await.unwrap();
    assert!(matches!(answer, Answer::SessionGone), "{answer:?}");
    b.push(|push| matches!(push, Push::Lost(_))).await;
    let answer = within(waiting).await.unwrap().unwrap();
    assert!(matches!(answer, Answer::SessionGone | Answer::Finished(_)), "{answer:?}");
    assert!(matches!(a.open().await, Answer::Opened));
    a.seq = 0;
    let (_, again) = a.take(request("x")).await;
    assert!(token(&again) > token(&granted));
}

/// As `find DIR -type f -delete` does it: pipes and folders stay.
fn delete_files(path: &Path) {
    for folder in [path.to_owned(), path.join("locks")] {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_file() {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn next_holder_after_the_files_were_deleted_waits_until_the_first_one_has_lost_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks");
    let backend = FileBackend::with_config(config(&path)).unwrap();
    let mut first = Client::new(&backend, "first").await;
    let (held, granted) = first.take(request("x")).await;
    // A copy of the descriptors, as a guardian has it until its command has ended.
    let fds = first.conn.descriptors(held);
    // SAFETY: the session keeps the descriptors open.
    let copy = |&fd: &i32| nix::unistd::dup(unsafe { BorrowedFd::borrow_raw(fd) }).unwrap();
    let guardian: Vec<_> = fds.iter().map(copy).collect();
    delete_files(&path);
    first.push(|push| matches!(push, Push::Lost(_))).await;
    let waiting = std::thread::spawn({
        let config = config(&path);
        move || FileBackend::with_config(config)
    });
    let message = BackendError::from(waiting.join().unwrap().map(drop).expect_err("the command still runs"));
    assert!(message.message.contains("was deleted while locks were held"), "{message}");
    drop(guardian);
    let next = FileBackend::with_config(config(&path)).unwrap();
    let mut second = Client::new(&next, "second").await;
    let (_, later) = second.take(request("x")).await;
    assert!(token(&later) > token(&granted));
    // The process that saw the old counter goes on with the new one.
    assert!(matches!(first.open().await, Answer::Opened));
    first.seq = 0;
    let (_, again) = first.take(request("y")).await;
    assert!(token(&again) > token(&later));
}

#[tokio::test]
async fn hold_whose_file_was_deleted_or_replaced_is_lost() {
    for replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        let backend = FileBackend::with_config(config(&path)).unwrap();
        let (mut early, mut late) =
            (Client::new(&backend, "early").await, Client::new(&backend, "late").await);
        let (held, _) = early.take(request("x")).await;
        late.take(request("z")).await;
        for name in ["x.hold", "z.hold"] {
            std::fs::remove_file(path.join("locks").join(name)).unwrap();
            if replaced {
                std::fs::write(path.join("locks").join(name), "").unwrap();
            }
        }
        // At its release, or else within about a second.
        match early.end_of(held).await {
            Answer::Finished(end) => assert_eq!(end, lockkeeper_core::End::Gone),
            answer => assert!(matches!(answer, Answer::SessionGone), "{answer:?}"),
        }
        late.push(|push| matches!(push, Push::Lost(_))).await;
    }
}

#[tokio::test]
async fn deleted_counter_issues_no_token_and_its_successor_starts_above_every_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks");
    let ahead = Config { tokens_above: Some(1 << 51), ..config(&path) };
    let backend = FileBackend::with_config(ahead).unwrap();
    let mut client = Client::new(&backend, "a").await;
    let (held, granted) = client.take(request("x")).await;
    assert_eq!(client.finish(held).await, lockkeeper_core::End::Released);
    std::fs::remove_file(path.join("counter")).unwrap();
    let (_, answer) = client.acquire(request("y")).await;
    assert!(matches!(answer, Answer::SessionGone), "{answer:?}");
    drop((client, backend));
    assert!(next_token(config(&path)).await > token(&granted), "the record of `x` has it");
}

#[tokio::test]
async fn many_creators_of_one_directory_agree_on_one_counter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks");
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let config = config(&path);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(next_token(config))
            })
        })
        .collect();
    let mut tokens: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    tokens.sort_unstable();
    let first = tokens[0];
    assert_eq!(tokens, (first..first + 8).collect::<Vec<_>>());
}
