//! Full, failing and slow disks: the node stops instead of acknowledging unsynced data, and nothing that it
//! acknowledged is lost (P10).

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Fenced, Guard, LockName, Locks, Token};
use lockkeeper_cli::exit;
use lockkeeper_rig::Number;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

use crate::faults::server::{LONG, Server, answer, until, within};

/// A small tmpfs; unmounted on drop.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mounted(path: &Path, size: &str) -> Self {
        std::fs::create_dir(path).unwrap();
        let options = format!("size={size},mode=0700");
        mount(Some("lockkeeper"), path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .expect("this test needs root, to mount a small tmpfs");
        Self(path.to_owned())
    }

    fn enlarged(&self, size: &str) {
        let options = format!("size={size}");
        mount(None::<&str>, &self.0, None::<&str>, MsFlags::MS_REMOUNT, Some(options.as_str())).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Acquires one lock after another, each under another name, until an acquire fails. Keeps all guards of
/// acknowledged holds.
struct Holding {
    held: tokio::sync::mpsc::UnboundedReceiver<Guard<Fenced>>,
    task: tokio::task::JoinHandle<()>,
    acknowledged: Vec<Guard<Fenced>>,
}

impl Holding {
    fn start(locks: Locks<Fenced>) -> Self {
        let (tell, held) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            for number in 0.. {
                let lock = locks.mutex(format!("held/{number:06}")).ttl(LONG).meta("fill", "x".repeat(900));
                let Ok(guard) = lock.acquire().await else { return };
                if tell.send(guard).is_err() {
                    return;
                }
            }
        });
        Self { held, task, acknowledged: Vec::new() }
    }

    fn take(&mut self) -> usize {
        while let Ok(guard) = self.held.try_recv() {
            self.acknowledged.push(guard);
        }
        self.acknowledged.len()
    }

    /// Stops acquiring, and asserts that all acknowledged holds are in the service's table; returns their
    /// number.
    async fn all_there(mut self, locks: &Locks<Fenced>) -> usize {
        self.task.abort();
        let _ = self.task.await;
        while let Ok(guard) = self.held.try_recv() {
            self.acknowledged.push(guard);
        }
        let prefix: LockName = "held".parse().unwrap();
        let listed =
            answer("the service answers", async || locks.list(Some(prefix.as_str())).await.ok()).await;
        let table: BTreeMap<Token, String> = listed
            .iter()
            .flat_map(|lock| {
                lock.holds.iter().filter_map(|holder| Some((holder.token?, lock.name.to_string())))
            })
            .collect();
        for (number, guard) in self.acknowledged.iter().enumerate() {
            assert_eq!(
                table.get(&guard.token()),
                Some(&format!("held/{number:06}")),
                "an acknowledged hold is lost"
            );
            assert_eq!(guard.loss(), None);
        }
        within("a hold is confirmed", self.acknowledged[0].verify()).await.unwrap();
        self.acknowledged.len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_stops_the_node_and_loses_nothing() {
    let mut server = Server::new("--segment-bytes 524288");
    let disk = SmallDisk::mounted(&server.beside("disk"), "2300k");
    server.data = server.beside("disk").join("data");
    server.start();
    let locks = server.client("one").await;
    let holding = Holding::start(locks.clone());
    let status = server.ended();
    assert_eq!(status.code(), Some(i32::from(exit::IO)), "{status}: {}", server.log());
    let is_said = |words: &[&str]| {
        let log = server.log();
        let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default().to_owned();
        assert!(words.iter().all(|word| line.contains(word)), "no {words:?} in {line:?}; log: {log}");
    };
    is_said(&[
        "the disk under",
        "disk/data",
        "is full",
        "nothing that was acknowledged is lost",
        "start again",
    ]);

    // While the disk is full, a start fails with the same reason.
    let full = std::fs::File::create(server.beside("disk").join("rest")).unwrap();
    let mut rest = full;
    while std::io::Write::write_all(&mut rest, &[7; 512]).is_ok() {}
    let status = server.refused();
    assert_eq!(status.code(), Some(i32::from(exit::IO)), "{status}: {}", server.log());
    let log = server.log();
    let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default();
    assert!(line.contains("disk/data") && line.contains("the disk is full"), "{line}");

    disk.enlarged("16m");
    server.start();
    let held = holding.all_there(&locks).await;
    assert!(held > 100, "it was filled by acknowledged holds: {held}");
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_sync_aborts_the_process() {
    let mut server = Server::new("--segment-bytes 8388608");
    let shim = server.shim();
    server.start();
    // The next log segment is preallocated concurrently; waits for that, since its syncs must not be counted
    // as the log's.
    until("the next part of the log is made", || {
        let names = std::fs::read_dir(&server.data).unwrap();
        names
            .filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with("spare-"))
            .count()
            == 1
    });
    let locks = server.client("one").await;
    let mut holding = Holding::start(locks.clone());
    until("it is under load", || holding.take() > 50);
    let before = shim.get(Number::Syncs);
    assert!(before > 50, "the shim stands before the log's syncs: {before}");
    shim.set(Number::Error, i64::from(Errno::EIO as i32));
    shim.set(Number::FailIn, 20);
    let status = server.ended();
    assert_eq!(status.signal(), Some(Signal::SIGABRT as i32), "{status}: {}", server.log());
    assert_eq!(shim.get(Number::Failed), 1, "a failed sync is never tried again");
    assert!(shim.get(Number::Syncs) >= before + 20);
    let log = server.log();
    let line = log.lines().last().unwrap_or_default();
    for words in ["writing the log in", "failed", "this process ends at once", "dmesg"] {
        assert!(line.contains(words), "no {words:?} in {log}");
    }

    server.environment(&[]);
    server.start();
    let held = holding.all_there(&locks).await;
    assert!(held > 50, "{held}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_disk_expires_no_session() {
    const DELAY_MS: i64 = 300;
    // In memory, a sync takes no longer than that, however busy the disk of this machine is.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut server = Server::new("--segment-bytes 1048576");
    server.data = memory.path().join("data");
    let shim = server.shim();
    server.start();
    let (locks, worker) = (server.client("one").await, server.client("worker").await);
    let mut held = Vec::new();
    for seconds in [2, 3] {
        let lock = locks.mutex(format!("kept/{seconds}")).ttl(Duration::from_secs(seconds));
        held.push(lock.acquire().await.unwrap());
    }
    let turn = worker.mutex("turn").ttl(LONG);
    drop(within("it is granted", turn.acquire()).await.unwrap());
    let sessions = async || {
        let listed = answer("the service answers", async || locks.sessions().await.ok()).await;
        listed.iter().map(|session| session.id).collect::<Vec<_>>()
    };
    let before = (sessions().await, shim.get(Number::Syncs));
    assert_eq!(before.0.len(), 3);
    shim.set(Number::DelayMs, DELAY_MS);
    // Each acquire and each release waits for a sync: in total longer than the longest ttl.
    for _ in 0..6 {
        let guard = within("it is granted", turn.acquire()).await.unwrap();
        within("it is given back", guard.release()).await.unwrap();
    }
    assert!(shim.get(Number::Syncs) >= before.1 + 12, "the delay bit");
    for guard in &held {
        assert_eq!(guard.loss(), None);
        within("the hold is confirmed", guard.verify()).await.unwrap();
    }
    assert_eq!(sessions().await, before.0, "none ended, none opened anew");
}
