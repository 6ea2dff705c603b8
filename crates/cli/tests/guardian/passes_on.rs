//! Wrapper and guardian are transparent to the command.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};

use crate::scenario::{Scenario, wait_until};
use crate::wrapper::{NOT_EXECUTABLE, NOT_FOUND};

crate::trials![
    exit_codes_and_signals_are_passed_through,
    missing_and_non_executable_programs_are_distinguished,
    command_inherits_no_descriptor_of_wrapper_or_guardian,
    command_keeps_group_session_and_directory,
    command_has_the_signal_state_of_the_wrappers_start,
    standard_input_and_output_are_the_wrappers_own,
    guardian_holds_no_pipe_open,
    signals_sent_to_the_wrapper_reach_the_command_once,
    ignored_signal_is_not_relayed,
    nohup_remains_effective,
    guardian_argument_typed_by_hand_is_refused,
    variables_that_systemd_addresses_to_the_wrapper_name_the_command,
];

fn exit_codes_and_signals_are_passed_through() {
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
        // A real-time signal, which has no name.
        ("kill -40 $$", 128 + 40),
    ] {
        let mut scenario = Scenario::new();
        scenario.run(&["sh", "-c", script]);
        assert_eq!(scenario.wait().code(), Some(code), "{script}");
    }
}

fn missing_and_non_executable_programs_are_distinguished() {
    let mut scenario = Scenario::new();
    let plain = scenario.path("plain");
    fs::write(&plain, "text").unwrap();
    let orphan_script = scenario.path("script");
    fs::write(&orphan_script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&orphan_script, Permissions::from_mode(0o755)).unwrap();
    for (program, code, words) in [
        ("no-such-program-anywhere", NOT_FOUND, "not found"),
        ("./no/such/file", NOT_FOUND, "not found"),
        ("./plain/below", NOT_FOUND, "not found"),
        ("./script", NOT_FOUND, "not found"),
        ("./plain", NOT_EXECUTABLE, "not executable"),
        (".", NOT_EXECUTABLE, "not executable"),
    ] {
        scenario.start(&[program]);
        assert_eq!(scenario.wait().code(), Some(code.into()), "{program}");
        let error = scenario.reported("error").unwrap();
        assert!(error.contains(words) && error.contains(program), "{error}");
        assert_eq!(scenario.survivors(), Vec::<i32>::new());
    }
}

/// The output of `command`, run first without and then with the wrapper. `prepare` is called in the process
/// that becomes the command or the wrapper.
fn without_and_with(command: &[&str], prepare: fn()) -> (String, String) {
    let scenario = Scenario::new();
    let mut plain = Command::new(command[0]);
    plain.args(&command[1..]).current_dir(scenario.folder.path()).stdin(Stdio::null());
    let mut wrapped = scenario.command(command);
    [&mut plain, &mut wrapped]
        .map(|command| {
            command.stdout(Stdio::piped());
            // SAFETY: the `prepare` functions make system calls only.
            unsafe {
                command.pre_exec(move || {
                    prepare();
                    Ok(())
                })
            };
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        })
        .into()
}

fn command_inherits_no_descriptor_of_wrapper_or_guardian() {
    let (without, with) = without_and_with(&["sh", "-c", "ls /proc/self/fd"], || {});
    assert_eq!(with, without);
}

fn command_keeps_group_session_and_directory() {
    let show = "cut -d' ' -f5,6 /proc/self/stat; umask; test -z \"$REMOVED\" && test -n \"$GUARDIAN_TEST_FAMILY\" && echo set";
    let scenario = Scenario::new();
    let mut wrapper = scenario.command(&["sh", "-c", show]);
    wrapper.env("REMOVED", "x").stdout(Stdio::piped()).process_group(0);
    let wrapper = wrapper.spawn().unwrap();
    let group = wrapper.id();
    let session = nix::unistd::getsid(None).unwrap();
    let output = String::from_utf8(wrapper.wait_with_output().unwrap().stdout).unwrap();
    let mut lines = output.lines();
    assert_eq!(lines.next().unwrap(), format!("{group} {session}"));
    assert_eq!(lines.nth(1), Some("set"));
}

fn ignore(which: Signal) {
    // SAFETY: ignoring installs no code.
    unsafe { signal(which, SigHandler::SigIgn) }.unwrap();
}

fn command_has_the_signal_state_of_the_wrappers_start() {
    let preparations: [fn(); 6] = [
        || {},
        || ignore(Signal::SIGHUP),
        || ignore(Signal::SIGPIPE),
        || ignore(Signal::SIGCHLD),
        || {
            ignore(Signal::SIGINT);
            ignore(Signal::SIGQUIT);
            ignore(Signal::SIGTERM);
        },
        || {
            let mut blocked = SigSet::empty();
            blocked.add(Signal::SIGUSR1);
            blocked.add(Signal::SIGCHLD);
            blocked.thread_block().unwrap();
        },
    ];
    for (index, prepare) in preparations.into_iter().enumerate() {
        let show = ["grep", "-E", "^Sig(Blk|Ign|Cgt|Pnd)|^ShdPnd", "/proc/self/status"];
        let (without, with) = without_and_with(&show, prepare);
        assert!(without.contains("SigIgn"), "{without}");
        assert_eq!(with, without, "case {index}");
    }
}

fn standard_input_and_output_are_the_wrappers_own() {
    let scenario = Scenario::new();
    let mut wrapper = scenario.command(&["sh", "-c", "cat; echo problem >&2"]);
    let mut wrapper =
        wrapper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input = "line\n".repeat(100_000);
    let mut stdin = wrapper.stdin.take().unwrap();
    let written = input.clone();
    let writer = std::thread::spawn(move || stdin.write_all(written.as_bytes()));
    let output = wrapper.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.stdout == input.as_bytes());
    assert_eq!(output.stderr, b"problem\n");
}

fn guardian_holds_no_pipe_open() {
    let mut scenario = Scenario::new();
    // The daemon that remains has closed its output, so only wrapper and guardian could keep the output open.
    scenario.run(&[
        "sh",
        "-c",
        "exec <&- ; (setsid sh -c 'until [ -e enough ]; do sleep 0.05; done' >&- 2>&- &)",
    ]);
    scenario.wait_for_report("left-behind");
    let line = scenario.wait_for_report("left-behind");
    let (_, pids) = line.split_once('[').unwrap();
    let daemon: i32 = pids.trim_end_matches(']').split(", ").next().unwrap().parse().unwrap();
    let guardian = crate::scenario::stat_field(daemon, 1).unwrap();
    let held = fs::read_dir(format!("/proc/{guardian}/fd")).unwrap().flatten();
    let held: Vec<_> = held.map(|entry| fs::read_link(entry.path()).unwrap()).collect();
    assert!(held.contains(&scenario.options.lock.clone().into()), "the lock is held: {held:?}");
    assert!(!held.contains(&scenario.path("out")), "the output is not: {held:?}");
    fs::write(scenario.path("enough"), "").unwrap();
    assert_eq!(scenario.wait().code(), Some(0));
}

fn signals_sent_to_the_wrapper_reach_the_command_once() {
    let mut scenario = Scenario::new();
    let own = std::env::current_exe().unwrap();
    scenario.run(&[own.to_str().unwrap(), "role:tell-signals"]);
    wait_until("the command listens", || scenario.read("out").contains("listening"));
    let sent =
        [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];
    for signal in sent {
        scenario.signal_wrapper(signal);
        wait_until(signal.as_str(), || scenario.read("out").contains(signal.as_str()));
    }
    scenario.signal_wrapper(Signal::SIGTERM);
    assert_eq!(scenario.wait().code(), Some(9));
    let told: Vec<_> =
        sent.iter().chain(&[Signal::SIGTERM]).map(|signal| format!("had {signal}\n")).collect();
    assert_eq!(scenario.read("out"), format!("listening\n{}", told.concat()));
}

fn ignored_signal_is_not_relayed() {
    let scenario = Scenario::new();
    let own = std::env::current_exe().unwrap();
    let mut wrapper = scenario.command(&[own.to_str().unwrap(), "role:tell-signals"]);
    // SAFETY: makes a system call only.
    unsafe {
        wrapper.pre_exec(|| {
            ignore(Signal::SIGHUP);
            Ok(())
        })
    };
    let mut wrapper = wrapper.spawn().unwrap();
    wait_until("the command listens", || scenario.read("out").contains("listening"));
    for signal in [Signal::SIGHUP, Signal::SIGTERM] {
        kill(nix::unistd::Pid::from_raw(wrapper.id().cast_signed()), signal).unwrap();
    }
    assert_eq!(wrapper.wait().unwrap().code(), Some(9));
    assert_eq!(scenario.read("out"), "listening\nhad SIGTERM\n");
}

fn nohup_remains_effective() {
    let scenario = Scenario::new();
    let own = std::env::current_exe().unwrap();
    let script = format!("kill -HUP $$; kill -HUP $PPID; exec {} role:tell-signals", own.display());
    let words = scenario.words(&["sh", "-c", &script]);
    let out = fs::File::create(scenario.path("out")).unwrap();
    let mut wrapper = Command::new("nohup").args(words).stdin(Stdio::null()).stdout(out).spawn().unwrap();
    wait_until("the command outlived SIGHUP", || scenario.read("out").contains("listening"));
    let wrapper_pid = nix::unistd::Pid::from_raw(wrapper.id().cast_signed());
    for signal in [Signal::SIGHUP, Signal::SIGTERM] {
        kill(wrapper_pid, signal).unwrap();
    }
    assert_eq!(wrapper.wait().unwrap().code(), Some(9));
}

fn guardian_argument_typed_by_hand_is_refused() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_lockkeeper")).args(["__guardian", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().contains("use `lockkeeper run`"));
}

fn variables_that_systemd_addresses_to_the_wrapper_name_the_command() {
    let scenario = Scenario::new();
    let show =
        "echo listen=$LISTEN_PID/$$ watchdog=$WATCHDOG_PID/$$ id=$LISTEN_PIDFDID; readlink /proc/self/fd/3";
    for (pids, expected) in [
        ("LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_PIDFDID=7", "listen=P/P watchdog=P/P id="),
        ("LISTEN_PID=1 WATCHDOG_PID=$$ LISTEN_PIDFDID=7", "listen=1/P watchdog=P/P id=7"),
        ("LISTEN_PIDFDID=7", "listen=/P watchdog=/P id=7"),
    ] {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{pids} exec \"$@\" 3</dev/null")).arg("sh");
        shell.args(scenario.words(&["sh", "-c", show])).env_remove("LISTEN_PID").env_remove("WATCHDOG_PID");
        let output = String::from_utf8(shell.output().unwrap().stdout).unwrap();
        let (line, descriptor) = output.split_once('\n').unwrap();
        let pid = line.split(['/', ' ']).nth(1).unwrap();
        assert_eq!(line.replace(pid, "P"), expected, "{pids}");
        assert_eq!(descriptor, "/dev/null\n", "a socket of systemd is passed on");
    }
}
