//! The emulators of object stores.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread;

use lockkeeper_rig::s3::BUCKET;
use lockkeeper_rig::{Azurite, S3};

use crate::{listens, until};

fn foreign() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign")
}

/// moto lets unsigned requests create objects but not replace them. It accepts any signature.
const SIGNED: &str = "Authorization: AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, \
                      SignedHeaders=host, Signature=none\r\n";

/// Puts the object `k` with a further header, and returns the status of the answer.
fn put(port: u16, header: &str, body: &str) -> String {
    let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!("PUT /{BUCKET}/k HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{header}\r\n");
    write!(server, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn moto_honours_conditions_of_puts_and_s3rver_ignores_them() {
    let (honours, ignores) = (S3::start(&foreign()), S3::without_conditions(&foreign()));
    for (header, body, answer) in [
        ("If-None-Match: *", "one", "200"),
        ("If-None-Match: *", "two", "412"),
        ("If-Match: \"0123456789abcdef0123456789abcdef\"", "three", "412"),
        // The MD5 of `one`.
        ("If-Match: \"f97c5d29941bfb1b2fdab0874906ab82\"", "four", "200"),
        ("If-Match: \"f97c5d29941bfb1b2fdab0874906ab82\"", "five", "412"),
    ] {
        assert_eq!(put(honours.port(), &format!("{SIGNED}{header}"), body), answer, "{header}, {body}");
        assert_eq!(put(ignores.port(), header, body), "200", "{header}, {body}");
    }
    let port = honours.port();
    drop(honours);
    assert!(!listens(port));
}

#[test]
fn stopped_s3_answers_after_cont() {
    let s3 = S3::start(&foreign());
    s3.stop();
    thread::scope(|scope| {
        let answer = scope.spawn(|| put(s3.port(), "If-None-Match: *", "one"));
        until("the request is there", || listens(s3.port()));
        assert!(!answer.is_finished(), "a stopped server has answered");
        s3.cont();
        assert_eq!(answer.join().unwrap(), "200");
    });
}

#[test]
fn azurite_answers_and_ends_when_dropped() {
    let azurite = Azurite::start(&foreign());
    let port = azurite.port();
    assert_eq!(azurite.url(), format!("http://127.0.0.1:{port}/devstoreaccount1"));
    assert!(listens(port));
    drop(azurite);
    assert!(!listens(port));
}
