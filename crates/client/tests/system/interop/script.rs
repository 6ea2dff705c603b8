//! Foreign lock clients (peers) run as scripts that wrap another project's library. This module speaks the
//! line protocol, commands and answers, of the scripts in `peers/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::interop::peer::{Peer, Process};

/// A process of one of the scripts.
pub(crate) struct Script(Process);

impl Script {
    /// redis-py's `Lock` on one server.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_py(port: u16) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", libraries("pypi-locks")).arg(script("redis_lock.py")).arg(port.to_string());
        Self::ready(&mut python, "python3")
    }

    /// node-redlock on these servers.
    #[cfg(feature = "redlock")]
    pub(crate) fn node_redlock(ports: &[u16]) -> Self {
        let mut node = Command::new("node");
        node.env("LOCKKEEPER_NPM", libraries("npm-locks")).arg(script("redlock.mjs"));
        Self::ready(node.args(ports.iter().map(u16::to_string)), "nodejs")
    }

    /// python_dynamodb_lock on one table.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn python_dynamodb_lock(endpoint: &str, table: &str) -> Self {
        let mut python = Command::new("python3");
        python
            .env("PYTHONPATH", libraries("pypi-locks"))
            .arg(script("dynamodb_lock.py"))
            .args([endpoint, table]);
        Self::ready(&mut python, "python3")
    }

    /// kazoo's locks on one server: its `Lock`, `ReadLock` or `WriteLock`.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn kazoo(port: u16, kind: &str) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", libraries("pypi-locks")).arg(script("kazoo_lock.py"));
        python.args([&port.to_string(), kind]);
        Self::ready(&mut python, "python3")
    }

    /// Go's `concurrency.Mutex` of etcd's own client, on one member. Compiled from Debian's packages, without
    /// a module.
    #[cfg(feature = "etcd")]
    pub(crate) fn concurrency_mutex(port: u16) -> Self {
        let folder = compiled("concurrency_mutex.go", "golang-go and golang-etcd-server-dev", |folder| {
            let mut go = Command::new("go");
            go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
            go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
            go.arg("build").arg("-o").arg(folder.join("peer"));
            go
        });
        Self::ready(Command::new(folder.join("peer")).arg(port.to_string()), "golang-go")
    }

    /// Curator's locks on one server, of the recipe `mutex` or `readwrite`.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn curator(port: u16, recipe: &str) -> Self {
        const PACKAGES: &str = "default-jdk-headless and libcurator-recipes-java";
        let folder = compiled("CuratorLock.java", PACKAGES, |folder| {
            let mut javac = Command::new("javac");
            javac.args(["-cp", "/usr/share/java/*", "-d"]).arg(folder);
            javac
        });
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
        java.arg(format!("{}:/usr/share/java/*", folder.display())).arg("CuratorLock");
        Self::ready(java.args([&port.to_string(), recipe]), PACKAGES)
    }

    fn ready(command: &mut Command, package: &str) -> Self {
        let mut process = Process::start(command, package);
        assert_eq!(process.answer(), "ready");
        Self(process)
    }

    fn acquired(answer: &str) -> Option<String> {
        match answer.split_once(' ') {
            Some(("held", value)) => Some(value.to_owned()),
            _ => {
                assert_eq!(answer, "busy");
                None
            }
        }
    }

    fn is(&mut self, command: &str, yes: &str) -> bool {
        let answer = self.0.ask(command);
        assert!(answer == yes || answer == "lost", "`{command}`: {answer}");
        answer == yes
    }
}

impl Peer for Script {
    /// Our errors name a foreign holder by its key's value; nothing else about it is stored.
    fn in_errors(holder: &str) -> String {
        format!("another client (`{holder}`)")
    }

    fn try_acquire(&mut self, name: &str, ttl: Duration) -> Option<String> {
        Self::acquired(&self.0.ask(&format!("try {name} {}", ttl.as_millis())))
    }

    fn starts_waiting(&mut self, name: &str, ttl: Duration) {
        assert_eq!(self.0.ask(&format!("acquire {name} {}", ttl.as_millis())), "waiting");
    }

    fn gets_it(&mut self) {
        let answer = self.0.answer();
        assert!(Self::acquired(&answer).is_some(), "{answer}");
    }

    /// Extends the lease by the peer's own library, which fails unless the peer holds the lock.
    fn still_holds(&mut self, name: &str, ttl: Duration) -> bool {
        self.is(&format!("extend {name} {}", ttl.as_millis()), "held")
    }

    fn release(&mut self, name: &str) -> bool {
        self.is(&format!("release {name}"), "released")
    }

    fn crash(mut self) {
        self.0.kill();
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system/interop/peers").join(name)
}

/// The folder of a compiled peer. The first test that needs it compiles it, the others wait for that one.
///
/// `compiler` returns the command that compiles a source into a folder; the source is appended. `packages`
/// are Debian's.
fn compiled(source: &str, packages: &str, compiler: impl Fn(&Path) -> Command) -> PathBuf {
    let source = script(source);
    let text = std::fs::read(&source).expect("a file of the repository");
    // Another text is compiled to another folder.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("peer-{:x}", crc32fast::hash(&text)));
    let lock = std::fs::File::create(folder.with_extension("lock")).expect("our folder is ours");
    let _turn = Flock::lock(lock, FlockArg::LockExclusive).expect("a lock of a new file");
    if folder.is_dir() {
        return folder;
    }
    // A compiler that was interrupted leaves no folder that looks complete.
    let unfinished = folder.with_extension("unfinished");
    std::fs::create_dir_all(&unfinished).expect("our folder is ours");
    let built = compiler(&unfinished).arg(&source).output();
    let built = built.unwrap_or_else(|error| panic!("{error}: is {packages} of Debian installed?"));
    assert!(
        built.status.success(),
        "is {packages} of Debian installed? {}",
        String::from_utf8_lossy(&built.stderr)
    );
    std::fs::rename(&unfinished, &folder).expect("our folder is ours");
    folder
}

/// The directory in which `cargo xtask test` installs a set of packages (xtask/src/foreign.rs).
fn libraries(set: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign").join(set);
    assert!(
        folder.join("installed.txt").is_file(),
        "{} is missing; `cargo xtask test` installs it",
        folder.display()
    );
    folder
}
