//! Test support: a lock directory for each test, and the program with a clean environment.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lockkeeper_rig::Port;
use serde_json::Value;

/// Far longer than any step takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The directory of a test, with its locks, data and outputs; removed after the test.
pub(crate) struct TestDir {
    directory: tempfile::TempDir,
    /// The lock service's URL, if it is not a lock directory in this test directory.
    locks: Option<String>,
    /// Reserved ports of this test's nodes, so that a restarted node finds its own port free.
    ports: Mutex<Vec<Port>>,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), locks: None, ports: Mutex::default() }
    }

    /// The same test directory with another lock service.
    pub(crate) fn over(self, url: &str) -> Self {
        Self { locks: Some(url.to_owned()), ..self }
    }

    /// A listen address for a node. The port stays reserved until the test ends, even while the node is not
    /// running.
    pub(crate) fn address(&self) -> String {
        let port = Port::free();
        let address = format!("127.0.0.1:{}", port.number());
        self.ports.lock().unwrap().push(port);
        address
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        self.locks.clone().unwrap_or_else(|| format!("file://{}", self.path("locks").display()))
    }

    /// The program, configured with this test's lock service.
    pub(crate) fn lockkeeper<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.bare(words);
        command.env("LOCKKEEPER_URL", self.url());
        command
    }

    /// The program without any lock configuration. Its home directory is in the test directory.
    pub(crate) fn bare<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LOCKKEEPER_") {
                command.env_remove(name);
            }
        }
        command
            .env_remove("XDG_STATE_HOME")
            .env_remove("TRACEPARENT")
            .env("HOME", self.path("home"))
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .args(words);
        command
    }

    /// Runs the program with arguments that contain no spaces.
    pub(crate) fn ran(&self, line: &str) -> Ended {
        self.lockkeeper(line.split_whitespace()).ended()
    }

    /// Starts `run` on the lock `name` with a command that sleeps until it is ended, and waits until the
    /// command has started.
    pub(crate) fn holder(&self, name: &str, options: &[&str]) -> Running {
        let begun = self.path(&format!("begun-{}", name.replace('/', "-")));
        let script = r#"echo "$LOCKKEEPER_TOKEN" > "$0.new" && mv "$0.new" "$0" && exec sleep 600"#;
        let words = [&["run"], options, &[name, "--", "sh", "-c", script]].concat();
        let mut command = self.lockkeeper(words);
        command.arg(&begun);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the holder runs", || begun.exists());
        let token = std::fs::read_to_string(&begun).unwrap().trim().parse().unwrap();
        Running { child: Some(child), token }
    }

    /// The output of `show --json`.
    pub(crate) fn shown(&self, name: &str) -> Value {
        let shown = self.ran(&format!("show {name} --json"));
        assert_eq!(shown.code, 0, "{shown:?}");
        serde_json::from_str(&shown.out).unwrap()
    }

    pub(crate) fn wait_for_waiters(&self, name: &str, count: u64) {
        wait_until("it is in the queue", || self.shown(name)["waiter_count"] == count);
    }
}

/// The result of a run of the program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn new(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code().expect("a code, not a signal"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Asserts that the program has succeeded without a message, but that it waits: it says so after two
    /// seconds.
    #[track_caller]
    pub(crate) fn is_silent_success(&self) {
        let waits = |line: &str| line.starts_with("lockkeeper: waiting for ");
        assert!(self.code == 0 && self.err.lines().all(waits), "{self:?}");
    }

    /// Its output, of a program that has succeeded.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).expect("JSON")
    }

    /// Asserts a failure under `--json`: one object.
    #[track_caller]
    pub(crate) fn is_json_error(&self, code: u8, words: &[&str]) {
        assert_eq!((self.code, self.out.as_str()), (i32::from(code), ""), "{self:?}");
        let said: serde_json::Value = serde_json::from_str(&self.err).expect("one object");
        assert_eq!(said["code"], code, "{self:?}");
        let text = said["error"].as_str().expect("a text");
        assert!(!text.starts_with("lockkeeper:"), "{self:?}");
        for word in words {
            assert!(text.contains(word), "no {word:?} in {self:?}");
        }
    }

    /// Asserts that the program failed with this code, printed one line on standard error that contains all
    /// these words, and printed nothing else.
    #[track_caller]
    pub(crate) fn is_one_line(&self, code: u8, words: &[&str]) {
        assert_eq!(self.code, i32::from(code), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("lockkeeper: "), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in {self:?}");
        }
    }
}

pub(crate) trait CommandExt {
    fn ended(&mut self) -> Ended;
    fn started(&mut self) -> Running;
    fn fed(&mut self, input: &[u8]) -> Ended;
}

impl CommandExt for Command {
    fn ended(&mut self) -> Ended {
        self.started().ended()
    }

    fn started(&mut self) -> Running {
        let child = self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running::of(child)
    }

    fn fed(&mut self, input: &[u8]) -> Ended {
        let mut running = self.stdin(Stdio::piped()).started();
        running.child_mut().stdin.take().unwrap().write_all(input).unwrap();
        running.ended()
    }
}

/// A running program. Killed on drop; for `run`, the guardian then ends the command.
pub(crate) struct Running {
    child: Option<Child>,
    pub(crate) token: u64,
}

impl Running {
    pub(crate) fn of(child: Child) -> Self {
        Self { child: Some(child), token: 0 }
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = self.child.as_ref().unwrap().id();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    pub(crate) fn child_mut(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    /// Waits for the program to end.
    pub(crate) fn ended(self) -> Ended {
        self.ended_within(PATIENCE)
    }

    pub(crate) fn ended_within(mut self, patience: Duration) -> Ended {
        // On another thread: both outputs must be read concurrently, and a program that hangs must fail the
        // test instead of blocking it.
        let child = self.child.take().unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(child.wait_with_output()));
        match told.recv_timeout(patience) {
            Ok(output) => Ended::new(output.unwrap()),
            Err(_) => {
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
                panic!("it did not end within {patience:?}");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Polls until the condition is true.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The parent of a process.
pub(crate) fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

/// Waits for a file with a number and a newline.
pub(crate) fn number_in(path: &Path) -> i32 {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    wait_until("the number is written", || text().ends_with('\n'));
    text().trim().parse().unwrap()
}

pub(crate) fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}
