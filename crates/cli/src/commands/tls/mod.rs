//! `tls`: certificates for nodes and clients of our own service, by an authority of its own.

mod authority;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lockkeeper_server::{CertificateNames, NodeName};
use rcgen::KeyPair;
use serde_json::json;

use crate::args::{TlsCommand, TlsInit, TlsIssue, TlsRenew};
use crate::exit::{CONFIG, Failure, INTERNAL, IO, OK, USAGE};
use crate::output;
use crate::table::Table;
use authority::{Authority, Subject};

/// The hosts in each node's certificate.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The name of the client's certificate that `init` makes.
const CLIENT: &str = "client";
const DAY_SECONDS: u64 = 24 * 60 * 60;

pub(super) fn tls(command: &TlsCommand) -> Result<u8, Failure> {
    match command {
        TlsCommand::Init(args) => init(args),
        TlsCommand::Issue(args) => issue(args),
        TlsCommand::Renew(args) => renew(args),
        TlsCommand::Show(args) => print(&args.files, args.json),
    }
}

fn init(args: &TlsInit) -> Result<u8, Failure> {
    if let Some((node, host)) = args.host.iter().find(|(node, _)| *node > args.nodes) {
        let why = format!("--host {node}={host}: there are {} nodes (--nodes), numbered from 1", args.nodes);
        return Err(Failure::new(USAGE, why));
    }
    let cluster = match &args.cluster_name {
        Some(name) => name.clone(),
        None => random_name()?,
    };
    let authority = Authority::create(&args.dir, &random_name()?)?;
    for node in 1..=args.nodes {
        let hosts = args.host.iter().filter(|(of, _)| *of == node).map(|(_, host)| host.clone());
        let name = NodeName { cluster: cluster.clone(), node: Some(node) };
        let subject = Subject::Node(name, with_loopback(hosts));
        authority.issue(&subject, args.days, None)?;
    }
    authority.issue(&Subject::Client(CLIENT.to_owned()), args.days, None)?;
    print(std::slice::from_ref(&args.dir), false)?;
    output::say(format_args!(
        "keep `{}` secret: whoever has it can make certificates",
        args.dir.join("ca.key").display()
    ));
    Ok(OK)
}

fn issue(args: &TlsIssue) -> Result<u8, Failure> {
    let authority = Authority::open(&args.dir)?;
    let subject = if let Some(client) = &args.client {
        Subject::Client(client.clone())
    } else {
        let cluster = args.cluster_name.clone().map_or_else(|| cluster_of(&args.dir), Ok)?;
        let name = NodeName { cluster, node: args.node };
        Subject::Node(name, with_loopback(args.host.iter().cloned()))
    };
    let file = authority.issue(&subject, args.days, None)?;
    print(&[file], false)
}

fn renew(args: &TlsRenew) -> Result<u8, Failure> {
    let authority = Authority::open(&args.dir)?;
    let mut renewed = Vec::new();
    for path in certificates(&args.dir)?.into_iter().filter(|path| !path.ends_with("ca.pem")) {
        let names = read(&path)?;
        let subject = match (names.node(), names.identity()) {
            (Some(node), _) => Subject::Node(node.clone(), names.hosts().to_vec()),
            (None, Some(client)) => Subject::Client(client.to_owned()),
            (None, None) => {
                return Err(Failure::new(CONFIG, format!("`{}` has no name to keep", path.display())));
            }
        };
        let (certificate, key) = authority.files(&subject);
        if certificate != path {
            let why =
                format!("`{}` is of {names}, whose file is `{}`", path.display(), certificate.display());
            return Err(Failure::new(CONFIG, why));
        }
        let failed = |what: &str| Failure::new(CONFIG, format!("`{}` can't be used: {what}", key.display()));
        let text = fs::read_to_string(&key).map_err(|error| failed(&error.to_string()))?;
        let pair = KeyPair::from_pem(&text).map_err(|error| failed(&error.to_string()))?;
        renewed.push(authority.issue(&subject, args.days, Some(pair))?);
    }
    print(&renewed, false)
}

/// Prints the subjects of certificates. A path is a file, or a directory with certificates.
fn print(paths: &[PathBuf], as_json: bool) -> Result<u8, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() { files.extend(certificates(path)?) } else { files.push(path.clone()) }
    }
    let mut table = Table::new(["FILE", "OF", "HOSTS", "DAYS LEFT"]);
    for file in files {
        let names = read(&file)?;
        let left = names.expires().duration_since(SystemTime::now()).map(|left| left.as_secs() / DAY_SECONDS);
        if as_json {
            output::json(&json!({
                "file": file.to_string_lossy(),
                "identity": names.identity(),
                "node": names.node().and_then(|node| node.node),
                "cluster": names.node().map(|node| node.cluster.as_str()),
                "hosts": names.hosts(),
                "expires": humantime::format_rfc3339_seconds(names.expires()).to_string(),
                "days_left": left.as_ref().ok(),
            }))?;
            continue;
        }
        let days = left.as_ref().map_or_else(|_| "expired".to_owned(), u64::to_string);
        let row = [file.display().to_string(), names.to_string(), names.hosts().join(" "), days];
        if left.is_ok_and(|days| days >= 7) { table.row(row) } else { table.bad_row(row) }
    }
    if !as_json {
        table.print()?;
    }
    Ok(OK)
}

/// The certificates in a directory, sorted.
fn certificates(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed =
        |error: std::io::Error| Failure::system(IO, &format!("`{}` can't be listed", dir.display()), &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "pem") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The first certificate of a file.
fn read(path: &Path) -> Result<CertificateNames, Failure> {
    let bytes = fs::read(path)
        .map_err(|error| Failure::system(IO, &format!("`{}` can't be read", path.display()), &error))?;
    CertificateNames::of_pem(&bytes)
        .map_err(|why| Failure::new(CONFIG, format!("`{}` is no certificate in PEM: {why}", path.display())))
}

/// The cluster of the nodes whose certificates are in a directory.
fn cluster_of(dir: &Path) -> Result<String, Failure> {
    for path in certificates(dir)? {
        if let Some(node) = read(&path)?.node() {
            return Ok(node.cluster.clone());
        }
    }
    let why = format!("no node's certificate is in `{}` to take the cluster's name from", dir.display());
    Err(Failure::new(CONFIG, why))
}

fn with_loopback(hosts: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = hosts.filter(|host| !LOOPBACK.contains(&host.as_str())).collect();
    all.extend(LOOPBACK.map(str::to_owned));
    all
}

fn random_name() -> Result<String, Failure> {
    let number = getrandom::u64()
        .map_err(|error| Failure::new(INTERNAL, format!("the system gives no random bytes: {error}")))?;
    Ok(format!("{number:016x}"))
}
