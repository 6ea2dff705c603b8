//! An emulator of Amazon DynamoDB, from PyPI: moto.
//!
//! Responsible for starting the emulator, with one empty table. Its data are lost when it ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::CommandLine;
use crate::s3::{MOTO, PYTHON, installed};

/// The table that exists from the start; its partition key is the text `id`.
pub const TABLE: &str = "lockkeeper";

/// The header that a request needs: moto takes the region from it, and checks no signature.
pub const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0";

/// A server with DynamoDB's API on plain HTTP. It serves one request at a time: moto checks a condition and
/// writes in two steps, while DynamoDB guarantees one atomic step. Ended when dropped.
pub struct DynamoDb {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
}

process_methods!(DynamoDb);

impl DynamoDb {
    /// Starts a server with the empty table [`TABLE`]. `foreign` is the folder with the packages that `cargo
    /// xtask test` installs from registries.
    ///
    /// # Panics
    /// `python3` or moto is missing, or moto doesn't start.
    #[must_use]
    pub fn start(foreign: &Path) -> Self {
        let library = installed(foreign, "pypi-aws", "moto");
        // Needed by moto's DynamoDB, not by its S3.
        let _ = installed(foreign, "pypi-aws", "py_partiql_parser");
        PYTHON.path();
        let server = Self { port: Port::free(), folder: Folder::new("dynamodb"), slot: ProcessSlot::empty() };
        let line = CommandLine::new(PYTHON.name)
            .env("PYTHONPATH", library.parent().unwrap_or(foreign))
            .args(["-c", MOTO, &server.port().to_string()]);
        server.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &server.folder.log());
            process.wait_until_ready("moto", || make_table(server.port()));
            process
        });
        server
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Deletes all tables, and makes [`TABLE`] again.
    ///
    /// # Panics
    /// The server does not answer.
    pub fn wipe(&self) {
        let head = "POST /moto-api/reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let answer = ask(self.port(), head.as_bytes()).expect("moto answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        make_table(self.port()).expect("moto makes a table");
    }
}

fn make_table(port: u16) -> Result<(), String> {
    let body = format!(
        r#"{{"TableName":"{TABLE}","BillingMode":"PAY_PER_REQUEST",
            "KeySchema":[{{"AttributeName":"id","KeyType":"HASH"}}],
            "AttributeDefinitions":[{{"AttributeName":"id","AttributeType":"S"}}]}}"#
    );
    let request = format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: DynamoDB_20120810.CreateTable\r\nAuthorization: \
         {AUTHORIZATION}\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\nConnection: close\
         \r\n\r\n{body}",
        body.len()
    );
    let answer = ask(port, request.as_bytes()).map_err(|error| error.to_string())?;
    // The table exists already if the answer to an earlier attempt was lost.
    if answer.starts_with("HTTP/1.1 200") || answer.contains("ResourceInUseException") {
        Ok(())
    } else {
        Err(format!("no table: {answer}"))
    }
}

/// The answer to a request on a connection of its own.
fn ask(port: u16, request: &[u8]) -> std::io::Result<String> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(Duration::from_secs(30)))?;
    server.write_all(request)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
