//! The table "Who may end what" of `docs/run.md`: one test for each of its cells.

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::scenario::{Scenario, stat_field, state, wait_until};

const PAGE: &str = include_str!("../../../../docs/run.md");

/// One trial per cell; the cell's text says what is to be seen.
pub(crate) fn trials() -> Vec<Trial> {
    let table = PAGE.split("| a signal to |").nth(1).expect("the table");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .take_while(|line| !line.is_empty())
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let (columns, rows) = (&rows[0], &rows[2..]);
    assert_eq!(columns[..], ["TERM, INT, QUIT, HUP", "STOP", "KILL"]);
    assert_eq!(rows.len(), 5);
    let mut trials = Vec::new();
    for row in rows {
        let to = To::named(row[0]);
        for (column, cell) in columns.iter().zip(&row[1..]) {
            let (column, cell) = (column.to_string(), cell.to_string());
            let name = format!("{column} to {}: {cell}", row[0]).replace([' ', ',', '`'], "_");
            let test = move || match column.as_str() {
                "STOP" => stopped(to, &cell),
                "KILL" => killed(to, &cell),
                _ => ending(to, &cell),
            };
            trials.push(Trial::test(name, move || {
                test();
                Ok(())
            }));
        }
    }
    trials.push(Trial::test("signal_by_a_stranger_to_several_processes_reaches_the_command_once", || {
        by_a_stranger();
        Ok(())
    }));
    trials.push(Trial::test("signals_for_programs_with_a_use_for_them_have_no_effect", || {
        without_effect();
        Ok(())
    }));
    trials
}

/// To whom a signal is sent.
#[derive(Clone, Copy, PartialEq)]
enum To {
    Wrapper,
    Guardian,
    Command,
    Group,
    All,
}

impl To {
    fn named(row: &str) -> Self {
        match row {
            "the wrapper" => Self::Wrapper,
            "the guardian" => Self::Guardian,
            "the command" => Self::Command,
            "the process group (`kill -- -GROUP`, `timeout`)" => Self::Group,
            "every process (`systemctl stop`)" => Self::All,
            other => panic!("no test of `{other}`"),
        }
    }

    fn send(self, scenario: &Scenario, signal: Signal) {
        let wrapper = scenario.wrapper_pid();
        match self {
            Self::Wrapper => kill(wrapper, signal).unwrap(),
            Self::Guardian => kill(scenario.guardian_pid(), signal).unwrap(),
            Self::Command => kill(command(scenario), signal).unwrap(),
            Self::Group => killpg(wrapper, signal).unwrap(),
            Self::All => {
                let processes = scenario.processes();
                assert_eq!(processes.len(), 3, "guardian, witness, command");
                for pid in processes {
                    let _ = kill(Pid::from_raw(pid), signal);
                }
                // The last one: its wait for evidence must not end before, however busy the machine is.
                kill(wrapper, signal).unwrap();
            }
        }
    }
}

fn command(scenario: &Scenario) -> Pid {
    Pid::from_raw(scenario.wait_for_report("started")["started ".len()..].parse().unwrap())
}

fn listening(role: &str, prepare: impl FnOnce(&mut Scenario)) -> Scenario {
    let mut scenario = Scenario::new();
    prepare(&mut scenario);
    scenario.run(&[std::env::current_exe().unwrap().to_str().unwrap(), role]);
    wait_until("the command listens", || scenario.read("out").contains("listening"));
    scenario
}

/// The command gets a signal as often as the cell says, whether it is in the wrapper's group or not, and has
/// all the time that it takes.
fn ending(to: To, cell: &str) {
    let expected = match cell {
        "the command gets it once" => 1,
        "nothing" => 0,
        other => panic!("no test of `{other}`"),
    };
    for role in ["role:tell-all", "role:tell-all-in-own-group"] {
        // Whatever ended the command would kill it at once.
        let mut scenario = listening(role, |scenario| scenario.options.grace_ms = 0);
        for (round, signal) in
            [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP].into_iter().enumerate()
        {
            to.send(&scenario, signal);
            let count = |signal: Signal| scenario.read("out").matches(&format!("had {signal}\n")).count();
            if expected == 1 {
                wait_until("the command gets the signal", || count(signal) > 0);
            }
            // Relayed after whatever else the wrapper relays.
            scenario.signal_wrapper(Signal::SIGUSR1);
            wait_until("the command gets SIGUSR1", || count(Signal::SIGUSR1) == round + 1);
            assert_eq!(count(signal), expected, "{signal} to {role}: {}", scenario.read("out"));
        }
        assert_eq!(scenario.reported("terminating"), None);
        scenario.signal_wrapper(Signal::SIGUSR2);
        assert_eq!(scenario.wait().code(), Some(9), "{role}");
    }
}

/// To wrapper, guardian and command, and to all processes of the wrapper's program, of which the command is
/// none.
fn by_a_stranger() {
    for has_command in [true, false] {
        let mut scenario = listening("role:tell-all", |_| {});
        let (wrapper, command) = (scenario.wrapper_pid(), command(&scenario));
        let mut all = if has_command {
            vec![command.as_raw(), scenario.guardian_pid().as_raw()]
        } else {
            scenario.processes().into_iter().filter(|pid| *pid != command.as_raw()).collect()
        };
        all.push(wrapper.as_raw());
        let pids: Vec<String> = all.iter().map(i32::to_string).collect();
        let kill = format!("kill -TERM {}", pids.join(" "));
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        wait_until("the command gets it", || scenario.read("out").contains("had SIGTERM"));
        scenario.signal_wrapper(Signal::SIGUSR2);
        assert_eq!(scenario.wait().code(), Some(9));
        assert_eq!(scenario.read("out").matches("had SIGTERM").count(), 1, "{has_command}");
    }
}

fn without_effect() {
    use Signal::{SIGALRM, SIGIO, SIGPROF, SIGPWR, SIGSTKFLT, SIGVTALRM};
    let mut scenario = listening("role:tell-all", |_| {});
    let named = [SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGSTKFLT].map(|signal| signal as i32);
    for number in named.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        // SAFETY: `kill` takes two numbers.
        assert_eq!(unsafe { libc::kill(scenario.wrapper_pid().as_raw(), number) }, 0, "signal {number}");
    }
    scenario.signal_wrapper(Signal::SIGUSR2);
    assert_eq!(scenario.wait().code(), Some(9));
}

fn stopped(to: To, cell: &str) {
    let has_deadline = cell == "the job ends before T";
    let mut scenario = listening("role:tell-all", |scenario| {
        if has_deadline {
            (scenario.options.ttl_ms, scenario.options.grace_ms) = (1500, 200);
            scenario.options.renews = true;
        }
    });
    to.send(&scenario, Signal::SIGSTOP);
    let (stopped, running) = match to {
        To::Wrapper => (vec![scenario.wrapper_pid()], vec![]),
        To::Guardian => (vec![scenario.guardian_pid()], vec![scenario.wrapper_pid(), command(&scenario)]),
        To::Command => (vec![command(&scenario)], vec![scenario.wrapper_pid()]),
        To::Group => (vec![scenario.wrapper_pid()], vec![]),
        To::All => (vec![scenario.wrapper_pid(), scenario.guardian_pid(), command(&scenario)], vec![]),
    };
    for pid in stopped {
        wait_until("it is stopped", || state(pid).as_deref() == Some("T"));
    }
    assert!(running.into_iter().all(|pid| state(pid).as_deref() == Some("S")));
    match cell {
        "the job ends before T" => wait_until("nobody is left", || scenario.survivors().is_empty()),
        "the job runs on, also past T" | "it stops, and the lock is renewed" | "all stop, also past T" => {
            assert_eq!(scenario.survivors().len(), 2);
        }
        other => panic!("no test of `{other}`"),
    }
    match to {
        // Alone, so that its own stop is seen and not the wrapper's.
        To::Command => kill(command(&scenario), Signal::SIGCONT).unwrap(),
        _ => {
            for pid in scenario.processes().into_iter().chain([scenario.wrapper_pid().as_raw()]) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
            }
        }
    }
    if has_deadline {
        assert_eq!(scenario.wait().code(), Some(128 + 9));
        assert_eq!(scenario.reported("terminating"), Some("terminating ValidUntil".into()));
    } else {
        wait_until("the command goes on", || {
            scenario.signal_wrapper(Signal::SIGUSR2);
            scenario.reported("exited").is_some()
        });
        assert_eq!(scenario.wait().code(), Some(9));
        assert_eq!(scenario.reported("stopped"), None);
    }
}

fn killed(to: To, cell: &str) {
    let code = match cell {
        "the job ends, then the lock is free" | "all end" => None,
        "the job ends, then the lock is free; exit code 70" => Some(crate::wrapper::GUARDIAN_DIED.into()),
        "the exit code is 137" => Some(137),
        other => panic!("no test of `{other}`"),
    };
    let mut scenario = listening("role:tell-all", |scenario| scenario.options.grace_ms = 50);
    to.send(&scenario, Signal::SIGKILL);
    if cell == "all end" {
        wait_until("nobody is left", || scenario.survivors().is_empty());
    }
    let _next_holder = scenario.wait_for_lock();
    assert_eq!(scenario.survivors(), Vec::<i32>::new());
    assert_eq!(scenario.wait().code(), code);
}

impl Scenario {
    /// All processes of this scenario but the wrapper.
    fn processes(&self) -> Vec<i32> {
        let wrapper = self.wrapper_pid().to_string();
        let witness =
            std::fs::read_to_string(format!("/proc/{wrapper}/task/{wrapper}/children")).unwrap_or_default();
        let mut all = self.survivors();
        all.extend(witness.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
        all.retain(|pid| stat_field(*pid, 0).is_some_and(|state| state != "Z"));
        all.sort_unstable();
        all.dedup();
        all
    }
}
