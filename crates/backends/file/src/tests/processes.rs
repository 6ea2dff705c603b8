//! Several processes on one directory: this test binary starts copies of itself, which are killed and
//! stopped.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use lockkeeper_backend::{Answer, Push};
use lockkeeper_core::{End, Mode};

use super::super::FileBackend;
use super::{AcquireRequest, Client, DEADLINE, backend, config, request, token, within};

const ROLE: &str = "LOCKKEEPER_TEST_ROLE";

/// Environment variable with the point at which a process kills itself: `acquire:` or `release:`, and the
/// point's name.
const DIE_AT: &str = "LOCKKEEPER_TEST_DIE_AT";
/// Set before the process releases its lock.
static RELEASING: AtomicBool = AtomicBool::new(false);

/// Kills this process as `kill -9` does, if `point` is the requested one.
pub(crate) fn die_if_asked(point: &str) {
    let Ok(asked) = std::env::var(DIE_AT) else { return };
    let phase = if RELEASING.load(Ordering::SeqCst) { "release" } else { "acquire" };
    if asked == format!("{phase}:{point}") {
        signal("KILL", std::process::id());
        loop {
            std::thread::park();
        }
    }
}

fn signal(signal: &str, pid: u32) {
    let done = Command::new("sh").arg("-c").arg(format!("kill -{signal} {pid}")).status().unwrap();
    assert!(done.success());
}

/// The main function of a child process; does nothing without a role.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = FileBackend::with_config(config(Path::new(words[1]))).unwrap();
    match words[0] {
        "hold" => runtime.block_on(hold(&backend, words[2])),
        "churn" => runtime.block_on(churn(&backend, words[2], words[3].parse().unwrap(), words[4])),
        other => panic!("no role {other}"),
    }
}

#[allow(clippy::print_stdout)]
fn say(words: &str) {
    println!("@{words}");
    std::io::stdout().flush().unwrap();
}

/// Holds a lock until a line arrives on standard input.
async fn hold(backend: &FileBackend, name: &str) {
    let mut client = Client::new(backend, "child").await;
    let (seq, asked) = client.ask(request(name));
    tokio::pin!(asked);
    let answer = loop {
        tokio::select! {
            answer = &mut asked => break answer.unwrap(),
            push = client.pushes.recv() => if let Some(Push::Queued { .. }) = push { say("queued") },
        }
    };
    let Answer::Granted(granted) = answer else { panic!("{answer:?}") };
    say(&format!("held {}", token(&granted)));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    RELEASING.store(true, Ordering::SeqCst);
    assert_eq!(client.finish(seq).await, End::Released);
    client.close().await;
    say("released");
}

/// Acquires and releases a lock many times; checks mutual exclusion, and logs the tokens, which must rise.
async fn churn(backend: &FileBackend, name: &str, rounds: usize, log: &str) {
    let mut client = Client::new(backend, "child").await;
    for _ in 0..rounds {
        let (seq, granted) = client.take(request(name)).await;
        let inside = format!("{log}.inside");
        std::fs::File::create_new(&inside).expect("nobody else is inside");
        let mut file = std::fs::File::options().append(true).create(true).open(log).unwrap();
        writeln!(file, "{}", token(&granted)).unwrap();
        std::fs::remove_file(&inside).unwrap();
        assert_eq!(client.finish(seq).await, End::Released);
    }
    client.close().await;
    say("done");
}

/// A copy of this binary in a role. Killed when it is dropped.
struct Process {
    child: Child,
    stdin: ChildStdin,
    said: Receiver<String>,
}

impl Process {
    fn start(role: &str) -> Self {
        Self::start_as(role, &std::env::current_exe().unwrap(), |_| {})
    }

    fn start_as(role: &str, binary: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(binary);
        command
            .args(["--exact", "tests::processes::role", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, said) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The test harness prints its own text in front of the first line.
                if let Some((_, words)) = line.split_once('@') {
                    let _ = send.send(words.to_owned());
                }
            }
        });
        Self { child, stdin, said }
    }

    fn hold(dir: &Path, name: &str) -> Self {
        Self::start(&format!("hold {} {name}", dir.display()))
    }

    fn says(&self, words: &str) -> String {
        let said = self.said.recv_timeout(DEADLINE).expect("it says something in time");
        assert!(said.starts_with(words), "{said}, not {words}");
        said
    }

    fn held(&self) -> u64 {
        self.says("held").split(' ').next_back().unwrap().parse().unwrap()
    }

    fn let_go(&mut self) {
        writeln!(self.stdin).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dir_of(dir: &tempfile::TempDir) -> std::path::PathBuf {
    dir.path().join("locks-dir")
}

async fn is_busy(client: &mut Client, name: &str) -> bool {
    match client.acquire(AcquireRequest { wait: false, ..request(name) }).await {
        (_, Answer::Busy(_)) => true,
        (seq, Answer::Granted(_)) => {
            client.finish(seq).await;
            false
        }
        (_, other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_killed_holder_frees_the_lock_at_once() {
    let (dir, backend) = backend();
    for _ in 0..10 {
        let mut holder = Process::hold(&dir_of(&dir), "x");
        let first = holder.held();
        let waiter = Process::hold(&dir_of(&dir), "x");
        waiter.says("queued");
        let mut client = Client::new(&backend, "c").await;
        assert!(is_busy(&mut client, "x").await);
        holder.kill();
        assert!(waiter.held() > first);
        drop(waiter);
        let (seq, _) = client.take(request("x")).await;
        client.finish(seq).await;
    }
}

#[tokio::test]
async fn a_waiter_killed_in_the_middle_of_the_queue_is_skipped() {
    let (dir, backend) = backend();
    let mut client = Client::new(&backend, "c").await;
    let (held, granted) = client.take(request("x")).await;
    let mut queue = Vec::new();
    for _ in 0..4 {
        let waiter = Process::hold(&dir_of(&dir), "x");
        waiter.says("queued");
        queue.push(waiter);
    }
    queue[1].kill();
    queue[2].kill();
    client.finish(held).await;
    let first = queue[0].held();
    assert!(first > token(&granted));
    queue[0].let_go();
    assert!(queue[3].held() > first);
}

fn doomed(dir: &Path, die_at: &str) -> Process {
    let role = format!("hold {} x", dir.display());
    Process::start_as(&role, &std::env::current_exe().unwrap(), |command| {
        command.env(DIE_AT, die_at);
    })
}

#[test]
fn a_process_killed_between_steps_of_a_release_blocks_no_other() {
    let (dir, _backend) = backend();
    for point in ["flock given back", "token drawn", "body written", "before the wake-up"] {
        let mut releaser = doomed(&dir_of(&dir), &format!("release:{point}"));
        let first = releaser.held();
        let mut next = Process::hold(&dir_of(&dir), "x");
        next.says("queued");
        let last = Process::hold(&dir_of(&dir), "x");
        last.says("queued");
        releaser.let_go();
        assert!(!releaser.child.wait().unwrap().success(), "{point}: it did not die");
        let second = next.held();
        assert!(second > first, "{point}");
        next.let_go();
        assert!(last.held() > second, "{point}");
    }
}

#[test]
fn a_process_killed_between_steps_of_an_acquire_blocks_no_other() {
    let (dir, _backend) = backend();
    let mut before = 0;
    for point in ["token drawn", "body written"] {
        for _ in 0..2 {
            let mut acquirer = doomed(&dir_of(&dir), &format!("acquire:{point}"));
            assert!(!acquirer.child.wait().unwrap().success(), "{point}: it did not die");
        }
        let mut next = Process::hold(&dir_of(&dir), "x");
        let token = next.held();
        assert!(token > before, "{point}");
        before = token;
        next.let_go();
        next.says("released");
    }
}

#[tokio::test]
async fn a_stopped_holder_keeps_its_lock() {
    let (dir, backend) = backend();
    let mut holder = Process::hold(&dir_of(&dir), "x");
    let first = holder.held();
    signal("STOP", holder.child.id());
    let mut client = Client::new(&backend, "c").await;
    for _ in 0..20 {
        assert!(is_busy(&mut client, "x").await);
    }
    let (_, asked) = client.ask(request("x"));
    let asked = tokio::spawn(asked);
    client.queued().await;
    assert!(!asked.is_finished());
    signal("CONT", holder.child.id());
    holder.let_go();
    holder.says("released");
    let Answer::Granted(granted) = within(asked).await.unwrap().unwrap() else { panic!("not granted") };
    assert!(token(&granted) > first);
}

#[tokio::test]
async fn a_child_that_inherited_the_descriptors_keeps_the_lock() {
    let (_dir, backend) = backend();
    let mut a = Client::new(&backend, "a").await;
    let (held, _) = a.take(request("x")).await;
    let descriptors = a.conn.descriptors(held);
    assert_eq!(descriptors.len(), 2, "the session's and the hold's");
    // Standard input and output of the child are copies of the two descriptors.
    use std::os::fd::BorrowedFd;
    let copy = |fd: i32| {
        // SAFETY: the session `a` keeps both descriptors open during this call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fd.try_clone_to_owned().unwrap()
    };
    let mut child = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::from(copy(descriptors[0])))
        .stdout(Stdio::from(copy(descriptors[1])))
        .spawn()
        .unwrap();
    drop(a);
    let mut b = Client::new(&backend, "b").await;
    for _ in 0..20 {
        assert!(is_busy(&mut b, "x").await);
    }
    let (_, asked) = b.ask(request("x"));
    let asked = tokio::spawn(asked);
    b.queued().await;
    assert!(!asked.is_finished());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(within(asked).await.unwrap().unwrap(), Answer::Granted(_)));
}

#[test]
fn sixteen_processes_never_overlap_and_their_tokens_rise() {
    let (dir, _backend) = backend();
    let log = dir.path().join("log");
    let role = format!("churn {} x 25 {}", dir_of(&dir).display(), log.display());
    let processes: Vec<Process> = (0..16).map(|_| Process::start(&role)).collect();
    for process in &processes {
        process.says("done");
    }
    let tokens: Vec<u64> =
        std::fs::read_to_string(&log).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 16 * 25);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "in the order of holding");
}

#[tokio::test]
async fn flock_1_is_excluded_and_excludes() {
    let (dir, backend) = backend();
    let file = dir_of(&dir).join("locks/job.hold");
    // As `docs/backends/file.md` says: a user who shares a lock with flock(1) creates the hold file first.
    std::fs::write(&file, "").unwrap();
    let mut client = Client::new(&backend, "c").await;
    let mut foreign = Command::new("flock")
        .arg(&file)
        .args(["sh", "-c", "echo in; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(foreign.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(is_busy(&mut client, "job").await);
    drop(foreign.stdin.take());
    foreign.wait().unwrap();
    let (held, _) = client.take(request("job")).await;
    let tried = Command::new("flock").arg("-n").arg(&file).arg("true").status().unwrap();
    assert_eq!(tried.code(), Some(1), "we have it");
    client.finish(held).await;
    let tried = Command::new("flock").arg("-n").arg(&file).arg("true").status().unwrap();
    assert!(tried.success());
}

#[tokio::test]
async fn several_users_share_a_directory_that_is_open_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared");
    std::fs::create_dir(&path).unwrap();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(dir.path(), 0o755);
    open(&path, 0o1777);
    let binary = dir.path().join("binary");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    open(&binary, 0o755);
    let backend = FileBackend::with_config(config(&path)).unwrap();
    let mut client = Client::new(&backend, "us").await;
    let (held, granted) = client.take(request("x")).await;
    let mut other = Process::start_as(&format!("hold {} x", path.display()), &binary, |command| {
        command.current_dir("/");
        // Only root can start the child as another user. Otherwise the child runs as the same user as this
        // process.
        if nix::unistd::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
    });
    other.says("queued");
    client.finish(held).await;
    assert!(other.held() > token(&granted));
    let (seq, asked) = client.ask(request("x"));
    let asked = tokio::spawn(asked);
    client.queued().await;
    other.let_go();
    other.says("released");
    assert!(matches!(within(asked).await.unwrap().unwrap(), Answer::Granted(_)));
    client.finish(seq).await;
    let permit = AcquireRequest { mode: Mode::Permit { of: Some(2) }, ..request("p") };
    client.take(permit).await;
}
