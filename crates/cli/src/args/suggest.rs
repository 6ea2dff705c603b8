//! The message of a command line error: one line, with a suggestion for a typo.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Cli;

/// Names that other tools use for commands of ours.
pub(super) const SYNONYMS: [(&str, &str); 12] = [
    ("acquire", "run"),
    ("delete", "break"),
    ("exec", "run"),
    ("health", "doctor"),
    ("info", "show"),
    ("inspect", "show"),
    ("kill", "break"),
    ("list", "ls"),
    ("lock", "run"),
    ("members", "cluster status"),
    ("status", "cluster status"),
    ("unlock", "break"),
];

/// Names that other tools use for options of ours.
const OPTION_SYNONYMS: [(&str, &str); 12] = [
    ("--url", "--locks"),
    ("--server", "--locks"),
    ("--timeout", "--wait"),
    ("--no-wait", "--try"),
    ("--nonblock", "--try"),
    ("-n", "--try"),
    ("--lease", "--ttl"),
    ("--port", "--listen"),
    ("--address", "--listen"),
    ("--data-dir", "--data"),
    ("-c", "--config"),
    ("--name", "--label"),
];

/// The error text for an unknown command or option that resembles a known one. clap's own measure of
/// similarity finds no swapped letters in short words.
pub(super) fn suggestion(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(value)) => Some(value.as_str()),
        _ => None,
    };
    let commands = Cli::command();
    let (what, typed, known): (_, _, Vec<String>) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = context(ContextKind::InvalidSubcommand)?;
            if typed.contains("://") {
                return Some(address_goes_behind(typed));
            }
            if let Some((_, ours)) = SYNONYMS.iter().find(|(theirs, _)| *theirs == typed) {
                return Some(format!("there is no command '{typed}'; '{ours}' is what you may look for"));
            }
            (
                "command",
                typed,
                commands.get_subcommands().map(|command| command.get_name().to_owned()).collect(),
            )
        }
        ErrorKind::UnknownArgument => {
            let typed = context(ContextKind::InvalidArg)?;
            if words.iter().any(|word| word.to_string_lossy().contains("://")) && !typed.starts_with('-') {
                return Some(address_goes_behind(typed));
            }
            let command = words.iter().find_map(|word| commands.find_subcommand(word))?;
            let has = |name: &str| {
                let name = name.trim_start_matches("--");
                command.get_arguments().any(|option| option.get_long() == Some(name))
            };
            if let Some((_, ours)) =
                OPTION_SYNONYMS.iter().find(|(theirs, ours)| *theirs == typed && has(ours))
            {
                return Some(format!("there is no option '{typed}'; '{ours}' is what you may look for"));
            }
            if has(typed) {
                let name = command.get_name();
                return Some(format!("'{typed}' goes behind the command, as in `lockkeeper {name} {typed}`"));
            }
            let options = command.get_arguments().filter_map(|option| option.get_long());
            let options = options.map(|name| format!("--{name}")).collect();
            ("option", typed, options)
        }
        _ => return None,
    };
    nearest(typed, &known).map(|name| format!("there is no {what} '{typed}'; did you mean '{name}'?"))
}

fn address_goes_behind(typed: &str) -> String {
    format!(
        "unexpected argument '{typed}': the address of a lock service goes behind --locks, as in `--locks \
         lockkeeper://127.0.0.1`"
    )
}

/// The known name that differs from the typed one by no more than two letters.
pub(super) fn nearest<'a>(typed: &str, known: &'a [String]) -> Option<&'a String> {
    let distance = |name: &String| strsim::damerau_levenshtein(name, typed);
    known.iter().min_by_key(|name| distance(name)).filter(|name| distance(name) <= 2)
}

/// The paragraphs of clap's message before its usage text, on one line. Leaves out clap's tips, which suggest
/// passing the mistyped word as a lock's name.
pub(super) fn one_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let told = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.starts_with("tip:"));
    told.collect::<Vec<_>>().join(" ")
}
