//! `gate` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_cli::exit;
use lockkeeper_rig::Redis;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{CommandExt, Running, TestDir, wait_until};

/// A service that takes its time to write, and logs which token begins and ends when, and in which slot.
#[derive(Clone)]
struct Upstream {
    address: SocketAddr,
    log: Arc<Mutex<Vec<Logged>>>,
}

/// What, the token, and the slot of a permit.
type Logged = (&'static str, u64, Option<u64>);
/// The token, and the slot of a permit.
type Writer = (u64, Option<u64>);

impl Upstream {
    fn start(work: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self { address: listener.local_addr().unwrap(), log: Arc::default() };
        let served = this.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let served = served.clone();
                std::thread::spawn(move || served.serve(stream.unwrap(), work));
            }
        });
        this
    }

    fn serve(&self, mut stream: TcpStream, work: Duration) {
        while let Some((head, _)) = message(&mut stream) {
            let token = header(&head, "fencing-token").and_then(|it| it.parse().ok()).unwrap_or(0);
            let slot =
                header(&head, "fencing-mode").and_then(|it| it.strip_prefix("permit;slot=")?.parse().ok());
            if !head.starts_with("get") {
                self.log.lock().unwrap().push(("begun", token, slot));
                std::thread::sleep(work);
                self.log.lock().unwrap().push(("ended", token, slot));
            }
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").is_err() {
                return;
            }
        }
    }
}

/// Reads one message of HTTP: its head, and its body.
fn message(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?.to_lowercase();
    let mut body = vec![0; header(&head, "content-length").map_or(0, |it| it.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).ok()?))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The status and the body of the answer to one request; `None` if there is none.
fn ask(address: SocketAddr, line: &str, headers: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let text = format!("{line} HTTP/1.1\r\nHost: gate\r\nContent-Length: 2\r\n{headers}\r\nok");
    stream.write_all(text.as_bytes()).ok()?;
    let (head, body) = message(&mut stream)?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body))
}

fn put(address: SocketAddr, token: u64) -> Option<u16> {
    ask(address, "PUT /a", &format!("Fencing-Token: {token}\r\n")).map(|(status, _)| status)
}

struct Gate {
    process: Running,
    said: Value,
}

impl Gate {
    fn start(test: &TestDir, upstream: &str, options: &[&str]) -> Self {
        Self::of(Self::command(test, upstream, options))
    }

    fn command(test: &TestDir, upstream: &str, options: &[&str]) -> Command {
        let data = test.path("gate");
        let words = ["gate", "--upstream", upstream, "--admin-listen", "127.0.0.1:0", "--json"];
        let mut command: Command = test.bare(words);
        if !options.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.arg("--data").arg(data).args(options).stderr(Stdio::inherit()).stdout(Stdio::piped());
        command
    }

    fn of(mut command: Command) -> Self {
        let mut process = command.spawn().map(Running::of).unwrap();
        let mut line = String::new();
        BufReader::new(process.child_mut().stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, said: serde_json::from_str(&line).expect(&line) }
    }

    fn address(&self, which: &str) -> SocketAddr {
        self.said[which].as_str().unwrap().parse().unwrap()
    }
}

#[test]
fn gate_checks_tokens_until_it_is_told_to_end() {
    let test = TestDir::new();
    let upstream = Upstream::start(Duration::ZERO);
    let url = format!("http://{}", upstream.address);
    let options = ["--guard", "/accounts/{id}/{*rest}=accounts/{id}", "--open", "/search"];
    let gate = Gate::start(&test, &url, &options);
    assert_eq!(gate.said["upstream"], url);
    let address = gate.address("listening");
    let put = |path: &str, token: u64| {
        ask(address, &format!("PUT {path}"), &format!("Fencing-Token: {token}\r\n")).unwrap().0
    };
    assert_eq!(put("/accounts/7/cards", 5), 200);
    assert_eq!(put("/accounts/7/owner", 4), 412, "one resource by --guard");
    assert_eq!(put("/accounts/7", 4), 412, "and so is what has nothing below it");
    assert_eq!(put("/accounts/8/owner", 4), 200);
    assert_eq!(ask(address, "PUT /search", "").unwrap().0, 200);
    assert_eq!(ask(address, "PUT /other", "").unwrap().0, 428);
    let (status, metrics) = ask(gate.address("admin"), "GET /metrics", "").unwrap();
    assert_eq!(status, 200);
    assert!(metrics.contains("lockkeeper_gate_requests_total{outcome=\"stale\"} 2"), "{metrics}");
    let second = test
        .bare(["gate", "--upstream", &url, "--listen", "127.0.0.1:0", "--data"])
        .arg(test.path("gate"))
        .ended();
    second.is_one_line(exit::BUSY, &["in use by another process"]);
    gate.process.signal(Signal::SIGTERM);
    assert_eq!(gate.process.ended().code, 0);
    assert!(test.path("gate/ended-in-order").exists());
}

#[test]
fn tokens_are_also_asked_for_at_the_lock_service() {
    let (test, _node) = TestDir::new().served();
    let upstream = Upstream::start(Duration::ZERO);
    let gate = Gate::start(&test, &format!("http://{}", upstream.address), &["--locks", &test.url()]);
    let address = gate.address("listening");
    let holder = test.holder("a", &[]);
    assert_eq!(put(address, holder.token), Some(200));
    assert_eq!(put(address, holder.token + 1), Some(412), "nobody was granted it");
    assert_eq!(put(address, holder.token), Some(200));
    let token = holder.token;
    holder.signal(Signal::SIGTERM);
    holder.ended();
    assert_eq!(put(address, token), Some(412), "the hold has ended");
}

/// A gate that has lost its marks lets old tokens in again, and its history shows that.
#[test]
fn decisions_are_a_history_that_verify_checks() {
    let test = TestDir::new();
    let upstream = Upstream::start(Duration::ZERO);
    let history = test.path("history");
    let started = || {
        let mut command = Gate::command(&test, &format!("http://{}", upstream.address), &[]);
        command.env("LOCKKEEPER_HISTORY", &history);
        Gate::of(command)
    };
    let verify = || test.bare(["verify"]).arg(&history).ended();
    let gate = started();
    let address = gate.address("listening");
    assert_eq!([5, 7, 6].map(|token| put(address, token)), [Some(200), Some(200), Some(412)]);
    let permit = |token: u64, slot: u64| {
        let headers = format!("Fencing-Token: {token}\r\nFencing-Mode: permit;slot={slot}\r\n");
        ask(address, "PUT /permits", &headers).unwrap().0
    };
    assert_eq!([permit(9, 0), permit(8, 1)], [200, 200], "of two slots");
    assert_eq!(ask(address, "PUT /a", "").unwrap().0, 428);
    let lines = std::fs::read_to_string(&history).unwrap();
    let verdicts = |verdict: &str| lines.matches(&format!("\"verdict\":\"{verdict}\"")).count();
    assert_eq!((verdicts("accepted"), verdicts("stale")), (4, 1), "{lines}");
    let checked = verify();
    assert_eq!(checked.code, i32::from(exit::OK), "{checked:?}");
    gate.process.signal(Signal::SIGTERM);
    assert_eq!(gate.process.ended().code, 0);

    std::fs::remove_dir_all(test.path("gate")).unwrap();
    let gate = started();
    assert_eq!(put(gate.address("listening"), 6), Some(200));
    let checked = verify();
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.out.contains("fence-order") && checked.out.contains("token 6 after 7"), "{checked:?}");
}

/// A gate that is killed again and again, before an upstream that works on, with sections of several modes,
/// some of which change theirs: no write begins beside one of another section, and none out of turn.
#[test]
fn killed_gate_lets_no_section_in_beside_another() {
    const ROUNDS: u32 = 6;
    let test = TestDir::new();
    let upstream = Upstream::start(Duration::from_millis(40));
    let url = format!("http://{}", upstream.address);
    let listen = test.address();
    let options = ["--listen", &listen, "--settle", "700ms", "--wait", "100ms"];
    let address: SocketAddr = listen.parse().unwrap();
    let (next, is_over) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (next, is_over) = (next.clone(), is_over.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let token = next.fetch_add(1, Ordering::SeqCst);
                    let headers = format!("Fencing-Token: {token}\r\n");
                    let mode = match token % 4 {
                        0 => String::new(),
                        // Of two slots, so that both are in use at a time.
                        slot => format!("Fencing-Mode: permit;slot={}\r\n", slot % 2),
                    };
                    if token.is_multiple_of(3) {
                        ask(address, "GET /a", &headers);
                    }
                    // As a holder that retries: until it is done, or a later one was there, or it came in
                    // another mode.
                    let write =
                        || ask(address, "PUT /a", &format!("{headers}{mode}")).map(|(status, _)| status);
                    while !is_over.load(Ordering::SeqCst) && !matches!(write(), Some(200 | 400 | 412)) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            })
        })
        .collect();
    for _ in 0..ROUNDS {
        let gate = Gate::start(&test, &url, &options);
        let done = |upstream: &Upstream| upstream.log.lock().unwrap().len();
        let before = done(&upstream);
        wait_until("requests pass", || done(&upstream) > before + 6);
        gate.process.signal(Signal::SIGKILL);
    }
    is_over.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let log = upstream.log.lock().unwrap().clone();
    let (mut inside, mut all) = (Vec::<Writer>::new(), Vec::<Writer>::new());
    let other_slots =
        |one: Option<u64>, other: Option<u64>| one.zip(other).is_some_and(|(one, other)| one != other);
    for (what, token, slot) in &log {
        match *what {
            "begun" => {
                let beside = inside.iter().find(|(other, at)| other != token && !other_slots(*at, *slot));
                assert_eq!(beside, None, "{token} in {slot:?} beside it: {log:?}");
                let later = all.iter().find(|(other, at)| other > token && !other_slots(*at, *slot));
                assert_eq!(later, None, "{token} in {slot:?} after it: {log:?}");
                inside.push((*token, *slot));
                all.push((*token, *slot));
            }
            _ => {
                let index = inside.iter().position(|it| it == &(*token, *slot)).unwrap();
                inside.swap_remove(index);
            }
        }
    }
    assert!(log.len() > 6 * ROUNDS as usize);
}

#[test]
fn unusable_settings_are_refused_with_a_reason() {
    let test = TestDir::new();
    std::fs::write(test.path("rules"), "[[rule]]\npath = \"x\"\n").unwrap();
    std::fs::write(test.path("file"), "").unwrap();
    let (good, redis) = ("http://127.0.0.1:1", Redis::start());
    for (options, code, words) in [
        (
            &["--upstream", "ftp://x"][..],
            exit::USAGE,
            &["`ftp://x`", "another scheme", "http://host:port"][..],
        ),
        (&["--upstream", "http://x/path"], exit::USAGE, &["has a path"]),
        (&["--upstream", "http://u@x"], exit::USAGE, &["has a user"]),
        (&["--upstream", "x y"], exit::USAGE, &["is no URL"]),
        (
            &["--upstream", good, "--tls-cert", "file", "--tls-key", "file"],
            exit::CONFIG,
            &["TLS can't be set up", "`file` can't be used", "no private key"],
        ),
        (&["--upstream", good, "--tls-cert", "file"], exit::USAGE, &["--tls-key"]),
        (&["--upstream", good, "--rules", "rules"], exit::USAGE, &["the rule for `x`", "begins with `/`"]),
        (&["--upstream", good, "--rules", "nowhere"], exit::IO, &["can't be read", "No such file"]),
        (&["--upstream", good, "--guard", "/x"], exit::USAGE, &["PATH=NAME"]),
        (&["--upstream", good, "--open", "/{x"], exit::USAGE, &["the rule for `/{x`"]),
        (&["--upstream", good, "--data", "file"], exit::CANNOT_CREATE, &["data directory"]),
        (&["--upstream", good, "--settle", "5"], exit::USAGE, &["--settle", "'5'"]),
        (&["--upstream", good, "--locks", &redis.url()], exit::USAGE, &["token", "fencing=counter"]),
    ] {
        let mut command = test
            .bare([&["gate", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"], options].concat());
        if !options.contains(&"--data") {
            command.args(["--data", "data"]);
        }
        command.ended().is_one_line(code, words);
    }
}
