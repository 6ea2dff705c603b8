//! `serve`: runs a node as a process. Prints its address, logs, and ends with a documented exit code.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use lockkeeper_server::access::AccessFiles;
use lockkeeper_server::disk::DirectoryError;
use lockkeeper_server::{BackupSchedule, HttpListen, Running, ServeError, ServerOptions, TlsFiles};
use serde_json::json;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{LogFormat, Serve};
use crate::exit::{
    BUSY, CANNOT_CREATE, CONFIG, Failure, INTERNAL, IO, OK, UNAVAILABLE, USAGE, chain, code_below,
};
#[cfg(feature = "otlp")]
use crate::otlp::NodeTraces;
use crate::output;

mod hazards;
mod log;
mod metrics;

pub(super) fn serve(args: Serve) -> Result<u8, Failure> {
    if args.print_config {
        output::page(args.in_force.trim_end())?;
        return Ok(OK);
    }
    super::check_room(0)?;
    start_log(args.log, &args.log_level)?;
    #[cfg(feature = "otlp")]
    let traces = args.otlp.as_deref().map(|url| NodeTraces::start(url, report)).transpose()?;
    let data = std::path::absolute(&args.data).unwrap_or_else(|_| args.data.clone());
    let advertise = args.advertise.clone();
    let (json, format) = (args.json, args.log);
    let nodes = args.cluster.len();
    let cluster: BTreeMap<u64, String> = args.cluster.into_iter().collect();
    if cluster.len() < nodes {
        return Err(Failure::new(
            USAGE,
            "a node is twice in `--cluster`: give each its own number".to_owned(),
        ));
    }
    warn_if_exposed(args.tls_key.as_deref());
    let tls = match (args.tls_cert, args.tls_key, args.tls_ca) {
        (Some(certificate), Some(key), Some(ca)) => Some(TlsFiles { certificate, key, ca }),
        // clap requires all or none.
        _ => None,
    };
    let scheme = if tls.is_some() { "lockkeepers" } else { "lockkeeper" };
    let http = match args.http_listen {
        Some(typed) if typed == "off" => HttpListen::Off,
        Some(typed) => HttpListen::At(typed),
        None => HttpListen::usual(&args.listen),
    };
    let hazards = (http != HttpListen::Off).then(hazards::player);
    let usual = ServerOptions::new(&data);
    let options = ServerOptions {
        snapshot_after: args.snapshot_after.unwrap_or(usual.snapshot_after),
        segment_bytes: args.segment_bytes.unwrap_or(usual.segment_bytes),
        listen: args.listen,
        http,
        metrics: Some(metrics::page(usize::from(args.metrics_segments))?),
        hazards,
        #[cfg(feature = "otlp")]
        traces: traces.as_ref().map(NodeTraces::sink),
        advertise: args.advertise,
        insecure: args.insecure,
        tls,
        access: AccessFiles { tokens: args.tokens, permissions: args.permissions },
        audit: args.audit,
        backups: args.backup_every.zip(args.backup_dir).map(|(every, directory)| BackupSchedule {
            every,
            directory,
            keep: args.backup_keep.into(),
        }),
        node: args.node,
        cluster,
        join: args.join,
        rejoin: args.rejoin,
        peer_listen: args.peer_listen,
        election_timeout: args.election_timeout,
        tokens_above: args.tokens_above,
        connections_max: args.max_connections,
        connections_of_client_max: args.max_connections_per_client,
        connections_reserved: args.reserved_connections,
        idle_timeout: args.idle_timeout,
        ..usual
    };
    let ended = lockkeeper_server::run(options, move |running| {
        ready(&running, scheme, advertise.as_deref(), &data, json);
    });
    #[cfg(feature = "otlp")]
    if let Some(traces) = traces {
        traces.flush();
    }
    let Err(failed) = ended.map_err(failure) else { return Ok(OK) };
    if format == LogFormat::Json {
        // Every line is an object, also the one that says why the node ends.
        tracing::error!(code = failed.code, "{}", failed.message);
        return Ok(failed.code);
    }
    Err(failed)
}

/// Logs that traces can't be sent, or can be again.
#[cfg(feature = "otlp")]
fn report(text: String) {
    tracing::warn!("{text}");
}

/// Prints one line when the node serves, as text or JSON. A write error does not stop the node.
fn ready(running: &Running, scheme: &str, advertise: Option<&str>, data: &Path, json: bool) {
    let listening = running.address().to_string();
    let locks = format!("{scheme}://{}", advertise.unwrap_or(&listening));
    let web = if scheme == "lockkeepers" { "https" } else { "http" };
    let http = running.http_address().map(|address| format!("{web}://{address}"));
    let line = if json {
        let data = data.to_string_lossy();
        let pid = std::process::id();
        json!({ "locks": locks, "listening": listening, "http": http, "data": data, "pid": pid }).to_string()
    } else {
        let http = http.map_or_else(String::new, |url| format!(" and {url}"));
        format!("serving {locks}{http}, data in {}", data.display())
    };
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        output::say(format_args!(
            "standard output can't be written ({error}); it serves all the same: {line}"
        ));
    }
}

/// Starts the log on standard error.
pub(super) fn start_log(format: LogFormat, level: &str) -> Result<(), Failure> {
    let level = self::level(level)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(false).fmt_fields(log::TextFields).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(level))
        .try_init()
        .map_err(|error| Failure::new(INTERNAL, format!("the log can't be started: {error}")))
}

/// Logs a warning if every user of this host can read a private key.
pub(super) fn warn_if_exposed(key: Option<&Path>) {
    if let Some(warning) = key.and_then(lockkeeper::url::exposed) {
        tracing::warn!("{warning}");
    }
}

/// Parses the log filter. A word without `=` must be a level: otherwise it would be taken for a module name,
/// and nothing would be logged.
fn level(typed: &str) -> Result<Targets, Failure> {
    let typed = if typed.is_empty() { "info" } else { typed };
    let is_known = typed.split(',').all(|part| part.contains('=') || part.parse::<LevelFilter>().is_ok());
    typed.parse().ok().filter(|_| is_known).ok_or_else(|| {
        let text = format!(
            "`{typed}` is no level of logging; write error, warn, info, debug or trace, or \
             `info,lockkeeper_server=debug`, in --log-level or LOCKKEEPER_LOG"
        );
        Failure::new(USAGE, text)
    })
}

/// The exit code and message of an error of the node. Scripts and service managers can choose a remedy by the
/// code.
pub(super) fn failure(error: ServeError) -> Failure {
    use ServeError as E;
    let code = match &error {
        E::Address { .. }
        | E::NotLoopback { .. }
        | E::Wildcard { .. }
        | E::TokensAbove { .. }
        | E::Unreachable { .. }
        | E::Nodes { .. } => USAGE,
        E::File(_) | E::Certificate { .. } => code_below(&error).unwrap_or(CONFIG),
        E::AddressInUse { .. } | E::Directory(DirectoryError::InUse { .. }) => BUSY,
        E::NotOurs { .. } => CANNOT_CREATE,
        E::Listen { .. } => code_below(&error).unwrap_or(UNAVAILABLE),
        E::Directory(_) => code_below(&error).unwrap_or(CANNOT_CREATE),
        E::ClockBehind
        | E::AnotherNode { .. }
        | E::NotAlone { .. }
        | E::Refused(_)
        | E::NewerRules { .. }
        | E::WrongTable { .. }
        | E::Condemned { .. } => CONFIG,
        E::Stopped(_) | E::System { .. } | E::Panicked { .. } => INTERNAL,
        // The stored data can't be used or can't be written.
        _ => code_below(&error).unwrap_or(IO),
    };
    Failure::new(code, chain(&error))
}
