//! The guardian under a real shell on a pseudo-terminal: keys, job control, input.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};

use crate::scenario::{Scenario, state, wait_for, wait_until};

crate::trials![
    ctrl_c_reaches_the_command_exactly_once,
    ctrl_z_and_fg_stop_and_continue_wrapper_and_command,
    interactive_shell_works_as_the_command,
    command_that_stops_in_its_own_group_stops_the_wrapper,
    closed_terminal_ends_the_job,
    closed_terminal_reaches_the_command_of_a_session_leader_once,
    ctrl_c_reaches_a_command_in_a_session_of_its_own_once,
    keys_reach_a_command_in_a_group_of_its_own,
    ctrl_c_ends_the_daemons_that_a_wrapper_waits_for,
];

/// A program on a pseudo-terminal, which it leads as its session: an interactive bash, or the wrapper.
struct Terminal {
    keys: Option<File>,
    screen: Arc<Mutex<String>>,
    shell: Child,
    reader: Option<JoinHandle<()>>,
    is_closed: Arc<AtomicBool>,
}

impl Terminal {
    fn open() -> Self {
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile", "--noediting", "-i"]).env("PS1", "").env("HISTFILE", "");
        let mut terminal = Self::of(shell);
        terminal.keys("stty -echo; echo rea''dy\n");
        terminal.wait_for("ready");
        terminal
    }

    fn of(mut shell: Command) -> Self {
        let pty = openpty(None, None).unwrap();
        // If another process inherited this end, closing it here would not hang up the terminal.
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        shell.stdin(pty.slave.try_clone().unwrap()).stdout(pty.slave.try_clone().unwrap()).stderr(pty.slave);
        let become_session = || {
            setsid()?;
            // SAFETY: a system call on standard input, which is the terminal.
            match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: makes system calls only.
        let shell = unsafe { shell.pre_exec(become_session) }.spawn().unwrap();
        let keys = File::from(pty.master);
        let screen = Arc::new(Mutex::new(String::new()));
        let mut output = keys.try_clone().unwrap();
        let shown = Arc::clone(&screen);
        let is_closed = Arc::new(AtomicBool::new(false));
        let closing = Arc::clone(&is_closed);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !closing.load(Ordering::Relaxed) {
                // Polls, since a blocking read would keep the terminal open after `close`.
                let mut source = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
                if poll(&mut source, PollTimeout::from(20u8)).unwrap() == 0 {
                    continue;
                }
                let Ok(length @ 1..) = output.read(&mut bytes) else { return };
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { keys: Some(keys), screen, shell, reader: Some(reader), is_closed }
    }

    fn keys(&mut self, keys: &str) {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Closes the terminal: the kernel sends SIGHUP to its session.
    fn close(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.keys = None;
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    fn wait_for(&self, text: &str) {
        let looks = AssertUnwindSafe(|| wait_until(text, || self.screen().contains(text)));
        let found = std::panic::catch_unwind(looks);
        assert!(found.is_ok(), "`{text}` did not appear on the screen:\n{}", self.screen());
    }

    /// Types the wrapper's command line.
    fn type_run(&mut self, scenario: &Scenario, command: &[&str]) {
        let words = scenario.words(command);
        let quoted: Vec<_> = words.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        self.keys(&format!("{}\n", quoted.join(" ")));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.close();
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn own() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

/// The process ids of wrapper and command.
fn wrapper_and_command(scenario: &Scenario) -> (Pid, Pid) {
    let guardian = scenario.guardian_pid();
    let parent = |pid: Pid| {
        let parent = crate::scenario::stat_field(pid.as_raw(), 1).unwrap();
        Pid::from_raw(parent.parse().unwrap())
    };
    let command: i32 = scenario.wait_for_report("started")["started ".len()..].parse().unwrap();
    (parent(guardian), Pid::from_raw(command))
}

fn ctrl_c_reaches_the_command_exactly_once() {
    let scenario = Scenario::new();
    let mut terminal = Terminal::open();
    terminal.type_run(&scenario, &[&own(), "role:tell-signals"]);
    terminal.wait_for("listening");
    let (wrapper, _) = wrapper_and_command(&scenario);
    for round in 1..=5 {
        terminal.keys("\x03");
        wait_until("Ctrl-C arrived", || terminal.screen().matches("had SIGINT").count() >= round);
        // Signals are relayed in the order of arrival: if the wrapper also relayed the SIGINT, that would
        // reach the command before this SIGUSR1.
        kill(wrapper, Signal::SIGUSR1).unwrap();
        wait_until("SIGUSR1 was passed on", || terminal.screen().matches("had SIGUSR1").count() == round);
    }
    kill(wrapper, Signal::SIGTERM).unwrap();
    terminal.keys("echo code=$?\n");
    terminal.wait_for("code=9");
    assert_eq!(terminal.screen().matches("had SIGINT").count(), 5, "{}", terminal.screen());
}

fn ctrl_z_and_fg_stop_and_continue_wrapper_and_command() {
    let scenario = Scenario::new();
    let mut terminal = Terminal::open();
    terminal.type_run(
        &scenario,
        &["sh", "-c", "echo asks; read line; echo got-$line; read line; echo got-$line; exit 7"],
    );
    terminal.wait_for("asks");
    terminal.keys("one\n");
    terminal.wait_for("got-one");
    let (wrapper, command) = wrapper_and_command(&scenario);
    terminal.keys("\x1a");
    for pid in [wrapper, command] {
        wait_until("Ctrl-Z stops it", || state(pid).as_deref() == Some("T"));
    }
    terminal.wait_for("Stopped");
    terminal.keys("echo shell-$((40+2))\n");
    terminal.wait_for("shell-42");
    terminal.keys("fg\n");
    for pid in [wrapper, command] {
        wait_until("fg continues it", || state(pid).is_some_and(|state| state != "T"));
    }
    terminal.keys("two\n");
    terminal.wait_for("got-two");
    terminal.keys("echo code=$?\n");
    terminal.wait_for("code=7");
}

fn interactive_shell_works_as_the_command() {
    let scenario = Scenario::new();
    let mut terminal = Terminal::open();
    terminal.type_run(&scenario, &["bash", "--norc", "--noprofile", "--noediting", "-i"]);
    let (wrapper, inner) = wrapper_and_command(&scenario);
    terminal.keys("echo inner-$((40+2)) $$-in\n");
    terminal.wait_for(&format!("inner-42 {inner}-in"));
    // Tests job control in the inner shell.
    terminal.keys("sleep 600\n");
    wait_until("the inner job runs in the foreground", || {
        // The job is identified by its program name: before exec it is a copy of the shell, which ignores
        // Ctrl-Z.
        let foreground = crate::scenario::stat_field(inner.as_raw(), 5).unwrap();
        std::fs::read_to_string(format!("/proc/{foreground}/comm")).is_ok_and(|name| name == "sleep\n")
    });
    terminal.keys("\x1a");
    terminal.wait_for("Stopped");
    // bash refuses to exit while it has a stopped job, and its `wait` does not wait for such a job; hence the
    // loop.
    terminal.keys("kill %1; until [ -z \"$(jobs -s)\" ]; do :; done; echo ended-$((1+1))\n");
    terminal.wait_for("ended-2");
    // The inner shell suspends itself: the outer one takes over, and later continues it.
    let stops = terminal.screen().matches("Stopped").count();
    terminal.keys("suspend\n");
    wait_until("the outer shell sees its job stopped", || {
        terminal.screen().matches("Stopped").count() > stops && state(wrapper).as_deref() == Some("T")
    });
    terminal.keys("echo outer-$((20+1)) $$-out\n");
    terminal.wait_for(&format!("outer-21 {}-out", terminal.shell.id()));
    terminal.keys("fg\n");
    wait_until("the inner shell runs", || state(inner).is_some_and(|state| state != "T"));
    terminal.keys("echo back-$((2+1)) $$-back\n");
    terminal.wait_for(&format!("back-3 {inner}-back"));
    terminal.keys("exit 5\n");
    wait_for("the wrapper ends", || scenario.reported("gone"));
    terminal.keys("echo code=$?\n");
    terminal.wait_for("code=5");
}

fn command_that_stops_in_its_own_group_stops_the_wrapper() {
    let scenario = Scenario::new();
    let mut terminal = Terminal::open();
    terminal.type_run(&scenario, &[&own(), "role:stop-in-own-group"]);
    let (wrapper, command) = wrapper_and_command(&scenario);
    terminal.wait_for("Stopped");
    for pid in [wrapper, command] {
        assert_eq!(state(pid).as_deref(), Some("T"));
    }
    terminal.keys("fg\n");
    terminal.wait_for("continued");
    terminal.keys("echo code=$?\n");
    terminal.wait_for("code=4");

    // If another process continues the command, the wrapper is continued too.
    let scenario = Scenario::new();
    terminal.type_run(&scenario, &[&own(), "role:stop-in-own-group"]);
    let (wrapper, command) = wrapper_and_command(&scenario);
    wait_until("the wrapper stops", || state(wrapper).as_deref() == Some("T"));
    kill(command, Signal::SIGCONT).unwrap();
    scenario.wait_for_report("gone");
}

fn closed_terminal_ends_the_job() {
    let scenario = Scenario::new();
    let mut terminal = Terminal::open();
    terminal.type_run(&scenario, &["sh", "-c", "while :; do sleep 600; done"]);
    scenario.wait_for_report("started");
    terminal.close();
    scenario.wait_for_report("gone");
    assert_eq!(scenario.reported("exited"), Some("exited Signal(1)".into()));
    let _next_holder = scenario.wait_for_lock();
    assert_eq!(scenario.survivors(), Vec::<i32>::new());
}

/// As under `ssh -t host lockkeeper run …`: the kernel sends SIGHUP to the wrapper alone.
fn closed_terminal_reaches_the_command_of_a_session_leader_once() {
    let scenario = Scenario::new();
    let script = "trap 'echo hung up >> heard' HUP; echo begun; while :; do sleep 0.05; done";
    let mut terminal = Terminal::of(scenario.command(&["sh", "-c", script]));
    terminal.wait_for("begun");
    let (wrapper, _) = wrapper_and_command(&scenario);
    terminal.close();
    wait_until("the command hears of it", || !scenario.read("heard").is_empty());
    // Relayed after whatever else is.
    kill(wrapper, Signal::SIGTERM).unwrap();
    scenario.wait_for_report("gone");
    assert_eq!(scenario.reported("exited"), Some("exited Signal(15)".into()));
    assert_eq!(scenario.read("heard"), "hung up\n");
}

fn ctrl_c_reaches_a_command_in_a_session_of_its_own_once() {
    let scenario = Scenario::new();
    let mut terminal = Terminal::open();
    terminal.type_run(&scenario, &["setsid", "-w", &own(), "role:tell-signals"]);
    terminal.wait_for("listening");
    let (wrapper, _) = wrapper_and_command(&scenario);
    terminal.keys("\x03");
    terminal.wait_for("had SIGINT");
    kill(wrapper, Signal::SIGTERM).unwrap();
    terminal.keys("echo code=$?\n");
    terminal.wait_for("code=9");
    assert_eq!(terminal.screen().matches("had SIGINT").count(), 1, "{}", terminal.screen());
}

fn keys_reach_a_command_in_a_group_of_its_own() {
    let scenario = Scenario::new();
    let mut terminal = Terminal::open();
    terminal.type_run(&scenario, &["timeout", "1h", "sh", "-c", "echo be''gun; while :; do sleep 600; done"]);
    terminal.wait_for("begun");
    let (wrapper, timeout) = wrapper_and_command(&scenario);
    let shell = std::fs::read_to_string(format!("/proc/{timeout}/task/{timeout}/children")).unwrap();
    let all = [wrapper, timeout, Pid::from_raw(shell.trim().parse().unwrap())];
    terminal.keys("\x1a");
    terminal.wait_for("Stopped");
    for pid in all {
        wait_until("Ctrl-Z stops it", || state(pid).as_deref() == Some("T"));
    }
    terminal.keys("fg\n");
    for pid in all {
        wait_until("fg continues it", || state(pid).is_some_and(|state| state != "T"));
    }
    terminal.keys("\x03");
    scenario.wait_for_report("gone");
    terminal.keys("echo code=$?\n");
    terminal.wait_for("code=130");
}

fn ctrl_c_ends_the_daemons_that_a_wrapper_waits_for() {
    let mut scenario = Scenario::new();
    scenario.options.grace_ms = 50;
    let mut terminal = Terminal::open();
    terminal.type_run(
        &scenario,
        &["sh", "-c", "(setsid sh -c \"trap : TERM INT; while :; do sleep 600; done\" &); exit 3"],
    );
    scenario.wait_for_report("left-behind");
    terminal.keys("\x03");
    scenario.wait_for_report("gone");
    terminal.keys("echo code=$?\n");
    terminal.wait_for("code=3");
    assert_eq!(scenario.survivors(), Vec::<i32>::new());
}
