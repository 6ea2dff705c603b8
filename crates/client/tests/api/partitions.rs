//! A group of eight that divides 1,024 partitions: one dies, another one comes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::backends::memory::Server;
use lockkeeper::{Fenced, HoldError, LockInfo, Locks, Token};
use tokio::task::JoinSet;

const PARTITIONS: u32 = 1024;

/// The owner of each partition, with its token.
type Owners = Arc<Mutex<BTreeMap<u32, (usize, Token)>>>;

fn fenced(server: &Server, number: usize) -> Locks<Fenced> {
    server.client(&format!("member {number}")).fenced().unwrap()
}

/// A member that works on each partition until that is to be given up. Ends with its membership.
async fn member(locks: Locks<Fenced>, number: usize, owners: Owners) {
    let mut member = locks.partitions("group", PARTITIONS).join().await.unwrap();
    let mut works = JoinSet::new();
    loop {
        let partition = match member.next().await {
            Ok(partition) => partition,
            Err(HoldError::Lost(_)) => break,
            Err(error) => panic!("{error}"),
        };
        let (index, token) = (partition.index(), partition.token());
        let before = owners.lock().unwrap().insert(index, (number, token));
        assert!(before.is_none_or(|(_, before)| before < token), "{token} after {before:?}");
        works.spawn(async move { partition.leaving().await });
    }
    works.join_all().await;
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for 60 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn share(owners: &Owners, number: usize) -> usize {
    owners.lock().unwrap().values().filter(|(owner, _)| *owner == number).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_of_a_member_moves_only_its_share_and_a_new_one_takes_only_its_own() {
    let server = Server::with_virtual_time();
    let owners = Owners::default();
    let mut members = JoinSet::new();
    for number in 0..8 {
        members.spawn(member(fenced(&server, number), number, owners.clone()));
    }
    let all_have_their_share = || {
        let shares: Vec<usize> = (0..8).map(|number| share(&owners, number)).collect();
        shares.iter().sum::<usize>() == PARTITIONS as usize
            && shares.iter().all(|share| (60..=220).contains(share))
    };
    until("everybody has a share", all_have_their_share).await;
    // Nothing moves any more once each partition is owned by its last waiter.
    let is_calm = async || {
        let locks = server.client("looks").list(Some("group")).await.unwrap();
        let owners = owners.lock().unwrap();
        let is_told = |lock: &LockInfo| {
            let index = lock.name.as_str().rsplit('/').next().unwrap().parse().ok();
            index.is_none_or(|index: u32| owners.get(&index).map(|(_, token)| *token) == lock.holds[0].token)
        };
        locks.len() == PARTITIONS as usize + 8
            && locks.iter().all(|lock| {
                lock.waiter_count == 0 && (lock.name.as_str().contains("members") || is_told(lock))
            })
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_calm().await {
        assert!(Instant::now() < deadline, "waited for 60 s: nobody waits for a partition");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = owners.lock().unwrap().clone();
    let of_the_dead = before.values().filter(|(owner, _)| *owner == 3).count();

    server.cut_off("member 3");
    for _ in 0..7 {
        server.advance(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until("the others have the dead one's share", || share(&owners, 3) == 0).await;
    let after = owners.lock().unwrap().clone();
    let moved = before.iter().filter(|(index, owned)| after[index] != **owned).count();
    assert_eq!(moved, of_the_dead, "those of the others have their owners and tokens");

    members.spawn(member(fenced(&server, 8), 8, owners.clone()));
    let taken = || share(&owners, 8);
    until("the new one has a share", || (60..=220).contains(&taken())).await;
    let now = owners.lock().unwrap().clone();
    let moved = after.iter().filter(|(index, owned)| now[index] != **owned).count();
    assert_eq!(moved, now.values().filter(|(owner, _)| *owner == 8).count(), "only to the new one");
    members.shutdown().await;
}
