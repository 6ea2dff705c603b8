//! Lock rules between sessions of one process.

use std::time::Duration;

use lockkeeper_backend::{Answer, Backend, BreakOrder, Broken, Call, HolderState, Push, answer_to};
use lockkeeper_core::{End, Mode, Seq, Token, TokenStatus};

use super::{Client, backend, name, request, request_all, token, within};

#[tokio::test]
async fn a_lock_excludes_and_its_tokens_rise() {
    let (_dir, backend) = backend();
    let (mut a, mut b) = (Client::new(&backend, "a").await, Client::new(&backend, "b").await);
    let (held, first) = a.take(request("x")).await;
    let (_, answer) = b.acquire(super::AcquireRequest { wait: false, ..request("x") }).await;
    let Answer::Busy(busy) = answer else { panic!("{answer:?}") };
    assert!(busy.holder.unwrap().starts_with('a'));

    let (seq, waiting) = b.ask(request("x"));
    let waiting = tokio::spawn(waiting);
    b.queued().await;
    assert_eq!(a.finish(held).await, End::Released);
    let Answer::Granted(second) = within(waiting).await.unwrap().unwrap() else { panic!("not granted") };
    assert!(token(&second) > token(&first));
    assert_eq!(b.finish(seq).await, End::Released);
    assert_eq!(b.finish(seq).await, End::Released, "the answer is kept (R4)");
}

#[tokio::test]
async fn idle_locks_leave_no_files() {
    let (dir, backend) = backend();
    let mut a = Client::new(&backend, "a").await;
    let (held, _) = a.take(request("some/lock")).await;
    let (permit, _) =
        a.take(super::AcquireRequest { mode: Mode::Permit { of: Some(3) }, ..request("p") }).await;
    assert_eq!((a.finish(held).await, a.finish(permit).await), (End::Released, End::Released));
    // A session keeps the files of a few locks for their next use, until it closes.
    for i in 0..200 {
        let (held, _) = a.take(request(&format!("many/{i}"))).await;
        assert_eq!(a.finish(held).await, End::Released);
    }
    let left = || -> Vec<_> { std::fs::read_dir(dir.path().join("locks-dir/locks")).unwrap().collect() };
    assert!(left().len() <= 2 * 32, "{}", left().len());
    a.close().await;
    assert!(left().is_empty(), "{:?}", left());
    assert_eq!(std::fs::read_dir(dir.path().join("locks-dir/sessions")).unwrap().count(), 0);
}

#[tokio::test]
async fn waiters_are_granted_in_the_order_of_their_arrival() {
    let (_dir, backend) = backend();
    let mut holder = Client::new(&backend, "holder").await;
    let (held, _) = holder.take(request("x")).await;
    let mut waiters = Vec::new();
    let (send, mut order) = tokio::sync::mpsc::unbounded_channel();
    for i in 0..12 {
        let mut waiter = Client::new(&backend, "waiter").await;
        let (seq, asked) = waiter.ask(request("x"));
        let asked = tokio::spawn(asked);
        waiter.queued().await;
        let send = send.clone();
        waiters.push(tokio::spawn(async move {
            let Answer::Granted(granted) = asked.await.unwrap().unwrap() else { panic!("not granted") };
            send.send((i, token(&granted))).unwrap();
            assert_eq!(waiter.finish(seq).await, End::Released);
        }));
    }
    assert_eq!(holder.finish(held).await, End::Released);
    let mut last = 0;
    for i in 0..12 {
        let (who, token) = within(order.recv()).await.unwrap();
        assert_eq!(who, i);
        assert!(token > last);
        last = token;
    }
    for waiter in waiters {
        within(waiter).await.unwrap();
    }
}

#[tokio::test]
async fn readers_share_and_a_writer_between_them_keeps_its_place() {
    let (_dir, backend) = backend();
    let shared = || super::AcquireRequest { mode: Mode::Shared, ..request("x") };
    let (mut a, mut b) = (Client::new(&backend, "a").await, Client::new(&backend, "b").await);
    let (mut w, mut c) = (Client::new(&backend, "w").await, Client::new(&backend, "c").await);
    let (first, _) = a.take(shared()).await;
    let (second, _) = b.take(shared()).await;
    let (write, writer) = w.ask(request("x"));
    let writer = tokio::spawn(writer);
    w.queued().await;
    let (third, reader) = c.ask(shared());
    let reader = tokio::spawn(reader);
    c.queued().await;
    assert_eq!((a.finish(first).await, b.finish(second).await), (End::Released, End::Released));
    let Answer::Granted(written) = within(writer).await.unwrap().unwrap() else { panic!("not granted") };
    assert!(!reader.is_finished());
    assert_eq!(w.finish(write).await, End::Released);
    let Answer::Granted(read) = within(reader).await.unwrap().unwrap() else { panic!("not granted") };
    assert!(token(&read) > token(&written));
    assert_eq!(c.finish(third).await, End::Released);
}

#[tokio::test]
async fn permits_have_slots_of_their_own_and_one_limit() {
    let (_dir, backend) = backend();
    let permit = |of| super::AcquireRequest { mode: Mode::Permit { of }, ..request("p") };
    let mut clients = Vec::new();
    let mut slots = Vec::new();
    for _ in 0..3 {
        let mut client = Client::new(&backend, "c").await;
        let (seq, granted) = client.take(permit(Some(3))).await;
        assert_eq!(granted.permits[0].limit, 3);
        slots.push(granted.permits[0].slot);
        clients.push((client, seq));
    }
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    let mut more = Client::new(&backend, "more").await;
    let (_, answer) = more.acquire(permit(Some(4))).await;
    let Answer::Refused(error) = answer else { panic!("{answer:?}") };
    assert!(error.message.contains("has 3 permits, 4 were asked for"), "{error}");
    let (_, answer) = more.acquire(super::AcquireRequest { wait: false, ..permit(None) }).await;
    assert!(matches!(answer, Answer::Busy(_)), "{answer:?}");
    let (seq, waiting) = more.ask(permit(None));
    let waiting = tokio::spawn(waiting);
    more.queued().await;
    let (mut gone, held) = clients.remove(1);
    let slot = 1;
    assert_eq!(gone.finish(held).await, End::Released);
    let Answer::Granted(granted) = within(waiting).await.unwrap().unwrap() else { panic!("not granted") };
    assert_eq!(granted.permits[0].slot, slot, "the free one");
    assert_eq!(more.finish(seq).await, End::Released);
    let (_, answer) = Client::new(&backend, "zero").await.acquire(permit(Some(0))).await;
    assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
}

#[tokio::test]
async fn a_session_that_vanishes_frees_its_locks_after_its_lock_delay() {
    let (_dir, backend) = backend();
    let delay = Duration::from_millis(300);
    let mut a = Client::with_delay(&backend, "a", delay).await;
    let mut b = Client::new(&backend, "b").await;
    a.take(request("x")).await;
    let (_, asked) = b.ask(request("x"));
    let asked = tokio::spawn(asked);
    b.queued().await;
    let vanished = lockkeeper_backend::BootInstant::now();
    drop(a);
    let Answer::Granted(_) = within(asked).await.unwrap().unwrap() else { panic!("not granted") };
    assert!(lockkeeper_backend::BootInstant::now() - vanished >= delay, "never before the delay is over");
}

#[tokio::test]
async fn keep_closed_applies_after_a_release_but_not_after_an_abandoned_acquire() {
    let (_dir, backend) = backend();
    let closing = |name| super::AcquireRequest { keep_closed: Duration::from_millis(300), ..request(name) };
    let mut a = Client::new(&backend, "a").await;
    let (held, _) = a.take(closing("x")).await;
    let before = lockkeeper_backend::BootInstant::now();
    assert_eq!(a.finish(held).await, End::Released);
    let shown = within(backend.inspect(name("x"))).await.unwrap();
    assert!(matches!(shown.holds[0].state, HolderState::Closed { .. }), "{shown:?}");
    let (again, _) = a.take(request("x")).await;
    assert!(lockkeeper_backend::BootInstant::now() - before >= Duration::from_millis(300));
    assert_eq!(a.finish(again).await, End::Released);

    // A request whose future was dropped is granted by the record. Its Finish leaves no closed hold, since
    // the grant was never returned.
    let (held, _) = a.take(request("y")).await;
    let (abandoned, asked) = a.ask(closing("y"));
    let asked = tokio::spawn(asked);
    a.queued().await;
    asked.abort();
    assert!(within(asked).await.is_err());
    assert_eq!(a.finish(held).await, End::Released);
    assert_eq!(a.finish(abandoned).await, End::Left);
    let (_, answer) = a.acquire(super::AcquireRequest { wait: false, ..request("y") }).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
}

#[tokio::test]
async fn a_finish_that_comes_first_prevents_the_acquire() {
    let (_dir, backend) = backend();
    let mut a = Client::new(&backend, "a").await;
    let finish = Call::Finish { seq: Seq(8), target: Seq(7), done_through: Seq(0) };
    let answer = within(answer_to(&*a.conn, finish)).await.unwrap();
    assert!(matches!(answer, Answer::Finished(End::Gone)), "{answer:?}");
    a.seq = 6;
    let (_, answer) = a.acquire(request("x")).await;
    assert!(matches!(answer, Answer::Finished(_)), "{answer:?}");
    // The acquire is submitted before the Finish, and polled after it.
    let (seq, asked) = a.ask(request("x"));
    assert_eq!(a.finish(seq).await, End::Gone);
    let answer = within(asked).await.unwrap();
    assert!(matches!(answer, Answer::Finished(_)), "{answer:?}");
    a.take(super::AcquireRequest { wait: false, ..request("x") }).await;
}

#[tokio::test]
async fn several_names_have_one_token_and_leave_nothing_behind_when_one_is_busy() {
    let (_dir, backend) = backend();
    let (mut a, mut b) = (Client::new(&backend, "a").await, Client::new(&backend, "b").await);
    let (both, granted) = a.take(request_all(&["y", "x", "y"])).await;
    for lock in ["x", "y"] {
        let status = within(backend.check_token(name(lock), granted.token.unwrap())).await.unwrap();
        assert_eq!(status, TokenStatus::Current, "{lock}");
        let shown = within(backend.inspect(name(lock))).await.unwrap();
        assert_eq!(shown.holds[0].token, granted.token);
    }
    let (_, answer) = b.acquire(super::AcquireRequest { wait: false, ..request_all(&["a", "y"]) }).await;
    assert!(matches!(answer, Answer::Busy(_)), "{answer:?}");
    let (free, _) = b.take(super::AcquireRequest { wait: false, ..request("a") }).await;
    assert_eq!(b.finish(free).await, End::Released);
    let (seq, asked) = b.ask(request_all(&["x", "y", "z"]));
    let asked = tokio::spawn(asked);
    b.queued().await;
    assert_eq!(a.finish(both).await, End::Released);
    let Answer::Granted(later) = within(asked).await.unwrap().unwrap() else { panic!("not granted") };
    assert!(token(&later) > token(&granted));
    assert_eq!(b.finish(seq).await, End::Released);
    assert_eq!(within(backend.list(None)).await.unwrap(), []);
}

#[tokio::test]
async fn a_break_notifies_the_holder_which_keeps_the_lock() {
    let (_dir, backend) = backend();
    let mut a = Client::new(&backend, "holder-a").await;
    let (held, granted) = a.take(request("x")).await;
    let order = |token, now| BreakOrder {
        name: name("x"),
        token: Token::new(token).unwrap(),
        reason: "stuck".into(),
        by: "op".into(),
        now,
    };
    let refused = within(backend.break_hold(order(token(&granted), true))).await.unwrap_err();
    assert!(refused.message.contains("only the kernel ends a flock"), "{refused}");
    assert!(refused.message.contains(&std::process::id().to_string()), "{refused}");
    let other = within(backend.break_hold(order(token(&granted) + 1, false))).await.unwrap();
    assert_eq!(other, Broken::NotCurrent { live: granted.token.into_iter().collect() });

    assert_eq!(within(backend.break_hold(order(token(&granted), false))).await.unwrap(), Broken::Done);
    let Push::Revoked { seq, .. } = a.push(|push| matches!(push, Push::Revoked { .. })).await else {
        panic!()
    };
    assert_eq!(seq, held);
    let shown = within(backend.inspect(name("x"))).await.unwrap();
    let HolderState::Revoked { reason, .. } = &shown.holds[0].state else { panic!("{shown:?}") };
    assert_eq!(reason, "stuck");
    let (_, answer) = a.acquire(super::AcquireRequest { wait: false, ..request("x") }).await;
    assert!(matches!(answer, Answer::Busy(_)), "still held: {answer:?}");
    assert_eq!(a.finish(held).await, End::Broken);
}

#[tokio::test]
async fn a_foreign_flock_excludes_us_and_is_excluded() {
    let (dir, backend) = backend();
    let file = dir.path().join("locks-dir/locks/x.hold");
    std::fs::write(&file, "").unwrap();
    let foreign = std::fs::File::open(&file).unwrap();
    assert!(super::super::os::try_flock(&foreign, true).unwrap());
    let mut a = Client::new(&backend, "a").await;
    let (_, answer) = a.acquire(super::AcquireRequest { wait: false, ..request("x") }).await;
    assert!(matches!(answer, Answer::Busy(_)), "{answer:?}");
    let (seq, asked) = a.ask(request("x"));
    let asked = tokio::spawn(asked);
    a.queued().await;
    assert!(!asked.is_finished());
    drop(foreign);
    let Answer::Granted(_) = within(asked).await.unwrap().unwrap() else { panic!("not granted") };
    let foreign = std::fs::File::open(&file).unwrap();
    assert!(!super::super::os::try_flock(&foreign, true).unwrap(), "we have it");
    assert_eq!(a.finish(seq).await, End::Released);
    assert!(super::super::os::try_flock(&foreign, true).unwrap());
    assert!(file.exists(), "a hold file that we did not make stays");
}

#[tokio::test]
async fn a_waiter_that_leaves_is_never_granted_and_blocks_no_other() {
    let (_dir, backend) = backend();
    let (mut a, mut b) = (Client::new(&backend, "a").await, Client::new(&backend, "b").await);
    let mut c = Client::new(&backend, "c").await;
    let (held, _) = a.take(request("x")).await;
    let (left, asked) = b.ask(request("x"));
    let asked = tokio::spawn(asked);
    b.queued().await;
    let (_, behind) = c.ask(request("x"));
    let behind = tokio::spawn(behind);
    c.queued().await;
    assert_eq!(b.finish(left).await, End::Left);
    assert!(matches!(within(asked).await.unwrap().unwrap(), Answer::Finished(_)));
    assert_eq!(a.finish(held).await, End::Released);
    assert!(matches!(within(behind).await.unwrap().unwrap(), Answer::Granted(_)));
}

#[tokio::test]
async fn a_subtree_is_refused_with_the_reason() {
    let (_dir, backend) = backend();
    let mut a = Client::new(&backend, "a").await;
    let (_, answer) = a.acquire(super::AcquireRequest { subtree: true, ..request("x") }).await;
    let Answer::Refused(error) = answer else { panic!("{answer:?}") };
    assert!(error.message.contains("a flock knows one name"), "{error}");
}

#[tokio::test]
async fn a_damaged_record_is_refused_and_deleting_it_repairs_the_lock() {
    let (dir, backend) = backend();
    let mut a = Client::new(&backend, "a").await;
    let (held, _) = a.take(request("x")).await;
    let file = dir.path().join("locks-dir/locks/x");
    std::fs::write(&file, [0xaa; 2000]).unwrap();
    let mut b = Client::new(&backend, "b").await;
    let (_, answer) = b.acquire(super::AcquireRequest { wait: false, ..request("x") }).await;
    let Answer::Refused(error) = answer else { panic!("{answer:?}") };
    assert!(error.message.contains("is damaged") && error.message.contains("delete it"), "{error}");
    std::fs::remove_file(&file).unwrap();
    let (_, answer) = b.acquire(super::AcquireRequest { wait: false, ..request("x") }).await;
    assert!(matches!(answer, Answer::Busy(_)), "the flock still excludes: {answer:?}");
    assert_eq!(a.finish(held).await, End::Released);
    b.take(super::AcquireRequest { wait: false, ..request("x") }).await;
}

#[tokio::test]
async fn names_of_every_kind_can_be_locked_and_are_listed() {
    let (_dir, backend) = backend();
    let mut a = Client::new(&backend, "a").await;
    let long = "é".repeat(256);
    let names = ["a", "a/b", "a.hold", "..", "заказ 42", &long];
    for lock in names {
        a.take(super::AcquireRequest { wait: false, ..request(lock) }).await;
    }
    let mut listed: Vec<String> =
        within(backend.list(None)).await.unwrap().iter().map(|info| info.name.to_string()).collect();
    listed.sort();
    let mut expected: Vec<String> = names.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(listed, expected);
    let below = within(backend.list(Some(name("a")))).await.unwrap();
    let below: Vec<&str> = below.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(below, ["a", "a/b"]);
}
