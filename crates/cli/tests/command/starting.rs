//! `serve`: start, refused starts and stop; and the errors that clients get without a service.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{CommandExt, Ended, TestDir};

/// Asserts that `serve` refused to start: with this exit code, no standard output, and one message line that
/// contains all these words.
#[track_caller]
fn is_refused(ended: &Ended, code: u8, words: &[&str]) {
    assert_eq!((ended.code, ended.out.as_str()), (i32::from(code), ""), "{ended:?}");
    let said: Vec<&str> = ended.err.lines().filter(|line| line.starts_with("lockkeeper: ")).collect();
    let [line] = said[..] else { panic!("not one line: {ended:?}") };
    for word in words {
        assert!(line.contains(word), "no {word:?} in {line}");
    }
}

#[test]
fn startup_line_has_address_and_data_directory() {
    let test = TestDir::new();
    let node = test.serve("127.0.0.1:0");
    let listening = node.listening();
    assert!(listening.starts_with("127.0.0.1:") && !listening.ends_with(":0"), "{listening}");
    assert_eq!(node.said["locks"], format!("lockkeeper://{listening}"));
    assert_eq!(std::path::Path::new(node.said["data"].as_str().unwrap()), test.path("data"));
    let ended = node.stopped(Signal::SIGTERM);
    assert_eq!((ended.code, ended.out.as_str()), (0, ""), "{ended:?}");
}

#[test]
fn startup_line_is_text_without_json_and_sigint_stops_cleanly() {
    let test = TestDir::new();
    let mut serving = test.bare(["serve", "--data", "data", "--listen", "127.0.0.1:0"]).started();
    let mut out = BufReader::new(serving.child_mut().stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let data = test.path("data");
    assert!(line.starts_with("serving lockkeeper://127.0.0.1:"), "{line}");
    assert!(line.ends_with(&format!(", data in {}\n", data.display())), "{line}");
    serving.signal(Signal::SIGINT);
    assert_eq!(serving.ended().code, 0);
    assert_eq!(out.read_line(&mut line).unwrap(), 0, "more than one line: {line}");
}

#[test]
fn stop_does_not_wait_for_clients() {
    let (test, node) = TestDir::new().served();
    let holder = test.holder("x", &[]);
    let waiter = test.lockkeeper(["run", "x", "--", "true"]).started();
    let watcher = test.lockkeeper(["watch", "--json"]).started();
    test.wait_for_waiters("x", 1);
    assert_eq!(node.stopped(Signal::SIGTERM).code, 0);
    for client in [holder, waiter, watcher] {
        client.signal(Signal::SIGKILL);
    }
}

#[test]
fn data_directory_in_use_is_refused() {
    let test = TestDir::new();
    let _node = test.serve("127.0.0.1:0");
    let second = test.ran("serve --data data --listen 127.0.0.1:0");
    is_refused(&second, exit::BUSY, &["data directory", "in use by another process", "data"]);
}

#[test]
fn port_in_use_is_reported_and_no_data_are_created() {
    let test = TestDir::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = test.ran(&format!("serve --data data --listen {address}"));
    is_refused(&ended, exit::BUSY, &[&address, "in use", "--listen"]);
    assert!(!test.path("data").exists(), "nothing was made");
}

#[test]
fn listening_beyond_loopback_requires_tls_or_insecure() {
    let test = TestDir::new();
    for address in ["0.0.0.0:0", "192.0.2.1:5625", "[::]:0"] {
        let ended = test.ran(&format!("serve --data data --listen {address}"));
        is_refused(&ended, exit::USAGE, &[address, "--insecure", "--tls-cert", "lockkeeper tls init"]);
    }
    let ended = test.ran("serve --data data --listen 0.0.0.0:0 --insecure");
    is_refused(&ended, exit::USAGE, &["0.0.0.0:0", "--advertise"]);
    assert!(!test.path("data").exists(), "nothing was made");
}

#[test]
fn invalid_serve_options_are_refused() {
    let test = TestDir::new();
    test.ran("serve").is_one_line(exit::USAGE, &["--data"]);
    for (options, words) in [
        ("--listen 5625", &["`5625`", "HOST:PORT"][..]),
        ("--listen 127.0.0.1:99999", &["`127.0.0.1:99999`", "HOST:PORT"]),
        ("--listen 127.0.0.1:0 --tokens-above 9007199254740993", &["9007199254740993", "--tokens-above"]),
        ("--log-level loud", &["`loud`", "LOCKKEEPER_LOG", "debug"]),
        ("--max-connections 0", &["'0'", "1 to 1000000"]),
        ("--log yaml", &["'yaml'", "json"]),
    ] {
        let ended = test.ran(&format!("serve --data data {options}"));
        is_refused(&ended, exit::USAGE, words);
    }
}

#[test]
fn unusable_data_directory_is_refused() {
    let test = TestDir::new();
    std::fs::write(test.path("file"), "").unwrap();
    let ended = test.ran("serve --data file/data --listen 127.0.0.1:0");
    is_refused(&ended, exit::CANNOT_CREATE, &["file/data"]);
    let ended = test.ran("serve --data /sys/lockkeeper --listen 127.0.0.1:0");
    is_refused(&ended, exit::PERMISSION, &["/sys/lockkeeper"]);
}

#[test]
fn data_directory_with_files_of_others_is_refused_unchanged() {
    let test = TestDir::new();
    std::fs::create_dir(test.path("documents")).unwrap();
    std::fs::write(test.path("documents/letter"), "").unwrap();
    let ended = test.ran("serve --data documents --listen 127.0.0.1:0");
    is_refused(&ended, exit::CANNOT_CREATE, &["documents", "`letter` is there", "--data"]);
    let left: Vec<_> = std::fs::read_dir(test.path("documents")).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing was added: {left:?}");
}

/// A test directory with the data of a stopped node. `change` was applied to the header of the bootstrap
/// record, and its checksum recomputed.
fn with_header(change: impl Fn(&mut [u8])) -> TestDir {
    let test = TestDir::new();
    assert_eq!(test.serve("127.0.0.1:0").stopped(Signal::SIGTERM).code, 0);
    let path = test.path("data/founding");
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    let checksum = crc32fast::hash(&bytes[..508]);
    bytes[508..512].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    test
}

#[test]
fn data_of_a_newer_version_are_refused_unchanged() {
    let test = with_header(|bytes| bytes[12..16].copy_from_slice(&99_u32.to_le_bytes()));
    let before = std::fs::read(test.path("data/founding")).unwrap();
    let ended = test.ran("serve --data data --listen 127.0.0.1:0");
    is_refused(&ended, exit::IO, &["founding", "99", "newer", "nothing was changed"]);
    assert_eq!(std::fs::read(test.path("data/founding")).unwrap(), before);
}

#[test]
fn damaged_data_are_refused_with_byte_offset() {
    let test = with_header(|_| {});
    let path = test.path("data/founding");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let ended = test.ran("serve --data data --listen 127.0.0.1:0");
    is_refused(&ended, exit::IO, &["founding", "damaged at byte", "checksum"]);
}

#[test]
fn json_log_lines_parse() {
    let test = TestDir::new();
    let words =
        ["serve", "--data", "data", "--listen", "127.0.0.1:0", "--log", "json", "--log-level", "debug"];
    let mut serving = test.bare(words).started();
    let mut first = [0];
    serving.child_mut().stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    serving.signal(Signal::SIGTERM);
    let ended = serving.ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.lines().count() > 0, "something is logged");
    for line in ended.err.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(event["level"].is_string() && event["message"].is_string(), "{line}");
    }
}

#[test]
fn every_command_reports_an_unreachable_service() {
    let test = TestDir::new();
    let address = test.address();
    let test = test.over(&format!("lockkeeper://{address}"));
    for line in ["run x -- true", "ls", "show x", "watch", "sessions", "doctor", "check-token x 7", "bench"] {
        let ended = test.ran(line);
        ended.is_one_line(exit::UNAVAILABLE, &[&address, "lockkeeper serve", "LOCKKEEPER_URL"]);
    }
}

#[test]
fn server_with_another_protocol_is_reported_as_unavailable() {
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\0\xff\x17garbage\n", b""] {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut stream in other.incoming().map_while(Result::ok) {
                // Each client reads this answer, then end-of-file.
                let _ = stream.write_all(answer);
            }
        });
        let test = TestDir::new().over(&format!("lockkeeper://{address}"));
        for line in ["ls", "run x -- touch it-ran"] {
            test.ran(line).is_one_line(exit::UNAVAILABLE, &[&address]);
        }
        assert!(!test.path("it-ran").exists());
    }
}

#[test]
fn unresponsive_server_is_reported_after_a_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let test = TestDir::new().over(&format!("lockkeeper://{address}"));
    // The kernel accepts the connection, and the process never reads from it.
    test.ran("ls").is_one_line(exit::UNAVAILABLE, &[&address, "no answer within"]);
}

#[test]
fn another_kind_of_server_on_the_port_is_reported_as_such() {
    let test = TestDir::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        // Each connection stays open, so that the client reads the answer.
        let mut open = Vec::new();
        for stream in other.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            open.push(stream);
        }
    });
    let test = test.over(&format!("lockkeeper://{address}"));
    test.ran("ls").is_one_line(exit::UNAVAILABLE, &[&address, "something else listens there"]);
}

#[test]
fn options_are_taken_from_a_file_and_the_command_line_wins() {
    let test = TestDir::new();
    let listen = test.address();
    let config =
        format!("data = \"from-file\"\nlisten = \"{listen}\"\nmax-connections = 77\nlog = \"json\"\n");
    std::fs::write(test.path("serve.toml"), config).unwrap();
    let printed = test.ran("serve --config serve.toml --data given --print-config");
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    for line in
        ["data = \"given\"", &format!("listen = \"{listen}\""), "max-connections = 77", "insecure = false"]
    {
        assert!(printed.out.lines().any(|printed| printed == line), "no {line} in {}", printed.out);
    }
    assert!(!test.path("given").exists(), "nothing is done");
    std::fs::write(test.path("printed.toml"), &printed.out).unwrap();
    assert_eq!(
        test.ran("serve --config printed.toml --print-config").out,
        printed.out,
        "it can be used again"
    );
    let node = test.start(&["--config", "serve.toml"], "log").ready();
    assert_eq!(node.listening(), listen);
    assert!(test.path("from-file").exists());
    for (config, words) in [
        ("data = \"x\"\nlissten = \"y\"", ["`lissten`", "did you mean `listen`?"]),
        ("data = \"x\"\ninsecure = 1", ["bad.toml:2: `insecure`", "true or false"]),
        ("data = \"x\"\n\nlog = \"yaml\"", ["bad.toml:3: ", "yaml"]),
        ("data = \"x\"\nlisten = 1.5", ["`listen`", "neither"]),
        ("listen = \"x\"\ndata = ", ["bad.toml:2: ", "value"]),
    ] {
        std::fs::write(test.path("bad.toml"), config).unwrap();
        test.ran("serve --config bad.toml").is_one_line(exit::USAGE, &words);
    }
    test.ran("serve --config missing.toml").is_one_line(exit::USAGE, &["missing.toml", "can't be read"]);
}
