//! `token` and `access`: the files with which nodes authenticate clients (tokens) and authorize them
//! (permissions).

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use lockkeeper_core::Usage;
use lockkeeper_server::access::{Decision, Identity, NewToken, NewTokenError, Permission, Permissions};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::args::{
    AccessCheck, AccessCommand, AccessQuota, ActionArg, TokenAdd, TokenCommand, TokenList, TokenOf,
};
use crate::exit::{CANNOT_CREATE, CONFIG, Failure, INTERNAL, IO, NO, OK, USAGE};
use crate::{output, settings};

/// The first line of a new file.
const HEADER: &str = "# Tokens of clients, made by `lockkeeper token add`: name, salt, hash.\n";

pub(super) fn token(command: &TokenCommand) -> Result<u8, Failure> {
    match command {
        TokenCommand::Add(args) => add(args),
        TokenCommand::Remove(args) => remove(args),
        TokenCommand::List(args) => list(args),
    }
}

pub(super) fn access(command: &AccessCommand) -> Result<u8, Failure> {
    match command {
        AccessCommand::Check(args) => check(args),
        AccessCommand::Quota(args) => quota(args),
    }
}

fn add(TokenAdd { of: args, out }: &TokenAdd) -> Result<u8, Failure> {
    let made = NewToken::make(&args.name).map_err(|error| {
        let code = if matches!(error, NewTokenError::Random(_)) { INTERNAL } else { USAGE };
        Failure::new(code, error.to_string())
    })?;
    let mut text = match fs::read_to_string(&args.file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => HEADER.to_owned(),
        Err(error) => return Err(unreadable(&args.file, &error)),
    };
    if names(&text).any(|name| name == args.name) {
        let why = format!(
            "`{}` has a token of `{}` already: remove it first (`lockkeeper token remove`)",
            args.file.display(),
            args.name
        );
        return Err(Failure::new(CANNOT_CREATE, why));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&made.line);
    text.push('\n');
    let Some(out) = out else {
        replace(&args.file, &text)?;
        // Prints only the token, so that a script can read it.
        output::line(&made.token)?;
        return Ok(OK);
    };
    write_new(out, &made.token)?;
    if let Err(failure) = replace(&args.file, &text) {
        // No node will know the token.
        let _ = fs::remove_file(out);
        return Err(failure);
    }
    output::line(format!("the token of `{}` is in `{}`, which only you can read", args.name, out.display()))?;
    Ok(OK)
}

/// Writes a secret to a new file that only its owner can read. An existing file is an error: it may be a
/// token in use.
fn write_new(file: &Path, secret: &str) -> Result<(), Failure> {
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut made = made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            let why =
                format!("`{}` exists already: give `--out` a new file, or remove this one", file.display());
            Failure::new(CANNOT_CREATE, why)
        }
        _ => Failure::system(CANNOT_CREATE, &format!("cannot create `{}`", file.display()), &error),
    })?;
    writeln!(made, "{secret}").and_then(|()| made.sync_all()).map_err(|error| {
        let _ = fs::remove_file(file);
        Failure::system(IO, &format!("cannot write `{}`", file.display()), &error)
    })
}

fn remove(args: &TokenOf) -> Result<u8, Failure> {
    let text = read(&args.file)?;
    let is_of = |line: &str| line.trim().split(':').next() == Some(args.name.as_str());
    let kept: String = text.lines().filter(|line| !is_of(line)).map(|line| format!("{line}\n")).collect();
    if !text.lines().any(is_of) {
        let why = format!("`{}` has no token of `{}`", args.file.display(), args.name);
        return Err(Failure::new(NO, why));
    }
    replace(&args.file, &kept)?;
    output::line(format!("the token of `{}` is removed", args.name))?;
    Ok(OK)
}

fn list(args: &TokenList) -> Result<u8, Failure> {
    let text = read(&args.file)?;
    if args.json {
        output::json(&names(&text).map(|name| json!({ "name": name })).collect::<Vec<_>>())?;
        return Ok(OK);
    }
    for name in names(&text) {
        output::line(name)?;
    }
    Ok(OK)
}

/// The names of the clients in a file of tokens.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split(':').next())
}

fn check(args: &AccessCheck) -> Result<u8, Failure> {
    let file = args.file.display();
    let (text, permissions) = permissions(&args.file)?;
    let identity = identity(&args.identity)?;
    let action = match args.action {
        ActionArg::Acquire => Permission::Acquire,
        ActionArg::Read => Permission::Read,
        ActionArg::Break => Permission::Break,
        ActionArg::Limit => Permission::Limit,
        ActionArg::Admin => Permission::Admin,
    };
    let name = args.name.as_deref().map(settings::lock_name).transpose()?;
    if action == Permission::Admin && name.is_some() {
        let why = "`admin` is about the whole service, so it has no name: leave it out".to_owned();
        return Err(Failure::new(USAGE, why));
    }
    let decision = permissions.of(&identity).decide(action, name.as_ref());
    let (line, why) = match decision {
        Decision::Allowed { line } => (Some(line), "allows it"),
        Decision::Revoked { line } => (Some(line), "revokes the client"),
        _ => (None, "no rule allows it"),
    };
    let code = if decision.is_allowed() { OK } else { NO };
    if args.json {
        output::json(&json!({ "allowed": decision.is_allowed(), "line": line, "why": why }))?;
        return Ok(code);
    }
    let verdict = if decision.is_allowed() { "allowed" } else { "denied" };
    output::line(match line {
        Some(line) => {
            format!("{verdict}: line {line} of `{file}` {why}: {}", rule(&text, line))
        }
        None => format!("{verdict}: {why} in `{file}`"),
    })?;
    Ok(code)
}

fn quota(args: &AccessQuota) -> Result<u8, Failure> {
    let (text, permissions) = permissions(&args.file)?;
    let identity = identity(&args.identity)?;
    let quota = permissions.of(&identity).quota();
    let limit = |most: u64| (most != u64::MAX).then_some(most);
    let Usage { sessions, requests, waiters, names, bytes } = quota.most;
    let rate = quota.requests_per_second.map(|rate| u64::from(rate.get()));
    if args.json {
        output::json(&json!({
            "line": quota.line,
            "sessions": limit(sessions),
            "requests": limit(requests),
            "waiters": limit(waiters),
            "names": limit(names),
            "bytes": limit(bytes),
            "requests_per_second": rate,
        }))?;
        return Ok(OK);
    }
    let file = args.file.display();
    output::line(match quota.line {
        Some(line) => format!("{identity}: line {line} of `{file}`: {}", rule(&text, line)),
        None => format!("{identity}: no quota in `{file}` names it, the default is"),
    })?;
    let numbers = quota.most.numbers().map(|(what, most)| (what, limit(most)));
    for (what, most) in numbers.into_iter().chain([("requests per second at each node", rate)]) {
        output::line(format!("{what}: {}", most.map_or("no limit".to_owned(), |most| most.to_string())))?;
    }
    Ok(OK)
}

fn permissions(file: &Path) -> Result<(String, Permissions), Failure> {
    let text = read(file)?;
    let permissions = Permissions::parse(&text).map_err(|why| {
        Failure::new(CONFIG, format!("`{}` can't be used: {}", file.display(), why.trim_end()))
    })?;
    Ok((text, permissions))
}

fn identity(name: &str) -> Result<Identity, Failure> {
    match name {
        "anonymous" => Ok(Identity::ANONYMOUS),
        name => Identity::new(name).map_err(|error| Failure::new(USAGE, error.to_string())),
    }
}

/// The text of the rule that begins at this line of the file, joined into one line.
fn rule(text: &str, line: usize) -> String {
    let mut lines = text.lines().skip(line - 1).map(str::trim);
    let first = lines.next().unwrap_or_default();
    if !first.starts_with("[[") {
        return first.to_owned();
    }
    let rest: Vec<&str> = lines.take_while(|line| !line.is_empty() && !line.starts_with('[')).collect();
    rest.join(", ")
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| unreadable(file, &error))
}

fn unreadable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::system(CONFIG, &format!("cannot read `{}`", file.display()), error)
}

/// Replaces a file atomically: a node that reads it gets the old content or the new one. An existing file
/// keeps its owner and mode; a new file is accessible to its owner only.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::system(IO, &format!("cannot write `{}`", file.display()), &error);
    let old = match fs::metadata(file) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    // If the path is a symbolic link, its target is replaced, not the link.
    let target = if old.is_some() { fs::canonicalize(file).map_err(failed)? } else { file.to_owned() };
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = NamedTempFile::new_in(folder).map_err(failed)?;
    temporary.write_all(text.as_bytes()).map_err(failed)?;
    if let Some(old) = &old {
        let new = temporary.as_file().metadata().map_err(failed)?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            fchown(temporary.as_file(), Some(old.uid()), Some(old.gid())).map_err(failed)?;
        }
    }
    let mode = old.map_or(0o600, |old| old.mode() & 0o7777);
    temporary.as_file().set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(&target).map_err(|error| failed(error.error))?;
    Ok(())
}
