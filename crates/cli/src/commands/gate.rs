//! `gate`: runs the fencing proxy as a process.

use std::io::Write;
use std::sync::Arc;

use lockkeeper::TokenStatus;
use lockkeeper_fence::MarksError;
use lockkeeper_gate::{GateError, GateHistory, GateOptions, GateTls, Rules, RulesError, TokenCheck};
use lockkeeper_server::raise_file_limit;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::fence::FenceHistory;
use super::serve::{start_log, warn_if_exposed};
use crate::args::Gate;
use crate::exit::{BUSY, CANNOT_CREATE, CONFIG, Failure, IO, OK, UNAVAILABLE, USAGE, chain, code_below};
use crate::{output, settings};

pub(super) async fn gate(args: Gate) -> Result<u8, Failure> {
    start_log(args.log, &args.log_level)?;
    let tokens = match &args.locks {
        Some(url) => Some(token_check(url).await?),
        None => None,
    };
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(GateTls::load(certificate, key).map_err(failure)?),
        _ => None,
    };
    warn_if_exposed(args.tls_key.as_deref());
    let upstream = args.upstream.clone();
    let history = FenceHistory::of_environment("gate", args.locks.as_deref().unwrap_or_default())?;
    let options = GateOptions {
        tls: tls.clone(),
        admin_listen: Some(args.admin_listen),
        rules: rules(&args)?,
        settle: args.settle,
        wait: args.wait,
        timeout: args.timeout,
        drain: args.drain,
        client_timeout: args.client_timeout,
        // A connection of a client may need one to the upstream.
        connections_max: raise_file_limit(args.max_connections, 2),
        requests_max: args.max_requests,
        marks_max: args.max_marks,
        tokens,
        history: history.map(|history| Arc::new(history) as Arc<dyn GateHistory>),
        ..GateOptions::new(args.listen, args.upstream, args.data)
    };
    let failed = |error: std::io::Error| Failure::system(IO, "cannot handle signals", &error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let gate = lockkeeper_gate::Gate::start(options).await.map_err(failure)?;
    ready(&gate, &upstream, if tls.is_some() { "https" } else { "http" }, args.json);
    if let Some(tls) = tls {
        let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
        let asked = Arc::new(Notify::new());
        tokio::spawn(tls.keep_current(asked.clone()));
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                asked.notify_one();
            }
        });
    }
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let all_ended = gate.run(end).await;
    let all_ended =
        all_ended.map_err(|error| Failure::system(IO, "cannot write to the data directory", &error))?;
    if !all_ended {
        output::say(
            "requests were still at the upstream when the gate ended; resources settle at its next start",
        );
    }
    Ok(OK)
}

fn rules(args: &Gate) -> Result<Rules, Failure> {
    let failed = |error: RulesError| {
        let code = if let RulesError::Read(_) = error { code_below(&error).unwrap_or(IO) } else { USAGE };
        Failure::new(code, chain(&error))
    };
    let mut rules = match &args.rules {
        Some(file) => Rules::read(file).map_err(failed)?,
        None => Rules::default(),
    };
    for guard in &args.guard {
        let missing = || Failure::new(USAGE, format!("--guard `{guard}` has no name; write PATH=NAME"));
        let (path, name) = guard.rsplit_once('=').ok_or_else(missing)?;
        rules.guard(path, name).map_err(failed)?;
    }
    for path in &args.open {
        rules.open(path).map_err(failed)?;
    }
    Ok(rules)
}

async fn token_check(url: &str) -> Result<TokenCheck, Failure> {
    let locks =
        settings::connect(url, "gate").await?.fenced().map_err(|error| Failure::new(USAGE, chain(&error)))?;
    Ok(Arc::new(move |lock, token| {
        let locks = locks.clone();
        Box::pin(async move {
            match locks.check_token(&lock, token).await {
                Ok(status) => Ok(status == TokenStatus::Current),
                Err(error) => Err(chain(&error)),
            }
        })
    }))
}

/// Prints one line when the gate listens. A write error does not stop it.
fn ready(gate: &lockkeeper_gate::Gate, upstream: &str, scheme: &str, as_json: bool) {
    let shown = |address: Option<std::net::SocketAddr>| address.map(|it| it.to_string()).unwrap_or_default();
    let (listening, admin) = (shown(gate.address()), shown(gate.admin_address()));
    let line = if as_json {
        let pid = std::process::id();
        json!({ "listening": listening, "scheme": scheme, "admin": admin, "upstream": upstream, "pid": pid })
            .to_string()
    } else {
        format!("guarding {upstream} at {scheme}://{listening}, metrics at http://{admin}/metrics")
    };
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        output::say(format_args!(
            "standard output can't be written ({error}); it guards all the same: {line}"
        ));
    }
}

fn failure(error: GateError) -> Failure {
    let code = match &error {
        GateError::Upstream { .. } => USAGE,
        GateError::Tls(_) => CONFIG,
        GateError::Marks(MarksError::InUse { .. }) => BUSY,
        GateError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => BUSY,
        GateError::Listen { .. } => code_below(&error).unwrap_or(UNAVAILABLE),
        GateError::Data { .. } => code_below(&error).unwrap_or(CANNOT_CREATE),
        _ => code_below(&error).unwrap_or(IO),
    };
    Failure::new(code, chain(&error))
}
